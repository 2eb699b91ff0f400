"""Interleaved rounds: everyone does a piece of work, then everyone the next, so that a slow moment meets all
alike.

Every round turns the order round, and ratios are taken within a round. What somebody else disturbed is done
again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import quantiles
from time import perf_counter, process_time
from typing import Any

import msgspec

from bench.doors.contender import Contender, NotThere, make_bodies
from bench.doors.engine import InProcess
from bench.doors.flight import Flight
from bench.doors.jetstream import JetStream
from bench.doors.neighbours import Neighbours
from bench.doors.redis_streams import RedisStreams

CONTENDERS: dict[str, Callable[[Path, str], Contender]] = {
    contender.name: contender for contender in (InProcess, Flight, RedisStreams, JetStream)
}


class Plan(msgspec.Struct, frozen=True):
    rounds: int = 5
    durabilities: tuple[str, ...] = ("os", "fsync")
    batches: tuple[int, ...] = (1, 10, 100, 500)
    seconds: float = 1.0
    pings: int = 300
    #: How long the whole measurement may take longer for the sake of quiet.
    patience_s: float = 1200.0


QUICK = Plan(rounds=3, batches=(1, 500), seconds=0.3, pings=50, patience_s=0.0)


class Row(msgspec.Struct, frozen=True):
    """One contender doing one thing. `rounds` has a value for each round under each name.

    `lifecycle` (case: batch) and `singles` (case: style): `rate` a second, `client_us` and `server_us` of CPU
    a message. `latency` (case: way): `p50` and `p99` in milliseconds.
    """

    group: str
    durability: str
    case: str
    contender: str
    rounds: dict[str, list[float]]


class Measured(msgspec.Struct, frozen=True):
    """`settings` and `missing` by durability and contender: who took part with what, and who could not and
    why.

    `quiet` by durability: how many pieces of work there were, and how many of them somebody else disturbed.
    """

    rows: list[Row] = []
    settings: dict[str, dict[str, str]] = {}
    missing: dict[str, dict[str, str]] = {}
    quiet: dict[str, tuple[int, int]] = {}


def steps(plan: Plan) -> int:
    return plan.rounds * len(plan.durabilities) * (len(plan.batches) + 2)


def measure(plan: Plan, home: Path, tick: Callable[[str], None]) -> Measured:
    found = Measured()
    for durability in plan.durabilities:
        data = home / f"doors-{durability}"
        with ExitStack() as stack:
            present = _present(durability, data, found, stack)
            neighbours = Neighbours(present, plan.patience_s / len(plan.durabilities))
            found.rows.extend(_rounds(plan, durability, present, neighbours, tick))
            found.quiet[durability] = neighbours.pieces, neighbours.disturbed
        shutil.rmtree(data, ignore_errors=True)
    return found


def _present(durability: str, data: Path, found: Measured, stack: ExitStack) -> list[Contender]:
    present: list[Contender] = []
    settings, missing = found.settings.setdefault(durability, {}), found.missing.setdefault(durability, {})
    for number, (name, contender) in enumerate(CONTENDERS.items()):
        try:
            one = contender(data / str(number), durability)
        except NotThere as why:
            missing[name] = str(why)
            continue
        stack.callback(one.close)
        settings[name] = one.settings
        present.append(one)
    return present


#: What one contender did in one case: case, contender, values.
Found = list[tuple[str, str, dict[str, float]]]


def _rounds(
    plan: Plan,
    durability: str,
    present: Sequence[Contender],
    neighbours: Neighbours,
    tick: Callable[[str], None],
) -> list[Row]:
    bodies = make_bodies(5_000)
    rows: dict[tuple[str, str, str], Row] = {}
    for one in present:
        _warm_up(plan, one, bodies)
    for turn in range(plan.rounds):
        for group, label, work in _pieces(plan, (present, present[::-1])[turn % 2], bodies):
            for case, contender, values in neighbours.undisturbed(work):
                row = rows.setdefault((group, case, contender), Row(group, durability, case, contender, {}))
                for name, value in values.items():
                    row.rounds.setdefault(name, []).append(value)
            tick(f"{durability}, {label}")
    return list(rows.values())


def _pieces(
    plan: Plan, ordered: Sequence[Contender], bodies: Sequence[bytes]
) -> Iterator[tuple[str, str, Callable[[], Found]]]:
    def lifecycles(batch: int) -> Found:
        return [(f"{batch:,}", one.name, _lifecycles(one, bodies, batch, plan.seconds)) for one in ordered]

    def latencies() -> Found:
        return [
            (way, one.name, _latency(one, bodies[: plan.pings], way)) for one in ordered for way in one.ways
        ]

    def singles() -> Found:
        return [
            (style, one.name, _singles(one, bodies, style, plan.seconds))
            for one in ordered
            for style in one.styles
        ]

    for batch in plan.batches:
        yield "lifecycle", f"batch {batch}", partial(lifecycles, batch)
    yield "latency", "latency", latencies
    yield "singles", "producers", singles


def _warm_up(plan: Plan, one: Contender, bodies: Sequence[bytes]) -> None:
    for batch in (1, max(plan.batches)):
        one.lifecycles(one.prepare(bodies, batch), plan.seconds / 5)
    for way in one.ways:
        one.latencies_ms(bodies[:10], way)
    for style in one.styles:
        one.singles(bodies, style, plan.seconds / 5)
    one.clear()


def _lifecycles(one: Contender, bodies: Sequence[bytes], batch: int, seconds: float) -> dict[str, float]:
    batches: list[Any] = one.prepare(bodies, batch)
    values = _timed(lambda: one.lifecycles(batches, seconds), one)
    one.clear()
    return values


def _latency(one: Contender, bodies: Sequence[bytes], way: str) -> dict[str, float]:
    took = one.latencies_ms(bodies, way)
    cuts = quantiles(took, n=100, method="inclusive")
    return {"p50": cuts[49], "p99": cuts[98]}


def _singles(one: Contender, bodies: Sequence[bytes], style: str, seconds: float) -> dict[str, float]:
    values = _timed(lambda: one.singles(bodies, style, seconds), one)
    one.clear()
    return values


def _timed(work: Callable[[], int], one: Contender) -> dict[str, float]:
    server, client, began = one.server_cpu_s(), process_time(), perf_counter()
    count = work()
    took = perf_counter() - began
    return {
        "rate": count / took,
        "client_us": (process_time() - client) / count * 1e6,
        "server_us": (one.server_cpu_s() - server) / count * 1e6,
    }
