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
from fairlead.testing import Durability
from fairlead.testing.sizes import set_sizes
from fairlead.testing.steps import What, kill_process_at

from .child import die_with_parent, say

TOKEN = "query/7"
#: Messages of a part, and of a step of a publish.
PART = 3000
#: In the order in which they are published; "stale" is of an attempt that lost, and is not listed.
CHUNKS = {"b": PART + 1000, "a": 2 * PART, "dead": 500, "c": 1000}
#: Two steps for each of the first two chunks, the first of which decides; one for the other two.
COMMITS = 5
#: Of the commits that stage: chunks that are listed after each. "stale", "c" and "dead" are one commit each; "a" and "b" have two
#: parts each, and are listed with the third commit.
LISTED = [1, 2, 3, 3, 3, 4, 4, 4, 5]


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
    set_sizes(staged_part_messages=PART, publish_step_messages=PART)
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
