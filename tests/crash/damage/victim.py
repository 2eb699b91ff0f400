"""Makes a data directory and dies: `python -m tests.crash.damage.victim KIND PARENT`.

`synced`: several live logs and tables in `PARENT/data`, every commit synced, and in `PARENT/older` a copy of
an earlier moment. `tables`: the same with more tables than RocksDB opens at once. `checkpoint`: a checkpoint
of a `synced` directory in `PARENT/data`. `unsynced`: one log in
`PARENT/data` with commits that no sync has covered; `PARENT/synced` says how far the sync went.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import fairlead
from fairlead import Complete, Fail, NewMessage
from fairlead.testing import ManualClock
from fairlead.testing.engine import copy_directory, families_of, start_new_log, sync

ROOT = Path(__file__).resolve().parents[3]
#: Families with rows in every log. Their flush starts a new log; the others keep the earlier logs alive.
FLUSHED = ("chunks", "counters", "states")
NUMBERS, SYNCED = 60, 30


def make_directory(parent: Path, kind: str = "synced") -> Path:
    """Run the victim in a process of its own: its caller may fork, so it must never have opened RocksDB."""
    command = [sys.executable, "-m", "tests.crash.damage.victim", kind, str(parent)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ended.returncode != -signal.SIGKILL:
        raise RuntimeError(
            f"expected the victim to kill itself, it ended with {ended.returncode}: {ended.stderr[-2000:]}"
        )
    return parent / "data"


def fill_log(broker: fairlead.Broker, turn: int) -> None:
    """Records of many sizes: within a block, over two blocks, over three."""
    for size in (3, 300, 7000, 30_000):
        broker.enqueue("work", b"%d/%d " % (turn, size) + os.urandom(size), headers={"turn": str(turn)})
    broker.enqueue_many(
        "work", [NewMessage(b"%d/%d" % (turn, n), fairness_key=f"key-{n % 3}") for n in range(20)]
    )
    broker.enqueue("other", os.urandom(70_000 if turn == 2 else 700), delay="1h")
    deliveries = broker.claim("work", limit=6)
    broker.settle([Complete(one) for one in deliveries[:2]])
    broker.settle([Fail(one, error="no connection") for one in deliveries[2:4]])


def leave_synced(parent: Path) -> fairlead.Broker:
    broker = fairlead.open(parent / "data", durability="fsync", clock=ManualClock())
    for queue in ("work", "other"):
        broker.create_queue(queue, visibility_timeout="10m")
    for turn, family in enumerate(FLUSHED):
        fill_log(broker, turn)
        start_new_log(broker, family)
        if turn == 1:
            fill_log(broker, 10)
            shutil.copytree(parent / "data", parent / "older")
    fill_log(broker, len(FLUSHED))
    return broker


def leave_tables(parent: Path) -> None:
    """At its start RocksDB opens 16 tables, and the others when it first reads them."""
    broker = fairlead.open(parent / "data", durability="fsync", clock=ManualClock())
    for queue in ("work", "other"):
        broker.create_queue(queue, visibility_timeout="10m")
    # Fewer tables in each family than start a compaction.
    for turn in range(3):
        fill_log(broker, turn)
        for family in families_of(broker):
            start_new_log(broker, family)
        if turn == 1:
            shutil.copytree(parent / "data", parent / "older")
    fill_log(broker, 3)


def leave_unsynced(parent: Path) -> None:
    """Messages are numbered. The file `synced` holds the size of the log when the first `SYNCED` of them were
    synced.
    """
    broker = fairlead.open(parent / "data", durability="os", clock=ManualClock())
    broker.create_queue("numbers")
    sizes = (10, 100, 1_000, 5_000, 40_000, 100)
    for number in range(NUMBERS):
        broker.enqueue("numbers", number.to_bytes(8, "big") + os.urandom(sizes[number % len(sizes)]))
        if number + 1 == SYNCED:
            sync(broker)
            (log,) = (parent / "data").glob("*.log")
            (parent / "synced").write_text(str(log.stat().st_size))


def leave_checkpoint(parent: Path) -> None:
    copy_directory(leave_synced(parent / "origin"), parent / "data")


def leave_closed_together(parent: Path) -> None:
    """Logs that were closed while a flush was still waiting: the next sync notes all of them in one edit of
    the manifest.
    """
    broker = fairlead.open(parent / "data", durability="os", clock=ManualClock())
    broker.create_queue("work")
    for _ in range(5):
        for family in (FLUSHED[0], "counters", "meta"):
            broker.enqueue("work", os.urandom(100))
            start_new_log(broker, family, wait=False)
    broker.enqueue("work", os.urandom(100))
    sync(broker)


KINDS = {
    "synced": leave_synced,
    "tables": leave_tables,
    "unsynced": leave_unsynced,
    "checkpoint": leave_checkpoint,
    "closed_together": leave_closed_together,
}

if __name__ == "__main__":
    KINDS[sys.argv[1]](Path(sys.argv[2]))
    os.kill(os.getpid(), signal.SIGKILL)
