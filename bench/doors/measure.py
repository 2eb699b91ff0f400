"""Interleaved rounds: everyone does a piece of work, then everyone the next, so that a slow moment meets all alike.

Every round turns the order round, and ratios are taken within a round.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles
from time import perf_counter, process_time
from typing import Any

import msgspec

from bench.doors.contender import Contender, NotThere, make_bodies
from bench.doors.engine import InProcess
from bench.doors.flight import Flight
from bench.doors.jetstream import JetStream
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


QUICK = Plan(rounds=3, batches=(1, 500), seconds=0.3, pings=50)


class Row(msgspec.Struct, frozen=True):
    """One contender doing one thing. `rounds` has a value for each round under each name.

    `lifecycle` (case: batch) and `singles` (case: style): `rate` a second, `client_us` and `server_us` of CPU a message.
    `latency` (case: way): `p50` and `p99` in milliseconds.
    """

    group: str
    durability: str
    case: str
    contender: str
    rounds: dict[str, list[float]]


class Measured(msgspec.Struct, frozen=True):
    """`settings` and `missing` by durability and contender: who took part with what, and who could not and why."""

    rows: list[Row] = []
    settings: dict[str, dict[str, str]] = {}
    missing: dict[str, dict[str, str]] = {}


def steps(plan: Plan) -> int:
    return plan.rounds * len(plan.durabilities) * (len(plan.batches) + 2)


def measure(plan: Plan, home: Path, tick: Callable[[str], None]) -> Measured:
    found = Measured()
    for durability in plan.durabilities:
        data = home / f"doors-{durability}"
        with ExitStack() as stack:
            present = _present(durability, data, found, stack)
            found.rows.extend(_rounds(plan, durability, present, tick))
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


def _rounds(plan: Plan, durability: str, present: Sequence[Contender], tick: Callable[[str], None]) -> list[Row]:
    bodies = make_bodies(5_000)
    rows: dict[tuple[str, str, str], Row] = {}

    def note(group: str, case: str, contender: Contender, values: dict[str, float]) -> None:
        row = rows.setdefault((group, case, contender.name), Row(group, durability, case, contender.name, {}))
        for name, value in values.items():
            row.rounds.setdefault(name, []).append(value)

    for one in present:
        _warm_up(plan, one, bodies)
    for turn in range(plan.rounds):
        ordered = (present, present[::-1])[turn % 2]
        for batch in plan.batches:
            for one in ordered:
                note("lifecycle", f"{batch:,}", one, _lifecycles(one, bodies, batch, plan.seconds))
            tick(f"{durability}, batch {batch}")
        for one in ordered:
            for way in one.ways:
                note("latency", way, one, _latency(one, bodies[: plan.pings], way))
        tick(f"{durability}, latency")
        for one in ordered:
            for style in one.styles:
                note("singles", style, one, _timed(lambda: one.singles(bodies, style, plan.seconds), one))  # noqa: B023 called at once
                one.clear()
        tick(f"{durability}, producers")
    return list(rows.values())


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


def _timed(work: Callable[[], int], one: Contender) -> dict[str, float]:
    server, client, began = one.server_cpu_s(), process_time(), perf_counter()
    count = work()
    took = perf_counter() - began
    return {"rate": count / took, "client_us": (process_time() - client) / count * 1e6, "server_us": (one.server_cpu_s() - server) / count * 1e6}
