"""A victim that reads by number: it claims, reads, records and closes, to be killed at one of the commits on
the way.

Its pieces and steps are small, so that there are many of them. What it was answered it says, for whoever
comes after it.
"""

from __future__ import annotations

import sys
import threading
from hashlib import sha256
from typing import Literal

import msgspec

import fairlead
from fairlead import Broker, Fail, NewMessage
from fairlead.testing import Durability
from fairlead.testing.sizes import set_sizes
from fairlead.testing.steps import kill_process_at

from .child import die_with_parent, say

MESSAGES, LIMIT = 1000, 900
IN_STREAM = 450
PIECE = 200
#: One to register, five pieces, two calls that record and one that chooses; then a step for each piece, with the first
#: of which the record flips.
REGISTERED, SEALED, CHOSEN, FLIPPED, ENDED = 1, 6, 9, 10, 14


class Victim(msgspec.Struct, frozen=True):
    """`die_at` counts the commits that save the consumer."""

    data: str
    durability: Durability
    end: Literal["close", "release"]
    die_at: int
    die_before: bool


def main(victim: Victim) -> None:
    threading.Thread(target=die_with_parent, daemon=True).start()
    set_sizes(claim_piece_messages=PIECE, release_step_messages=PIECE)
    arm(victim)
    broker = fairlead.open(victim.data, durability=victim.durability)
    if "q" not in {info.name for info in broker.queues()}:
        broker.create_queue("q", retry={"policy": "none"})
        broker.enqueue_many(
            "q", [NewMessage(b"%d" % n, stream="s" if n < IN_STREAM else None) for n in range(MESSAGES)]
        )
    work(broker, victim.end)
    threading.Event().wait()


def work(broker: Broker, end: str) -> None:
    generation = broker.consumers.register("etl", "q").generation
    broker.consumers.claim("etl", "q", generation, 1, limit=LIMIT)
    taken = list(broker.consumers.read("etl", "q", generation, 1))
    say(f"claimed {digest(broker, generation)}")
    broker.consumers.record(
        "etl", "q", generation, 1, [Fail(delivery, "lost try") for delivery in taken[::7]], part="0"
    )
    broker.consumers.record(
        "etl", "q", generation, 1, [Fail(delivery, "bad") for delivery in taken[::30]], part="1"
    )
    broker.consumers.choose("etl", "q", generation, 1, ["1"])
    say("recorded")
    if end == "close":
        broker.consumers.close("etl", "q", generation, 1)
    else:
        broker.consumers.release("etl", "q")
    say(end)


def digest(broker: Broker, generation: int) -> str:
    """Of everything the claim gives, in its order."""
    rows = [
        (delivery.id, delivery.payload, delivery.seq, delivery.lease)
        for delivery in broker.consumers.read("etl", "q", generation, 1)
    ]
    return sha256(repr(rows).encode()).hexdigest()


def arm(victim: Victim) -> None:
    """SIGKILL this very process at the n-th commit of its kind, just before it or just after; armed before
    opening, where steps may go on.
    """
    kill_process_at(victim.die_at, "save consumer", before=victim.die_before)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Victim))
