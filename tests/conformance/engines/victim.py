"""A process that works on an engine until it is killed: `python -m tests.conformance.engines.victim DIR SEED`.

Prints what it is about to do and what was confirmed, a line each: `sent N` and `enqueued N` before and after an
enqueue of message N, `settling N` and `completed N` before and after its completion.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from random import Random

from fairlead import Complete, Fail, NewMessage, Release
from fairlead.engine.engine import Engine
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import EnqueueMany
from fairlead.verbs.queues import CreateQueue
from fairlead.verbs.settle import Settle


def say(word: str, number: int) -> None:
    # One write, which a pipe takes whole: a line that the kill cuts off would name another message.
    os.write(1, f"{word} {number}\n".encode())


def main() -> None:
    random, number = Random(int(sys.argv[2])), 0
    engine = Engine(RocksKeyValueStore.open(Path(sys.argv[1])))
    engine.do(CreateQueue("q", {"visibility_timeout": "1h"}))
    while True:
        numbers = range(number, number + random.choice((1, 1, 5, 60)))
        number = numbers.stop
        for one in numbers:
            say("sent", one)
        engine.do(EnqueueMany("q", [NewMessage(b"%d" % one, fairness_key=f"k{one % 5}") for one in numbers]))
        for one in numbers:
            say("enqueued", one)
        done = []
        for delivery in engine.do(Claim("q", random.choice((1, 7, 50)))):
            match random.randrange(4):
                case 0:
                    engine.do(Settle([Fail(delivery)]))
                case 1:
                    engine.do(Settle([Release(delivery)]))
                case _:
                    done.append(delivery)
        for delivery in done:
            say("settling", int(delivery.payload))
        engine.do(Settle([Complete(delivery) for delivery in done]))
        for delivery in done:
            say("completed", int(delivery.payload))


if __name__ == "__main__":
    main()
