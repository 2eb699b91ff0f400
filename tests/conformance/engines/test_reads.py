"""How often a verb asks the store: not more often for more messages, because a backend may be a network away.

What takes its messages in steps asks a few times a step. What only the disk knows of several lanes or streams is read
lane by lane, stream by stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from fairlead import Complete, Delivery, Fail, NewMessage
from fairlead.engine import cold
from fairlead.engine.broker import Broker
from fairlead.engine.memory import Memory
from fairlead.engine.reduce import letting_go
from fairlead.model.limits import HOLD_MESSAGES
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.testing import ManualClock
from fairlead.testing.faulty import FaultyStore


class Case(NamedTuple):
    make: Callable[[Broker, int], Any]
    #: With what `make` returned.
    act: Callable[[Broker, Any], object]


def ready(broker: Broker, count: int, **traits: Any) -> list[str]:
    return broker.enqueue_many("q", [NewMessage(b"x", **traits) for _ in range(count)])


def dead(broker: Broker, count: int) -> list[str]:
    ids = ready(broker, count)
    broker.bury("q", ids)
    return ids


def held(broker: Broker, count: int) -> list[str]:
    ids = ready(broker, count)
    broker.hold("q", ids)
    return ids


def in_lanes(broker: Broker, count: int) -> list[str]:
    return broker.enqueue_many("q", [NewMessage(b"x", fairness_key=f"k{n}") for n in range(count)])


def in_streams(broker: Broker, count: int) -> list[str]:
    """Two messages in each: the second one follows when the first one is settled."""
    return broker.enqueue_many("q", [NewMessage(b"x", stream=f"s{n % count}") for n in range(2 * count)])


def leased(make: Callable[[Broker, int], Any]) -> Callable[[Broker, int], list[Delivery]]:
    def claimed(broker: Broker, count: int) -> list[Delivery]:
        make(broker, count)
        return broker.claim("q", limit=count)

    return claimed


def claim(broker: Broker, made: Any) -> None:
    assert len(broker.claim("q", limit=len(made))) == len(made)


def wait(broker: Broker, made: Any) -> None:
    broker.clock.advance(seconds=61)  # type: ignore[attr-defined]


def numbered(broker: Broker, made: Any) -> None:
    generation = broker.consumers.register("etl", "q").generation
    assert broker.consumers.claim("etl", "q", generation, 1).count == len(made)
    assert len(list(broker.consumers.read("etl", "q", generation, 1))) == len(made)


def complete(broker: Broker, made: list[Delivery]) -> None:
    broker.settle([Complete(one) for one in made])


def fail(broker: Broker, made: list[Delivery]) -> None:
    broker.settle([Fail(one) for one in made])


#: In one transaction, or in one for each piece of a claim.
WHOLE = {
    "claim of dead letters": Case(dead, lambda broker, made: broker.claim("q.dlq", limit=len(made))),
    "numbered claim": Case(ready, numbered),
    "complete in lanes": Case(leased(in_lanes), complete),
    "complete": Case(leased(ready), complete),
    "peek": Case(ready, lambda broker, made: broker.peek("q", limit=len(made))),
    "browse": Case(ready, lambda broker, made: broker.browse("q")),
    "enqueue into lanes": Case(
        lambda broker, count: range(count), lambda broker, made: in_lanes(broker, len(made))
    ),
    "enqueue into streams": Case(
        lambda broker, count: range(count), lambda broker, made: in_streams(broker, len(made))
    ),
    "delete of a queue": Case(ready, lambda broker, made: broker.delete_queue("q")),
}
#: A claim reads what it lacks before its transaction, in holds of the lock that are bounded as those of the others.
IN_STEPS = {
    "claim": Case(ready, claim),
    "claim of a stream": Case(
        lambda broker, count: ready(broker, count, stream="s"),
        lambda broker, made: broker.claim("q", limit=len(made), max_per_stream=1000),
    ),
    "claim of streams": Case(in_streams, lambda broker, made: broker.claim("q", limit=len(made) // 2)),
    "fail": Case(leased(ready), fail),
    "redrive": Case(dead, lambda broker, made: broker.redrive("q")),
    "redrive by ids": Case(dead, lambda broker, made: broker.redrive("q", ids=made)),
    "retry": Case(dead, lambda broker, made: broker.retry("q", made)),
    "reset": Case(dead, lambda broker, made: broker.reset("q", made)),
    "drop": Case(dead, lambda broker, made: broker.drop("q", made)),
    "prune": Case(dead, lambda broker, made: broker.prune("q", which="dead")),
    "unhold": Case(held, lambda broker, made: broker.unhold("q", made)),
    "purge": Case(ready, lambda broker, made: broker.purge("q")),
    "purge of dead letters": Case(dead, lambda broker, made: broker.purge("q.dlq")),
    "drain": Case(ready, lambda broker, made: broker.drain("q")),
    "ends of waits": Case(lambda broker, count: ready(broker, count, delay="1m"), wait),
    "ends of lives": Case(lambda broker, count: ready(broker, count, ttl="1m"), wait),
    "ends of leases": Case(leased(ready), wait),
}
#: Where the disk is asked about each lane or stream.
ONE_BY_ONE = {
    "claim of lanes": Case(in_lanes, claim),
    "complete in streams": Case(leased(in_streams), complete),
    "fail in streams": Case(leased(in_streams), fail),
}
EVERY = WHOLE | IN_STEPS | ONE_BY_ONE
MESSAGES = 200
STEPS = MESSAGES // HOLD_MESSAGES


def reads(name: str, count: int, hot: int) -> int:
    with patch.multiple(cold, HOT_MESSAGES=hot, CACHED_MESSAGES=hot):
        store = FaultyStore(DictionaryStore())
        with Broker(store, clock=ManualClock()) as broker:
            broker.create_queue("q", retry="immediate")
            made = EVERY[name].make(broker, count)
            before = store.reads.total()
            EVERY[name].act(broker, made)
            return store.reads.total() - before


@pytest.mark.parametrize(
    "name", sorted(EVERY.keys() - {"ends of waits", "ends of lives", "ends of leases", "unhold", "purge"})
)
def test_nothing_is_read_that_memory_holds(name: str) -> None:
    assert reads(name, MESSAGES, cold.HOT_MESSAGES) == 0


@pytest.mark.parametrize("name", WHOLE)
def test_a_batch_on_disk_is_read_as_often_as_one_message(name: str) -> None:
    assert reads(name, MESSAGES, 0) <= reads(name, 1, 0) + 2


@pytest.mark.parametrize("hot", [cold.HOT_MESSAGES, 0], ids=["hot", "cold"])
@pytest.mark.parametrize("name", IN_STEPS)
def test_each_step_reads_a_few_times(name: str, hot: int) -> None:
    assert reads(name, MESSAGES, hot) <= reads(name, 1, hot) + 6 * STEPS


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_each_lane_on_disk_is_read_once_and_each_stream_twice(name: str) -> None:
    times = 2 if "streams" in name else 1
    assert reads(name, MESSAGES, 0) <= reads(name, 1, 0) + times * MESSAGES + 2 * STEPS


def test_a_full_cache_of_cold_chunks_is_not_looked_through_at_every_transaction() -> None:
    most, looks = 25_600, []
    let_cold_chunks_go = letting_go._let_cold_chunks_go

    def counted(memory: Memory, left: int) -> None:
        looks.append(memory.cached_messages)
        let_cold_chunks_go(memory, left)

    sizes = patch.multiple(cold, HOT_MESSAGES=0, CACHED_MESSAGES=most)
    with sizes, patch.object(letting_go, "_let_cold_chunks_go", counted):
        broker = Broker(DictionaryStore(), clock=ManualClock())
        broker.create_queue("q")
        fitting = most // (1 + cold.WEIGHT_OF_CHUNK)
        for _ in range(fitting + 400):
            broker.enqueue("q", b"x")
            assert broker.engine.memory.cached_messages <= most
        # The oldest messages are wanted first: none of them made way for a new one.
        assert looks == []
        for _ in range(fitting + 400):
            assert len(broker.claim("q")) == 1
            assert broker.engine.memory.cached_messages <= most
        # Each claim of the last ones read a chunk, and 11 at a time made way, or one more.
        assert 400 // 13 <= len(looks) <= 400 // 11
        assert broker.engine.memory.cached_messages > most * 0.99
        broker.close()
