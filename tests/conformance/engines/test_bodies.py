"""A claim of the engine reads payloads that are not in memory without the lock; and how many stay in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from fairlead import Complete, Delivery, NewMessage, Settings
from fairlead.engine.broker import Broker
from fairlead.engine.fair_lock import FairLock
from fairlead.engine.laws import broken_laws
from fairlead.engine.work import large
from fairlead.errors import Unavailable
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.testing import ManualClock
from fairlead.testing.faulty import FaultyStore
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue

COUNT = 40


@pytest.fixture
def store() -> FaultyStore:
    """Holds two chunks of messages that fill several pages."""
    data = DictionaryData()
    broker = Broker(DictionaryStore(data), clock=ManualClock())
    broker.create_queue("q")
    for _ in range(2):
        broker.enqueue_many("q", [NewMessage(b"%04d" % n * 500) for n in range(COUNT // 2)])
    broker.engine.stop_working()
    return FaultyStore(DictionaryStore(data))


@pytest.fixture
def broker(store: FaultyStore) -> Broker:
    """Opened again, so that memory has no payloads."""
    return Broker(store, clock=ManualClock())


def can_have_lock(broker: Broker) -> bool:
    taken: list[bool] = []

    def take() -> None:
        taken.append(broker.engine.lock.acquire(timeout=10))
        broker.engine.lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return taken == [True]


@pytest.mark.parametrize("part", [7, COUNT])
def test_payloads_are_read_while_others_have_the_lock(
    broker: Broker, store: FaultyStore, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large, "CLAIM_PART", part)
    asked, before = list[bool](), store.calls["get_many"]
    store.arm(1, "delay", only=("get_many",))
    store.on_delay = lambda method: asked.append(can_have_lock(broker))
    found = broker.claim("q", limit=COUNT)
    assert asked == [True]
    assert sorted(one.payload for one in found) == sorted([b"%04d" % n * 500 for n in range(COUNT // 2)] * 2)
    assert store.calls["get_many"] - before == 2, "once for each chunk"


def test_a_message_that_somebody_else_settles_before_its_payload_is_read_is_not_delivered(
    broker: Broker, store: FaultyStore
) -> None:
    ids = [info.id for info in broker.browse("q")]
    store.arm(1, "delay", only=("get_many",))
    store.on_delay = lambda method: broker.drop("q", ids[: COUNT // 2]) and None
    exchanged = broker.exchange([Claim("q", COUNT), Enqueue("q", b"new")])
    assert [one.id for one in exchanged[0]] == ids[COUNT // 2 :]
    assert broker.stats("q").leased == COUNT // 2
    assert broken_laws(broker.engine) == []


def test_a_queue_that_is_deleted_before_its_payloads_are_read_delivers_nothing(
    broker: Broker, store: FaultyStore
) -> None:
    store.arm(1, "delay", only=("get_many",))
    store.on_delay = lambda method: broker.delete_queue("q")
    assert broker.claim("q", limit=COUNT) == []


def test_payloads_that_cannot_be_read_leave_the_engine_as_it_is(broker: Broker, store: FaultyStore) -> None:
    store.arm(1, "fail", only=("get_many",))
    with pytest.raises(Unavailable):
        broker.claim("q", limit=COUNT, token="t")
    assert len(broker.claim("q", limit=COUNT, token="t")) == COUNT
    assert broken_laws(broker.engine) == []


def test_a_large_claim_whose_later_payloads_cannot_be_read_is_answered_with_the_earlier_ones(
    broker: Broker, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large, "CLAIM_PART", COUNT // 2)
    store.arm(2, "fail", only=("get_many",))
    assert len(broker.claim("q", limit=COUNT)) == COUNT // 2
    assert broken_laws(broker.engine) == []


class LockThatRuns(FairLock):
    """Runs something else once, as soon as it is free."""

    then: Callable[[], object] | None = None

    def __exit__(self, *error: object) -> None:
        self.release()
        if self.then is not None and not self.is_owned:
            then, self.then = self.then, None
            then()


def test_a_claim_of_another_thread_leaves_the_answers_of_others_as_they_are(broker: Broker) -> None:
    """Also when it comes between the transaction of a call and its answer."""
    lock = LockThatRuns()
    broker.engine.lock = lock
    found: list[Delivery] = []
    lock.then = lambda: found.extend(broker.claim("q", limit=COUNT))
    broker.enqueue("q", b"small")
    assert len(found) == COUNT


# What stays in memory

BATCH = [b"%04d" % n * 500 for n in range(20)]
BATCH_BYTES = sum(map(len, BATCH))


def bounded(max_bytes: int, store: FaultyStore | None = None) -> Broker:
    broker = Broker(
        store or FaultyStore(DictionaryStore()),
        clock=ManualClock(),
        settings=Settings(body_cache_bytes=max_bytes),
    )
    if not broker.queues():
        broker.create_queue("q")
    return broker


def page_reads(broker: Broker) -> int:
    store = broker.engine.store
    assert isinstance(store, FaultyStore)
    return store.calls["get_many"]


def test_payloads_stay_in_memory_as_long_as_they_fit_and_the_others_are_read() -> None:
    broker = bounded(2 * BATCH_BYTES)
    for _ in range(4):
        broker.enqueue_many("q", [NewMessage(payload) for payload in BATCH])
    assert broker.engine.memory.body_bytes == 2 * BATCH_BYTES
    assert broken_laws(broker.engine) == []
    before = page_reads(broker)
    assert [one.payload for one in broker.claim("q", limit=40)] == BATCH * 2
    assert page_reads(broker) == before
    assert [one.payload for one in broker.claim("q", limit=40)] == BATCH * 2
    assert page_reads(broker) == before + 2, "once for each chunk"
    assert broken_laws(broker.engine) == []


def test_messages_that_end_make_room_for_the_payloads_of_later_ones() -> None:
    broker = bounded(BATCH_BYTES)
    before = page_reads(broker)
    for _ in range(5):
        broker.enqueue_many("q", [NewMessage(payload) for payload in BATCH])
        broker.settle([Complete(one) for one in broker.claim("q", limit=20)])
    assert page_reads(broker) == before
    broker.enqueue_many("q", [NewMessage(payload) for payload in BATCH])
    broker.delete_queue("q")
    assert broker.engine.memory.body_bytes == 0
    assert broken_laws(broker.engine) == []


def test_a_payload_that_is_larger_than_all_that_fit_is_let_pass_also_by_an_opening() -> None:
    store, large = FaultyStore(DictionaryStore()), b"x" * 50_000
    broker = bounded(BATCH_BYTES, store)
    broker.enqueue("q", large)
    broker.enqueue_many("q", [NewMessage(payload) for payload in BATCH])
    assert broker.engine.memory.body_bytes == BATCH_BYTES
    broker.engine.stop_working()
    again = bounded(BATCH_BYTES, store)
    assert [chunk.payloads for chunk in again.engine.memory.chunks.values()] == [None, None]
    found = again.claim("q", limit=21)
    assert [one.payload for one in found] == [large, *BATCH]
    again.settle([Complete(found[0])])
    assert again.engine.memory.body_bytes == BATCH_BYTES
    assert broken_laws(again.engine) == []


def test_payloads_that_were_read_stay_only_if_they_fit(store: FaultyStore) -> None:
    broker = bounded(0, store)
    for _ in range(2):
        before = page_reads(broker)
        (one,) = broker.claim("q")
        assert len(one.payload) == 2000
        assert page_reads(broker) == before + 1
        broker.run_due()
        assert broker.engine.memory.body_bytes == 0
    assert broken_laws(broker.engine) == []
