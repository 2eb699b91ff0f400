"""What the engine promises to every request: synced before the answer, few reads, nothing reloaded in vain, and no
answer from a former owner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairlead import Complete, Delivery, Extend, Fail, NewMessage, Release
from fairlead.engine.broker import Broker
from fairlead.errors import StaleEpoch, StoreFull
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.testing import ManualClock
from fairlead.testing.faulty import FaultyStore

Act = Callable[[Broker, list[Delivery]], Any]


def consumer(broker: Broker) -> int:
    generation = broker.consumers.register("etl", "q").generation
    broker.consumers.claim("etl", "q", generation, 1)
    return generation


def record(broker: Broker, held: list[Delivery]) -> None:
    broker.goodbye("")
    generation = consumer(broker)
    found = list(broker.consumers.read("etl", "q", generation, 1))
    broker.consumers.record("etl", "q", generation, 1, [Fail(one) for one in found])


def stage(broker: Broker, held: list[Delivery]) -> None:
    broker.staging.stage("w", "a", "q", [NewMessage(b"x") for _ in held])


def publish(broker: Broker, held: list[Delivery]) -> None:
    stage(broker, held)
    broker.staging.publish("w", "q", ["a"])


def close(broker: Broker, held: list[Delivery]) -> None:
    broker.goodbye("")
    generation = consumer(broker)
    broker.consumers.close("etl", "q", generation, 1)


def ids(held: list[Delivery]) -> list[str]:
    return [one.id for one in held]


#: By name: what is done with a queue whose messages are all leased. Each changes all of them, or as many new ones.
BATCHES: dict[str, Act] = {
    "enqueue": lambda broker, held: broker.enqueue_many("q", [NewMessage(b"x") for _ in held]),
    "enqueue with dedup keys": lambda broker, held: broker.enqueue_many(
        "q", [NewMessage(b"x", dedup_key=one.id) for one in held]
    ),
    "enqueue with delays": lambda broker, held: broker.enqueue_many(
        "q", [NewMessage(b"x", delay="1h") for _ in held]
    ),
    "enqueue into streams": lambda broker, held: broker.enqueue_many(
        "q", [NewMessage(b"x", stream=one.id) for one in held]
    ),
    "quarantine": lambda broker, held: broker.quarantine("q", [NewMessage(b"x") for _ in held]),
    "complete": lambda broker, held: broker.settle([Complete(one) for one in held]),
    "fail": lambda broker, held: broker.settle([Fail(one) for one in held]),
    "release": lambda broker, held: broker.settle([Release(one) for one in held]),
    "extend": lambda broker, held: broker.settle([Extend(one, "1h", carry=b"x") for one in held]),
    "goodbye": lambda broker, held: broker.goodbye(""),
    "hold": lambda broker, held: broker.hold("q", ids(held)),
    "bury": lambda broker, held: broker.bury("q", ids(held)),
    "drop": lambda broker, held: broker.drop("q", ids(held)),
    "done": lambda broker, held: broker.done("q", ids(held)),
    "fail by an operator": lambda broker, held: broker.fail("q", ids(held)),
    "stage": stage,
    "publish": publish,
    "record": record,
    "close": close,
}
#: Acts on one thing.
SINGLES: dict[str, Act] = {
    "create a queue": lambda broker, held: broker.create_queue("r"),
    "update a queue": lambda broker, held: broker.update_queue("q", quantum=2),
    "pause": lambda broker, held: broker.pause("q"),
    "purge": lambda broker, held: (broker.goodbye(""), broker.purge("q")),
    "delete a queue": lambda broker, held: broker.delete_queue("q"),
    "set a configuration": lambda broker, held: broker.config.set("throttle:t:rate", "5"),
    "create a key": lambda broker, held: broker.keys.create("ann", {}),
    "ack": lambda broker, held: broker.ack("q", held[0].id),
    "nack": lambda broker, held: broker.nack("q", held[0].id),
    "register a consumer": lambda broker, held: broker.consumers.register("etl", "q"),
}


def leased(store: FaultyStore, count: int, **options: Any) -> tuple[Broker, list[Delivery]]:
    broker = Broker(store, clock=ManualClock(), **options)
    broker.create_queue("q", dedup="live", retry="immediate")
    broker.enqueue_many("q", [NewMessage(b"x") for _ in range(count)])
    return broker, broker.claim("q", limit=count)


@pytest.mark.parametrize("act", [*BATCHES, *SINGLES])
def test_a_request_that_changes_something_is_synced_before_its_answer(act: str) -> None:
    store = FaultyStore(DictionaryStore(), forgets=True)
    broker, held = leased(store, 3)
    before = store.last_commit
    (BATCHES | SINGLES)[act](broker, held)
    assert store.last_commit > before
    assert store.unsynced == 0


@pytest.mark.parametrize("act", ["register a consumer", "record", "close", "publish"])
def test_numbered_claims_and_publications_are_synced_also_where_nothing_else_is(act: str) -> None:
    store = FaultyStore(DictionaryStore(), forgets=True)
    broker, held = leased(store, 3, durability="os")
    assert store.calls["sync"] == 0
    (BATCHES | SINGLES)[act](broker, held)
    assert store.unsynced == 0


@pytest.mark.parametrize("act", BATCHES)
def test_the_number_of_reads_of_a_verb_does_not_grow_with_its_batch(act: str) -> None:
    def reads(count: int) -> int:
        store = FaultyStore(DictionaryStore())
        broker, held = leased(store, count)
        before = store.reads.total()
        BATCHES[act](broker, held)
        return store.reads.total() - before

    # An act of an operator changes at most 100 messages at a time.
    assert reads(200) <= 2 * reads(1)


def test_a_failed_write_reloads_only_the_queues_that_it_touched() -> None:
    store = FaultyStore(DictionaryStore())
    broker, held = leased(store, 3)
    broker.create_queue("other")
    broker.enqueue("other", b"x")
    memory = broker.engine.memory
    touched, other = memory.by_name["q"], memory.by_name["other"]
    store.arm(1, "fail", only=("write",))
    with pytest.raises(StoreFull):
        broker.settle([Complete(held[0])])
    assert memory is broker.engine.memory
    assert memory.by_name["other"] is other
    assert memory.by_name["q"] is not touched
    assert broker.settle([Complete(held[0])])[0].outcome == "completed"


def test_a_former_owner_never_acquires_the_store_again_by_itself() -> None:
    data, clock = DictionaryData(), ManualClock()
    store = FaultyStore(DictionaryStore(data))
    former = Broker(store, clock=clock)
    former.create_queue("q", visibility_timeout="10s")
    former.enqueue("q", b"x")
    former.claim("q")
    Broker(DictionaryStore(data), clock=ManualClock())
    for _ in range(3):
        with pytest.raises(StaleEpoch):
            former.enqueue("q", b"late")
        with pytest.raises(StaleEpoch):
            former.run_due()
    assert store.calls["acquire"] == 1
