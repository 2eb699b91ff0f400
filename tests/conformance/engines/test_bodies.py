"""A claim of the new engine reads payloads that are not in memory without the lock."""

from __future__ import annotations

import threading

import pytest

from fairlead import NewMessage
from fairlead.engine.broker import Broker
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
