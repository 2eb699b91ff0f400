"""Large backlogs: each is prepared once, by a process that is then killed, and measured in fresh processes.

A measured process works on a copy of the directory (tables are hard links, the log is a real copy), so every
round meets the same backlog: it reopens it as a crash left it, claims and completes 50,000 messages with
their bodies read back from disk, and reports its time to reopen, its rate, and how far its resident memory
grew above what it was before the directory was opened.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import perf_counter

import msgspec

import fairlead
from bench.lifecycle import PAYLOAD_BYTES, drafts_over
from bench.rates import Spread, ratio, spread

KEYS = 1_000
BATCH = 500


class Backlog(msgspec.Struct, frozen=True):
    """`random_keys`: over so many keys drawn at random, in batches of 500; 0: over 1,000 keys in turn."""

    ready: int
    waiting: int = 0
    random_keys: int = 0

    @property
    def label(self) -> str:
        label = f"{self.ready:,} ready"
        if self.random_keys:
            label += f" over {self.random_keys:,} random keys"
        return label + (f" beside {self.waiting:,} waiting" if self.waiting else "")


class Plan(msgspec.Struct, frozen=True):
    rounds: int = 5
    claimed: int = 50_000
    backlogs: tuple[Backlog, ...] = (
        Backlog(100_000),
        Backlog(100_000, waiting=100_000),
        Backlog(1_000_000),
        Backlog(1_000_000, random_keys=100_000),
        Backlog(5_000_000),
    )


QUICK = Plan(
    rounds=3,
    claimed=5_000,
    backlogs=(
        Backlog(10_000),
        Backlog(10_000, waiting=10_000),
        Backlog(10_000, random_keys=1_000),
        Backlog(100_000),
    ),
)


class Visit(msgspec.Struct, frozen=True):
    """What one fresh process saw: messages claimed and completed per second, and claimed alone. Memory in MB."""

    reopen_s: float
    rate: float
    claim_rate: float
    opened_mb: float
    grown_mb: float


class Measured(msgspec.Struct, frozen=True):
    backlog: str
    claimed: int
    disk_mb: float
    prepared_per_s: float
    reopen_s: Spread
    rate: Spread
    of_smallest: Spread
    opened_mb: Spread
    grown_mb: Spread


def bytes_needed(plan: Plan) -> int:
    """Disk for all backlogs, and for tables that compaction holds twice."""
    return int(sum(b.ready + b.waiting for b in plan.backlogs) * (PAYLOAD_BYTES + 200) * 1.6) + (1 << 30)


def steps(plan: Plan) -> int:
    return len(plan.backlogs) * (1 + plan.rounds)


def measure(plan: Plan, home: Path, tick: Callable[[str], None]) -> list[Measured]:
    free = shutil.disk_usage(home).free
    if free < bytes_needed(plan):
        raise SystemExit(
            f"expected {bytes_needed(plan) / 1e9:.1f} GB free at {home} for the backlogs, got {free / 1e9:.1f} GB; use --dir or --quick"
        )
    bases: list[tuple[Path, float]] = []
    for number, backlog in enumerate(plan.backlogs):
        base = home / f"backlog-{number}"
        shutil.rmtree(base, ignore_errors=True)
        bases.append(
            (
                base,
                float(
                    run_child("bench.backlog", "prepare", str(base), msgspec.json.encode(backlog).decode())
                ),
            )
        )
        tick(f"prepared {backlog.label}")
    visits: list[list[Visit]] = [[] for _ in plan.backlogs]
    for _ in range(plan.rounds):
        for number, backlog in enumerate(plan.backlogs):
            visits[number].append(visit_copy(bases[number][0], home / "visited", plan.claimed))
            tick(f"visited {backlog.label}")
    found = [
        _sum_up(b, plan, base, rate, seen, visits[0])
        for b, (base, rate), seen in zip(plan.backlogs, bases, visits, strict=True)
    ]
    for base, _ in bases:
        shutil.rmtree(base, ignore_errors=True)
    return found


def disk_mb(base: Path) -> float:
    return sum(f.stat().st_size for f in base.rglob("*") if f.is_file()) / 1e6


def _sum_up(
    backlog: Backlog, plan: Plan, base: Path, prepared: float, seen: list[Visit], smallest: list[Visit]
) -> Measured:
    return Measured(
        backlog.label,
        plan.claimed,
        disk_mb(base),
        prepared,
        spread([v.reopen_s for v in seen]),
        spread([v.rate for v in seen]),
        ratio([v.rate for v in seen], [v.rate for v in smallest]),
        spread([v.opened_mb for v in seen]),
        spread([v.grown_mb for v in seen]),
    )


def prepare(data: Path, backlog: Backlog) -> None:
    """Fill a directory and die without closing it, as in a crash: the log is left for the next open to
    replay.
    """
    broker = fairlead.open(data, durability="os")
    broker.create_queue("work", visibility_timeout="10m")
    began = perf_counter()
    rng = Random(backlog.ready)
    for at in range(0, backlog.ready, 10_000):
        (drafts,) = drafts_over(KEYS, min(10_000, backlog.ready - at), 10_000, first=at)
        if not backlog.random_keys:
            broker.enqueue_many("work", drafts)
            continue
        for start in range(0, len(drafts), BATCH):
            keys = [f"k{rng.randrange(backlog.random_keys)}" for _ in range(BATCH)]
            some = zip(drafts[start : start + BATCH], keys, strict=False)
            broker.enqueue_many(
                "work", [fairlead.NewMessage(draft.payload, fairness_key=key) for draft, key in some]
            )
    took_s = perf_counter() - began
    for at in range(0, backlog.waiting, 10_000):
        (drafts,) = drafts_over(KEYS, min(10_000, backlog.waiting - at), 10_000, first=at)
        broker.enqueue_many(
            "work", [fairlead.NewMessage(d.payload, fairness_key=d.fairness_key, delay="1d") for d in drafts]
        )
    print(backlog.ready / took_s, flush=True)
    os._exit(0)


def visit(data: Path, claimed: int) -> Visit:
    before_mb = _memory_mb("VmRSS")
    began = perf_counter()
    broker = fairlead.open(data, durability="os")
    reopen_s = perf_counter() - began
    opened_mb = _memory_mb("VmHWM") - before_mb
    began, left, claiming_s = perf_counter(), claimed, 0.0
    while left > 0:
        asked = perf_counter()
        deliveries = broker.claim("work", limit=min(BATCH, left))
        claiming_s += perf_counter() - asked
        if not deliveries or any(len(d.payload) != PAYLOAD_BYTES for d in deliveries):
            raise AssertionError(f"{left} messages or their bodies are not there")
        broker.settle([fairlead.Complete(d) for d in deliveries])
        left -= len(deliveries)
    took_s = perf_counter() - began
    grown_mb = _memory_mb("VmHWM") - before_mb
    broker.close()
    return Visit(reopen_s, claimed / took_s, claimed / claiming_s, opened_mb, grown_mb)


def visit_copy(base: Path, copy: Path, claimed: int) -> Visit:
    """What a fresh process sees of a directory, which stays as it is."""
    _copy(base, copy)
    seen = msgspec.json.decode(run_child("bench.backlog", "visit", str(copy), str(claimed)), type=Visit)
    shutil.rmtree(copy, ignore_errors=True)
    return seen


def run_child(module: str, verb: str, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", module, verb, *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def _copy(base: Path, copy: Path) -> None:
    """Tables never change once written, so a link will do; everything else is copied."""
    shutil.rmtree(copy, ignore_errors=True)
    for source in base.rglob("*"):
        if source.is_file():
            target = copy / source.relative_to(base)
            target.parent.mkdir(parents=True, exist_ok=True)
            (os.link if source.suffix == ".sst" else shutil.copyfile)(source, target)


def _memory_mb(field: str) -> float:
    """`VmRSS` is resident now, `VmHWM` the most it ever was."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) / 1024


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        prepare(Path(sys.argv[2]), msgspec.json.decode(sys.argv[3], type=Backlog))
    else:
        print(msgspec.json.encode(visit(Path(sys.argv[2]), int(sys.argv[3]))).decode())
