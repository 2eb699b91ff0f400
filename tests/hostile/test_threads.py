"""The broker in process, with many threads at what a door relies on."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fairlead import Complete, NewMessage, errors
from fairlead.testing import CommitStep, open_in_memory
from fairlead.testing.steps import observe
from tests.turns import new_place, next_place, turn

THREADS, TURNS = 8, 60


def test_requests_repeated_from_many_threads_take_effect_once_and_answered_ones_are_forgotten() -> None:
    told = threading.Lock()
    facts = 0

    def watch(step: CommitStep) -> None:
        nonlocal facts
        with told:
            facts += len(step.words)
        raise RuntimeError("an observer that always fails")

    with open_in_memory() as broker:
        broker.create_queue("q")
        observe(broker, watch)

        def work(seed: int) -> tuple[set[str], set[str]]:
            chance = random.Random(seed)
            place = new_place(broker)
            made, completed = set[str](), set[str]()
            for at in range(TURNS):
                held = broker.claim("q", limit=3, consumer=f"c{seed}")
                asked = {
                    "settle": [Complete(delivery) for delivery in held],
                    "enqueue": {"q": [NewMessage(f"{seed}/{at}".encode())] * 2},
                    "place": place,
                }
                first = turn(broker, f"c{seed}", **asked)  # type: ignore[arg-type]
                for _ in range(chance.randrange(3)):
                    again = turn(broker, f"c{seed}", **asked)  # type: ignore[arg-type]
                    assert (again.settled, again.enqueued) == (first.settled, first.enqueued)
                made.update(first.enqueued["q"])
                completed.update(result.id for result in first.settled if result.outcome == "completed")
                if at:
                    with pytest.raises(errors.RequestExpired):
                        turn(broker, "", place={**place, "number": at, "arrived": 0})
                place = next_place(place)
            return made, completed

        with ThreadPoolExecutor(THREADS) as threads:
            results = list(threads.map(work, range(THREADS)))
        made = set().union(*(one for one, _ in results))
        completed = set().union(*(one for _, one in results))
        assert len(made) == THREADS * TURNS * 2
        assert sum(len(one) for _, one in results) == len(completed)
        stats = broker.stats("q")
        assert stats.ready + stats.leased == len(made - completed)
        assert facts > 0


def test_waits_that_are_over_are_over_for_all_and_nothing_is_handed_out_twice() -> None:
    with open_in_memory() as broker:
        broker.create_queue("q")
        began = threading.Barrier(THREADS + 1)

        def wait(_: int) -> list[str]:
            began.wait()
            got: list[str] = []
            while deliveries := broker.claim("q", limit=2, wait="1h"):
                got += [delivery.id for delivery in deliveries]
            return got

        with ThreadPoolExecutor(THREADS) as threads:
            waiting = [threads.submit(wait, number) for number in range(THREADS)]
            began.wait()
            sent = [
                message_id
                for _ in range(50)
                for message_id in broker.enqueue_many("q", [NewMessage(b"x")] * 3)
            ]
            broker.interrupt_waits()
            got = [message_id for one in waiting for message_id in one.result(60)]
        left = [delivery.id for delivery in broker.claim("q", limit=1000, wait="1h")]
        assert sorted(got + left) == sorted(sent)
