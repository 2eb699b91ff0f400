"""A victim that works on a claim message by message: it takes up slices, starts, tells progress and outcomes,
and closes; to be killed at one of the commits on the way.

Each round is one call, so one commit. What it was answered it says, for whoever comes after it.
"""

from __future__ import annotations

import os
import sys
import threading

import msgspec

import fairlead
from fairlead import Broker, Complete, Extend, Fail, NewMessage, Start
from fairlead.model.delivery import Delivery
from fairlead.testing.sizes import set_sizes

from .child import die_with_parent, say
from .numbered import Victim, arm

MESSAGES = 120
#: Streams "0" to "9" of seven messages each, and the rest in none.
IN_STREAMS, STREAMS = 70, 10
SLICES, PIECE = 2, 30
PIECES = MESSAGES // PIECE
#: One to register and one for each piece of the claim; then for each slice one to take it up, and three rounds of two;
#: then a step for each piece, with the first of which the record flips.
CLAIMED = 1 + PIECES
OF_A_SLICE = 7
FLIPPED = CLAIMED + SLICES * OF_A_SLICE + 1


def main(victim: Victim) -> None:
    threading.Thread(target=die_with_parent, daemon=True).start()
    set_sizes(claim_piece_messages=PIECE, close_step_outcomes=PIECE, release_step_messages=PIECE)
    arm(victim)
    broker = fairlead.open(victim.data, durability=victim.durability)
    broker.create_queue("q", retry={"policy": "none"})
    broker.enqueue_many(
        "q",
        [NewMessage(b"%d" % n, stream=str(n % STREAMS) if n < IN_STREAMS else None) for n in range(MESSAGES)],
    )
    generation = broker.consumers.register("worker", "q", default_outcome="release").generation
    broker.consumers.claim("worker", "q", generation, 1, limit=MESSAGES)
    for at in range(SLICES):
        work(broker, generation, at)
    broker.consumers.close("worker", "q", generation, 1)
    say("close")
    # The thread that watches for the end of its parent reads on, which an orderly end of Python cannot bear.
    os._exit(0)


def work(broker: Broker, generation: int, at: int) -> None:
    """A third of the slice is begun, then told of: done, failed, or on its way. Of the last third nothing is
    said.
    """
    broker.consumers.begin_slice("worker", "q", generation, 1, slice=at, slices=SLICES)
    taken = list(broker.consumers.read("worker", "q", generation, 1, slice=at, slices=SLICES, unsettled=True))
    for round in range(3):
        part = [delivery for n, delivery in enumerate(taken) if n % 4 == round]
        broker.consumers.record("worker", "q", generation, 1, [Start(delivery) for delivery in part])
        say("begun " + names(part))
        done, failed, on_its_way = part[0::3], part[1::3], part[2::3]
        broker.consumers.record(
            "worker",
            "q",
            generation,
            1,
            [
                *[Complete(delivery) for delivery in done],
                *[Fail(delivery, "bad") for delivery in failed],
                *[Extend(delivery, progress=1, carry=delivery.payload) for delivery in on_its_way],
            ],
        )
        say("done " + names(done))
        say("failed " + names(failed))
        say("progress " + names(on_its_way))


def names(deliveries: list[Delivery]) -> str:
    return " ".join(delivery.payload.decode() for delivery in deliveries)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Victim))
