"""A victim that publishes: it stages a write, says "ready", and publishes it, to be killed at one of the
commits on the way.

In a later life it stages and publishes the same write again, as a driver does that was told to do its batch
over.
"""

from __future__ import annotations

import sys
import threading

import msgspec

import fairlead
from fairlead import Broker, NewMessage
from fairlead.model.limits import PUBLISH_STEP_MESSAGES
from fairlead.testing import Durability
from fairlead.testing.steps import What, kill_process_at

from .child import die_with_parent, say

TOKEN = "query/7"
#: In the order in which they are published; "stale" is of an attempt that lost, and is not listed.
CHUNKS = {"b": PUBLISH_STEP_MESSAGES + 1000, "a": 2 * PUBLISH_STEP_MESSAGES, "dead": 500, "c": 1000}
#: The decision; three steps of the first two chunks; the dead one; the last.
COMMITS = 6


class Victim(msgspec.Struct, frozen=True):
    """`die_at` counts commits that stage ("stage") or publish ("publish"); 0: it lives until it is killed
    from outside.
    """

    data: str
    durability: Durability
    die_in: str
    die_at: int
    die_before: bool


def main(victim: Victim) -> None:
    threading.Thread(target=die_with_parent, daemon=True).start()
    arm(victim)
    broker = fairlead.open(victim.data, durability=victim.durability)
    if "q" not in {info.name for info in broker.queues()}:
        broker.create_queue("q")
    stage_all(broker)
    say("ready")
    say(broker.staging.publish(TOKEN, "q", [*CHUNKS]).outcome)
    threading.Event().wait()


def payloads(chunk: str) -> list[bytes]:
    return [f"{chunk}/{n}".encode() for n in range(CHUNKS[chunk])]


def stage_all(broker: Broker) -> None:
    broker.staging.stage(TOKEN, "stale", "q", [NewMessage(b"stale")])
    for chunk in reversed(CHUNKS):
        messages = [
            NewMessage(payload, stream="s" if n % 100 == 0 else None)
            for n, payload in enumerate(payloads(chunk))
        ]
        broker.staging.stage(
            TOKEN, chunk, "q", messages, dead=("validation_failure", "bad") if chunk == "dead" else None
        )


def arm(victim: Victim) -> None:
    """SIGKILL this very process at the n-th commit of its kind: just before it, or just after. Before
    opening: steps may go on in there.
    """
    words: tuple[What, ...] = ("stage",) if victim.die_in == "stage" else ("publish", "end publish")
    kill_process_at(victim.die_at, *words, before=victim.die_before)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Victim))
