"""Interleaved rounds: everyone does a piece of work, then everyone the next, so that a slow moment meets all
alike.

Every round turns the order round, and ratios are taken within a round. What somebody else disturbed is done
again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import quantiles
from time import perf_counter, process_time
from typing import Any

import msgspec

from bench.doors.contender import Contender, NotThere, make_bodies
from bench.doors.engine import InProcess
from bench.doors.jetstream import AwaitedJetStream, JetStream
from bench.doors.neighbours import Neighbours
from bench.doors.redis_streams import RedisStreams
from bench.doors.resp import AsyncResp, Resp
from bench.doors.waiting import Crowd, measure_crowds

Contenders = Mapping[str, Callable[[Path, str], Contender]]
CONTENDERS: Contenders = {
    contender.name: contender
    for contender in (InProcess, Resp, AsyncResp, RedisStreams, JetStream, AwaitedJetStream)
}
#: The same door behind keys and TLS.
SECURED: Contenders = {
    "neither": Resp,
    "keys": partial(Resp, keys=True),
    "TLS": partial(Resp, tls=True),
    "keys and TLS": partial(Resp, keys=True, tls=True),
}
#: What may be measured by itself.
GROUPS = ("lifecycle", "latency", "singles", "secured", "crowd")


class Plan(msgspec.Struct, frozen=True):
    rounds: int = 5
    groups: tuple[str, ...] = GROUPS
    durabilities: tuple[str, ...] = ("os", "fsync")
    batches: tuple[int, ...] = (1, 10, 100, 500)
    secured_batches: tuple[int, ...] = (1, 100)
    producers: tuple[int, ...] = (1, 10, 100)
    seconds: float = 1.0
    pings: int = 300
    waiting_claims: int = 2_000
    idle_connections: int = 10_000
    #: How long the whole measurement may take longer for the sake of quiet.
    patience_s: float = 1200.0


QUICK = Plan(
    rounds=3,
    batches=(1, 500),
    secured_batches=(1,),
    producers=(10,),
    seconds=0.25,
    pings=50,
    waiting_claims=500,
    idle_connections=1_000,
    patience_s=0.0,
)


class Row(msgspec.Struct, frozen=True):
    """One contender doing one thing. `rounds` has a value for each round under each name.

    `lifecycle` (case: batch) and `singles` (case: how many, and style): `rate` a second, `client_us` and
    `server_us` of CPU a message. `latency` (case: way): `p50` and `p99` in milliseconds, `client_us` and `server_us`.
    """

    group: str
    durability: str
    case: str
    contender: str
    rounds: dict[str, list[float]]


class Measured(msgspec.Struct, frozen=True):
    """`settings` and `missing` by durability and contender: who took part with what, and who could not and
    why.

    `quiet` by durability: how many pieces of work there were, and how many of them somebody else disturbed. `loads`: the
    least and the most processes that wanted a core, in the minute before each piece.
    """

    rows: list[Row] = []
    settings: dict[str, dict[str, str]] = {}
    missing: dict[str, dict[str, str]] = {}
    quiet: dict[str, tuple[int, int]] = {}
    loads: dict[str, tuple[float, float]] = {}
    #: Rows of the group `secured`.
    secured: list[Row] = []
    crowds: list[Crowd] = []


def steps(plan: Plan) -> int:
    among_all = plan.rounds * len(plan.durabilities) * len(list(_cases_of(plan)))
    secured = plan.rounds * len(list(_cases_of(_secured(plan)))) if "secured" in plan.groups else 0
    return among_all + secured + ("crowd" in plan.groups)


def measure(plan: Plan, home: Path, tick: Callable[[str], None]) -> Measured:
    found = Measured()
    if any(_cases_of(plan)):
        for durability in plan.durabilities:
            rows = _measure_among(CONTENDERS, durability, durability, plan, home, found, tick)
            found.rows.extend(rows)
    if "secured" in plan.groups:
        rows = _measure_among(SECURED, "os", "secured", _secured(plan), home, found, tick)
        found.secured.extend(rows)
    if "crowd" in plan.groups:
        found.crowds.extend(measure_crowds(home, plan.waiting_claims, plan.idle_connections))
        tick("many connections")
    return found


def _secured(plan: Plan) -> Plan:
    return msgspec.structs.replace(plan, groups=("lifecycle",), batches=plan.secured_batches)


def _measure_among(
    contenders: Contenders,
    durability: str,
    name: str,
    plan: Plan,
    home: Path,
    found: Measured,
    tick: Callable[[str], None],
) -> list[Row]:
    """Settings and the rest go under `name`."""
    data = home / f"doors-{name}"
    with ExitStack() as stack:
        present: dict[str, Contender] = {}
        settings, missing = found.settings.setdefault(name, {}), found.missing.setdefault(name, {})
        for number, (label, make) in enumerate(contenders.items()):
            try:
                one = make(data / str(number), durability)
            except NotThere as why:
                missing[label] = str(why)
                continue
            stack.callback(one.close)
            settings[label] = one.settings
            present[label] = one
        neighbours = Neighbours(list(present.values()), plan.patience_s / len(plan.durabilities))
        rows = _rounds(plan, name, present, neighbours, tick)
        found.quiet[name] = neighbours.pieces, neighbours.disturbed
        found.loads[name] = min(neighbours.loads), max(neighbours.loads)
    shutil.rmtree(data, ignore_errors=True)
    return rows


#: A piece of work of one contender: its case, and what does it.
Piece = tuple[str, Callable[[], dict[str, float]]]


def _rounds(
    plan: Plan,
    name: str,
    present: Mapping[str, Contender],
    neighbours: Neighbours,
    tick: Callable[[str], None],
) -> list[Row]:
    bodies = make_bodies(5_000)
    rows: dict[tuple[str, str, str], Row] = {}
    ordered = list(present.items())
    for _, one in ordered:
        _warm_up(plan, one, bodies)
    for _ in range(plan.rounds):
        for group, case in _cases_of(plan):

            def work(group: str = group, case: Any = case) -> list[tuple[str, str, dict[str, float]]]:
                return [
                    (label, shown, do())
                    for label, one in ordered
                    for shown, do in _pieces_of(plan, group, case, one, bodies)
                ]

            for label, shown, values in neighbours.undisturbed(work):
                row = rows.setdefault((group, shown, label), Row(group, name, shown, label, {}))
                for value_name, value in values.items():
                    row.rounds.setdefault(value_name, []).append(value)
            tick(f"{name}, {group} {case}".strip())
        ordered.reverse()
    return list(rows.values())


def _cases_of(plan: Plan) -> Iterator[tuple[str, Any]]:
    if "lifecycle" in plan.groups:
        yield from (("lifecycle", batch) for batch in plan.batches)
    if "latency" in plan.groups:
        yield "latency", ""
    if "singles" in plan.groups:
        yield from (("singles", producers) for producers in plan.producers)


def _pieces_of(plan: Plan, group: str, case: Any, one: Contender, bodies: Sequence[bytes]) -> Iterator[Piece]:
    if group == "lifecycle":
        yield f"{case:,}", partial(_lifecycles, one, bodies, case, plan.seconds)
    if group == "latency":
        for way in one.ways:
            yield way, partial(_latency, one, bodies[: plan.pings], way)
    if group == "singles":
        for style in one.styles:
            yield f"{case} {style}", partial(_singles, one, bodies, style, case, plan.seconds)


def _warm_up(plan: Plan, one: Contender, bodies: Sequence[bytes]) -> None:
    for group, case in _cases_of(plan):
        small = msgspec.structs.replace(plan, seconds=plan.seconds / 10, pings=10)
        for _, do in _pieces_of(small, group, case, one, bodies):
            do()


def _lifecycles(one: Contender, bodies: Sequence[bytes], batch: int, seconds: float) -> dict[str, float]:
    batches: list[Any] = one.prepare(bodies, batch)
    values = _timed(lambda: one.lifecycles(batches, seconds), one)
    one.clear()
    return values


def _latency(one: Contender, bodies: Sequence[bytes], way: str) -> dict[str, float]:
    took: list[float] = []

    def ping() -> int:
        took.extend(one.latencies_ms(bodies, way))
        return len(took)

    values = _timed(ping, one)
    cuts = quantiles(took, n=100, method="inclusive")
    del values["rate"]
    return {"p50": cuts[49], "p99": cuts[98], **values}


def _singles(
    one: Contender, bodies: Sequence[bytes], style: str, producers: int, seconds: float
) -> dict[str, float]:
    values = _timed(lambda: one.singles(bodies, style, producers, seconds), one)
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
