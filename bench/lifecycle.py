"""Lifecycles per second: enqueue, claim, complete.

`in_step` enqueues a batch, claims it and completes it, and so on: the queue stays short and bodies come from
the cache. `drain` enqueues 100,000 messages first, so that all keys are active at once, and then claims and
completes them.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

import fairlead
from bench.bare import Bare
from bench.rates import Spread, Timed, ratio, spread, timed
from fairlead.engine.broker import Durability
from fairlead.model.ids import IdSource

PAYLOAD_BYTES = 1024
BATCHES = (1, 10, 100, 500)
KEYS = (10, 1_000, 10_000, 100_000)
DURABILITIES: tuple[Durability, ...] = ("os", "fsync")

_COUNT = {1: 3_000, 10: 15_000, 100: 40_000, 500: 50_000}
#: With a sync per step a small batch takes its time from the disk; fewer messages show that just as well.
_SYNCED_COUNT = {1: 300, 10: 3_000, 100: 20_000, 500: 50_000}


class Plan(msgspec.Struct, frozen=True):
    rounds: int = 5
    share: float = 1.0
    batches: tuple[int, ...] = BATCHES
    keys: tuple[int, ...] = KEYS
    durabilities: tuple[Durability, ...] = DURABILITIES
    drained: int = 100_000


QUICK = Plan(rounds=3, share=0.1, batches=(1, 500), keys=(10, 100_000), drained=20_000)


class Measured(msgspec.Struct, frozen=True):
    """`rate` and `bare` are lifecycles per second; `of_bare` and `of_fewest_keys` are ratios of rates within
    a round.

    `cpu_us` and `bare_cpu_us` are CPU time for one message; figures from before they were measured have none.
    """

    shape: str
    durability: str
    batch: int
    keys: int
    messages: int
    rate: Spread
    bare: Spread
    of_bare: Spread
    of_fewest_keys: Spread
    cpu_us: Spread | None = None
    bare_cpu_us: Spread | None = None


def measure_in_step(plan: Plan, home: Path, tick: Callable[[str], None]) -> list[Measured]:
    found: list[Measured] = []
    for durability in plan.durabilities:
        for batch in plan.batches:
            count = (
                int((_SYNCED_COUNT if durability == "fsync" else _COUNT)[batch] * plan.share) // batch * batch
                or batch * 5
            )
            found += _measure("in step", plan, home, durability, batch, count, tick)
    return found


def measure_drain(plan: Plan, home: Path, tick: Callable[[str], None]) -> list[Measured]:
    return [
        m
        for durability in plan.durabilities
        for m in _measure("drain", plan, home, durability, 500, plan.drained, tick)
    ]


def steps(plan: Plan) -> tuple[int, int]:
    """How often `tick` is called by the two measurements."""
    one = plan.rounds * (1 + len(plan.keys)) * len(plan.durabilities)
    return one * len(plan.batches), one


def in_step(broker: fairlead.Broker, queue: str, drafts: Iterable[list[fairlead.NewMessage]]) -> None:
    for some in drafts:
        broker.enqueue_many(queue, some)
        _claim_and_complete(broker, queue, len(some))


def drain(broker: fairlead.Broker, queue: str, drafts: list[list[fairlead.NewMessage]]) -> None:
    for some in drafts:
        broker.enqueue_many(queue, some)
    for some in drafts:
        _claim_and_complete(broker, queue, len(some))


def drafts_over(keys: int, count: int, batch: int, first: int = 0) -> list[list[fairlead.NewMessage]]:
    """Messages made beforehand, key after key, in batches."""
    bodies = _bodies()
    made = [
        fairlead.NewMessage(next(bodies), fairness_key=f"k{n % keys}") for n in range(first, first + count)
    ]
    return [made[at : at + batch] for at in range(0, count, batch)]


def _measure(
    shape: str,
    plan: Plan,
    home: Path,
    durability: Durability,
    batch: int,
    count: int,
    tick: Callable[[str], None],
) -> list[Measured]:
    label = f"{shape}, {durability}, batch {batch}"
    work_through = in_step if shape == "in step" else drain
    runs: dict[int, list[Timed]] = {keys: [] for keys in plan.keys}
    bare_runs: list[Timed] = []
    ids = IdSource()
    data = home / "lifecycle"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    with (
        Bare(data / "bare", synced=durability == "fsync") as bare,
        fairlead.open(data / "engine", durability=durability) as broker,
    ):
        for keys in plan.keys:
            broker.create_queue(f"q{keys}", visibility_timeout="10m")
            work_through(broker, f"q{keys}", drafts_over(keys, batch, batch))
        for turn in range(plan.rounds):
            raw_ids = ids.next(1_700_000_000_000 + turn * 100_000, count)
            bodies = _bodies()
            raw_bodies = [next(bodies) for _ in raw_ids]
            work = bare.lifecycles if shape == "in step" else bare.fill_and_drain
            bare_runs.append(timed(count, lambda: work(raw_ids, raw_bodies, batch)))  # noqa: B023 called at once
            tick(label)
            for keys in (plan.keys, plan.keys[::-1])[turn % 2]:
                drafts = drafts_over(keys, count, batch, first=turn * count)
                runs[keys].append(timed(count, lambda: work_through(broker, f"q{keys}", drafts)))  # noqa: B023 called at once
                tick(label)
    shutil.rmtree(data, ignore_errors=True)
    bare_rates, bare_cpu = [run.rate for run in bare_runs], spread([run.cpu_us for run in bare_runs])
    rates = {keys: [run.rate for run in got] for keys, got in runs.items()}
    fewest = rates[plan.keys[0]]
    return [
        Measured(
            shape,
            durability,
            batch,
            keys,
            count,
            rate=spread(got),
            bare=spread(bare_rates),
            of_bare=ratio(got, bare_rates),
            of_fewest_keys=ratio(got, fewest),
            cpu_us=spread([run.cpu_us for run in runs[keys]]),
            bare_cpu_us=bare_cpu,
        )
        for keys, got in rates.items()
    ]


def _claim_and_complete(broker: fairlead.Broker, queue: str, count: int) -> None:
    while count > 0:
        deliveries = broker.claim(queue, limit=count)
        if not deliveries:
            raise AssertionError(f"{count} messages of {queue} are not there")
        broker.settle([fairlead.Complete(d) for d in deliveries])
        count -= len(deliveries)


def _bodies() -> Iterator[bytes]:
    """Bodies that do not compress and are not the same object."""
    noise = os.urandom(1 << 20)
    at = random.Random(0).randrange
    while True:
        start = at(len(noise) - PAYLOAD_BYTES)
        yield noise[start : start + PAYLOAD_BYTES]
