"""Fills a disk through a broker, tries everything that could use up its reserve, and waits to be killed: a
program of its own.

    python -m tests.conformance.filling DIRECTORY RESERVE_BYTES

It prints the ids of what it holds under a lease, and then "refused".
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import fairlead
from fairlead import Delivery, Extend, Fail, NewMessage, Settings
from fairlead.engine.broker import Broker
from fairlead.errors import StoreFull

LEASES = 500
#: So often in a row a call must be refused: logs that are written as tables in the background give a little
#: room back.
REFUSALS = 200


def until_refused(call: Callable[[], object]) -> int:
    refused = done = 0
    while refused < REFUSALS:
        try:
            if call() == "store_full":
                refused += 1
                continue
        except StoreFull as full:
            if full.free_bytes >= full.needed_bytes:
                raise AssertionError(f"refused although there was room: {full}") from full
            refused += 1
            continue
        refused, done = 0, done + 1
    return done


def hammer(broker: Broker, held: list[Delivery]) -> None:
    number = 0

    def carry() -> object:
        nonlocal number
        number += 1
        return broker.settle([Extend(held[number % LEASES], carry=os.urandom(60_000))])[0].outcome

    def fail() -> object:
        return [broker.settle([Fail(delivery, "e" * 8000)]) for delivery in broker.claim("q", limit=20)]

    until_refused(lambda: broker.enqueue_many("q", [NewMessage(os.urandom(10_000))] * 10))
    until_refused(carry)
    until_refused(lambda: broker.config.set(f"key{number}", "x" * 60_000))
    until_refused(
        lambda: broker.audit_trail.begin("who", "name", "from", "redrive", "q", {"detail": "x" * 200})
    )
    until_refused(fail)
    for _ in range(2000):
        broker.settle([Extend(delivery) for delivery in held[:20]])
        broker.audit_trail.begin("who", "name", "from", "purge", "q", {"detail": "x" * 200})


def main(path: Path, reserve_bytes: int) -> None:
    broker = fairlead.open(path, durability="os", settings=Settings(disk_reserve_bytes=reserve_bytes))
    broker.create_queue("q", visibility_timeout="1h", retry="immediate")
    until_refused(lambda: broker.enqueue_many("q", [NewMessage(os.urandom(10_000)) for _ in range(100)]))
    held = broker.claim("q", limit=LEASES)
    for _ in range(2):
        hammer(broker, held)
    print(*[delivery.id for delivery in held])
    print("refused", flush=True)
    time.sleep(3600)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
