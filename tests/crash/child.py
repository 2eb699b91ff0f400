"""The victim: opens the broker, says "ready", and works until it is killed. Started by `rounds.py` with a
`Life` as JSON.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import msgspec

import fairlead
from fairlead.clock import SystemClock
from fairlead.testing import Durability

from .bulk import Bulk, die_at_step
from .journal import Journal, RecordedBroker
from .logs import ManyLogs
from .workload import Workload

LOADS = {"load": Workload, "logs": ManyLogs}


class Life(msgspec.Struct, frozen=True):
    """`work` is one of `LOADS` or the verb of a bulk operation. `die_at` counts steps of that operation; 0
    leaves the kill to the parent.
    """

    data: str
    journals: str
    seed: int
    number: int
    work: str
    durability: Durability
    die_at: int = 0
    die_before: bool = False

    def journal(self, number: int) -> Path:
        return Path(self.journals) / f"life-{number:03}.jsonl"


def main(life: Life) -> None:
    threading.Thread(target=die_with_parent, daemon=True).start()
    if life.die_at and life.number:
        die_at_step(
            life.die_at, before=life.die_before
        )  # armed before opening, because an intent may resume in there
    broker = fairlead.open(life.data, durability=life.durability)
    threading.Thread(target=do_what_is_due, args=(broker,), daemon=True).start()
    recorded = RecordedBroker(broker, Journal(life.journal(life.number), life.number, SystemClock().now_ms))
    if life.work in LOADS:
        workload = LOADS[life.work](recorded, seed=life.seed, life=life.number)
        workload.prepare(life.journal(life.number - 1) if life.number else None)
        say("ready")
        workload.run()
    bulk = Bulk(recorded, verb=life.work, seed=life.seed, life=life.number)
    if life.number == 0:
        bulk.prepare()
        if life.die_at:
            die_at_step(life.die_at, before=life.die_before)
        say("ready")
        bulk.run()
    else:
        bulk.resume()
        say("ready")
    while bulk.failure is None:
        time.sleep(0.05)
    raise bulk.failure


def do_what_is_due(broker: fairlead.Broker) -> None:
    """Beside the broker's own timer, and in place of it for an engine that has none."""
    while True:
        broker.run_due()
        time.sleep(0.005)


def die_with_parent() -> None:
    """The parent holds the other end of stdin; nobody else would end a victim whose parent was interrupted."""
    sys.stdin.buffer.read()
    os._exit(1)


def say(word: str) -> None:
    print(word, flush=True)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Life))
