"""Below the disk reserve the engine refuses what grows the store, and goes on with what ends something."""

from __future__ import annotations

import pytest

from fairlead import Complete, Extend, Fail, NewMessage
from fairlead.engine.broker import Broker
from fairlead.engine.laws import broken_laws
from fairlead.engine.room import LEASE_BYTES, SHORT_STEP
from fairlead.errors import StoreFull
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.testing import ManualClock

PLENTY = 1 << 40


class NarrowStore(DictionaryStore):
    """Has as much room above and in the reserve as a test says."""

    above = within = PLENTY

    def room(self, *, in_reserve: bool = False) -> int:
        return self.within if in_reserve else self.above

    def check_room(self, incoming_bytes: int, *, in_reserve: bool = False) -> None:
        if incoming_bytes > self.room(in_reserve=in_reserve):
            raise StoreFull("here", 0, incoming_bytes)


@pytest.fixture
def store() -> NarrowStore:
    return NarrowStore()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(store: NarrowStore, clock: ManualClock) -> Broker:
    broker = Broker(store, clock=clock)
    broker.create_queue("q", retry={"policy": "fixed", "cooldown": "1s"}, visibility_timeout="10s")
    broker.enqueue_many("q", [NewMessage(b"x") for _ in range(50)])
    return broker


def test_enqueues_and_queues_stop_at_the_reserve_and_settles_go_on(
    broker: Broker, store: NarrowStore
) -> None:
    first, second = broker.claim("q", limit=2)
    store.above = 0
    for grows in (
        lambda: broker.enqueue("q", b"x"),
        lambda: broker.enqueue_many("q", [NewMessage(b"x")]),
        lambda: broker.quarantine("q", [NewMessage(b"x")]),
        lambda: broker.create_queue("r"),
    ):
        with pytest.raises(StoreFull):
            grows()
    assert broker.enqueue_many("q", []) == []
    assert [one.outcome for one in broker.settle([Complete(first), Fail(second)])] == ["completed", "retry"]
    assert [info.name for info in broker.queues()] == ["q", "q.dlq"]
    assert broken_laws(broker.engine) == []


def test_a_claim_takes_as_many_messages_as_the_ends_of_their_leases_have_room_for(
    broker: Broker, store: NarrowStore
) -> None:
    store.above, store.within = -1, 3 * LEASE_BYTES
    assert len(broker.claim("q", limit=10)) == 3
    with pytest.raises(StoreFull):
        broker.claim("q")
    assert broken_laws(broker.engine) == []


def test_due_work_takes_short_steps_below_the_reserve(
    broker: Broker, store: NarrowStore, clock: ManualClock
) -> None:
    broker.settle([Fail(one) for one in broker.claim("q", limit=50)])
    store.above = 0
    before = store.last_commit
    clock.advance(ms=1_000)
    assert broker.stats("q").ready == 50
    assert store.last_commit - before >= 50 // SHORT_STEP


def test_a_carry_stops_at_the_reserve_and_the_other_items_of_its_call_do_not(
    broker: Broker, store: NarrowStore
) -> None:
    first, second, third = broker.claim("q", limit=3)
    store.above = 1000
    results = broker.settle(
        [Extend(first, carry=b"x" * 500), Extend(second, carry=b"x" * 500), Extend(third)]
    )
    assert [one.outcome for one in results] == ["extended", "store_full", "extended"]
    store.above = 0
    long_error = "e" * 10_000
    assert broker.settle([Fail(first, long_error)])[0].outcome == "retry"
    (shown,) = broker.peek("q", where="waiting")
    assert len(shown.failures[0].error) < len(long_error)
    assert broken_laws(broker.engine) == []


def test_dead_letters_return_only_above_the_reserve(broker: Broker, store: NarrowStore) -> None:
    dead = broker.claim("q", limit=3)
    broker.settle([Fail(one, dead=True) for one in dead])
    store.above = 0
    for returns in (
        lambda: broker.retry("q", [dead[0].id]),
        lambda: broker.redrive("q"),
        lambda: broker.redrive("q", ids=[dead[0].id]),
    ):
        with pytest.raises(StoreFull):
            returns()
    assert broker.redrive("q", dry_run=True).matched == 3
    assert broker.drop("q", [dead[0].id]).changed == (dead[0].id,)
    store.above = PLENTY
    assert broker.redrive("q").moved == 2
    assert broken_laws(broker.engine) == []


def test_a_numbered_claim_takes_what_fits_and_is_closed_in_short_steps_below_the_reserve(
    broker: Broker, store: NarrowStore
) -> None:
    consumers = broker.consumers
    generation = consumers.register("etl", "q").generation
    store.above, store.within = -1, 40 * LEASE_BYTES
    with pytest.raises(StoreFull):
        consumers.register("other", "q")
    assert consumers.claim("etl", "q", generation, 1).count == 40
    found = list(consumers.read("etl", "q", generation, 1))
    with pytest.raises(StoreFull):
        consumers.record("etl", "q", generation, 1, [Fail(found[0], "a text")])
    consumers.record("etl", "q", generation, 1, [Fail(one) for one in found])
    before = store.last_commit
    assert consumers.close("etl", "q", generation, 1).settled == {"retry": 40}
    assert store.last_commit - before >= 40 // SHORT_STEP
    assert broken_laws(broker.engine) == []


def test_nothing_is_staged_or_published_below_the_reserve(broker: Broker, store: NarrowStore) -> None:
    broker.staging.stage("w", "a", "q", [NewMessage(b"x")])
    store.above = 0
    with pytest.raises(StoreFull):
        broker.staging.stage("w", "b", "q", [NewMessage(b"x")])
    with pytest.raises(StoreFull):
        broker.staging.publish("w", "q", ["a"])
    store.above = PLENTY
    assert broker.staging.publish("w", "q", ["a"]).count == 1
    assert broken_laws(broker.engine) == []
