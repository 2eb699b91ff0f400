"""Streams beside the same messages without: does order cost anything to those who need not wait?

*Single*: a million streams of one message each. *Blocked*: a hundred thousand streams whose first message
failed and waits a day, each with one more behind it, and then free messages in streams of their own. Without
streams the same messages are there, and what would be blocked waits as well. As with backlogs, a directory is
filled by a process that is then killed, and copies of it are opened by fresh processes that claim and
complete what is free.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

import fairlead
from bench.backlog import KEYS, Visit, disk_mb, run_child, visit_copy
from bench.lifecycle import PAYLOAD_BYTES, drafts_over
from bench.rates import Spread, ratio, spread

_BATCH = 10_000


class Shape(msgspec.Struct, frozen=True):
    kind: Literal["single", "blocked"]
    streams: int

    @property
    def label(self) -> str:
        return (
            f"{self.streams:,} streams of one message"
            if self.kind == "single"
            else f"{self.streams:,} blocked streams ahead of free ones"
        )

    def messages(self, claimed: int) -> int:
        return self.streams if self.kind == "single" else self.streams * 2 + claimed


class Plan(msgspec.Struct, frozen=True):
    rounds: int = 5
    claimed: int = 50_000
    shapes: tuple[Shape, ...] = (Shape("single", 1_000_000), Shape("blocked", 100_000))


QUICK = Plan(rounds=3, claimed=5_000, shapes=(Shape("single", 50_000), Shape("blocked", 10_000)))


class Measured(msgspec.Struct, frozen=True):
    """Rates of claiming and completing; `of_without` and `claims_of_without` (claiming alone) are round by
    round. Memory in MB.
    """

    shape: str
    claimed: int
    disk_mb: float
    reopen_s: Spread
    rate: Spread
    without: Spread
    of_without: Spread
    claims: Spread
    claims_of_without: Spread
    grown_mb: Spread
    grown_without_mb: Spread


def steps(plan: Plan) -> int:
    return len(plan.shapes) * 2 * (1 + plan.rounds)


def measure(plan: Plan, home: Path, tick: Callable[[str], None]) -> list[Measured]:
    needed = int(
        2 * max(shape.messages(plan.claimed) for shape in plan.shapes) * (PAYLOAD_BYTES + 300) * 1.6
    ) + (1 << 30)
    free = shutil.disk_usage(home).free
    if free < needed:
        raise SystemExit(
            f"expected {needed / 1e9:.1f} GB free at {home} for the streams, got {free / 1e9:.1f} GB; use --dir or --quick"
        )
    return [_measure(shape, plan, home, tick) for shape in plan.shapes]


def _measure(shape: Shape, plan: Plan, home: Path, tick: Callable[[str], None]) -> Measured:
    with_streams, without = home / "with-streams", home / "without-streams"
    for base, ordered in ((with_streams, True), (without, False)):
        shutil.rmtree(base, ignore_errors=True)
        run_child(
            "bench.streams",
            "prepare",
            str(base),
            msgspec.json.encode(shape).decode(),
            str(plan.claimed),
            "ordered" if ordered else "free",
        )
        tick(f"prepared {shape.label}")
    seen: dict[Path, list[Visit]] = {with_streams: [], without: []}
    for turn in range(plan.rounds):
        for base in ((with_streams, without), (without, with_streams))[turn % 2]:
            seen[base].append(visit_copy(base, home / "visited", plan.claimed))
            tick(f"visited {shape.label}")
    ordered_visits, free_visits = seen[with_streams], seen[without]
    rates, free_rates = [v.rate for v in ordered_visits], [v.rate for v in free_visits]
    claims, free_claims = [v.claim_rate for v in ordered_visits], [v.claim_rate for v in free_visits]
    found = Measured(
        shape.label,
        plan.claimed,
        disk_mb(with_streams),
        spread([v.reopen_s for v in ordered_visits]),
        spread(rates),
        spread(free_rates),
        ratio(rates, free_rates),
        spread(claims),
        ratio(claims, free_claims),
        spread([v.grown_mb for v in ordered_visits]),
        spread([v.grown_mb for v in free_visits]),
    )
    shutil.rmtree(with_streams, ignore_errors=True)
    shutil.rmtree(without, ignore_errors=True)
    return found


def prepare(data: Path, shape: Shape, claimed: int, *, ordered: bool) -> None:
    """Fill a directory and die without closing it."""
    broker = fairlead.open(data, durability="os")
    broker.create_queue("work", visibility_timeout="10m")
    if shape.kind == "single":
        _enqueue(broker, "s", shape.streams, ordered=ordered)
    else:
        _enqueue(broker, "blocked", shape.streams, ordered=ordered)
        left = shape.streams
        while left:
            deliveries = broker.claim("work", limit=min(left, 1000))
            broker.settle([fairlead.Fail(delivery, retry_in="1d") for delivery in deliveries])
            left -= len(deliveries)
        _enqueue(broker, "blocked", shape.streams, ordered=ordered, delay=None if ordered else "1d")
        _enqueue(broker, "free", claimed, ordered=ordered)
    ready_now = broker.stats("work").ready
    if ready_now != (shape.streams if shape.kind == "single" else claimed + shape.streams * ordered):
        raise AssertionError(f"{ready_now} messages are ready")
    os._exit(0)


def _enqueue(
    broker: fairlead.Broker, prefix: str, count: int, *, ordered: bool, delay: str | None = None
) -> None:
    for at in range(0, count, _BATCH):
        (drafts,) = drafts_over(KEYS, min(_BATCH, count - at), _BATCH, first=at)
        broker.enqueue_many(
            "work",
            [
                fairlead.NewMessage(
                    draft.payload,
                    fairness_key=draft.fairness_key,
                    stream=f"{prefix}-{at + n}" if ordered else None,
                    delay=delay,
                )
                for n, draft in enumerate(drafts)
            ],
        )


if __name__ == "__main__":
    prepare(
        Path(sys.argv[2]),
        msgspec.json.decode(sys.argv[3], type=Shape),
        int(sys.argv[4]),
        ordered=sys.argv[5] == "ordered",
    )
