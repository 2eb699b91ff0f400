"""Queues that keep completed messages for a time (`retain_completed`), in the engine."""

from __future__ import annotations

import pytest

from fairlead import Complete, NewMessage
from fairlead.engine.broker import Broker
from fairlead.engine.laws import broken_laws
from fairlead.errors import InvalidRequest
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def data() -> DictionaryData:
    return DictionaryData()


@pytest.fixture
def broker(clock: ManualClock, data: DictionaryData) -> Broker:
    broker = Broker(DictionaryStore(data), clock=clock)
    broker.create_queue("q", retain_completed="10s", dedup="live", ttl="5s")
    return broker


def complete(broker: Broker, **fields: str) -> str:
    message_id = broker.enqueue("q", b"x", **fields)
    (delivery,) = broker.claim("q")
    assert delivery.id == message_id
    assert broker.settle([Complete(delivery, progress=4)])[0].outcome == "completed"
    return message_id


def kept(broker: Broker) -> list[str]:
    return [info.id for info in broker.peek("q", where="done")]


def test_a_completed_message_can_be_looked_at_and_is_gone_for_everything_else(
    broker: Broker, clock: ManualClock, data: DictionaryData
) -> None:
    message_id = complete(broker, stream="s")
    following = broker.enqueue("q", b"next", stream="s")
    (shown,) = broker.peek("q", where="done")
    assert (shown.id, shown.progress & 4, shown.deliveries) == (message_id, 4, 1)
    stats = broker.stats("q")
    assert (stats.done, stats.ready, stats.leased) == (1, 1, 0)
    assert "completed" in broker.ack("q", message_id).error
    assert broker.hold("q", [message_id]).skipped[0][1] == "completed already"
    with pytest.raises(InvalidRequest, match="completed already"):
        broker.retry("q", [message_id])
    assert broker.explain(message_id).reasons[0].code == "completed"
    assert [one.id for one in broker.claim("q")] == [following], "it holds up nothing"
    assert broken_laws(broker.engine) == []
    broker.engine.stop_working()
    again = Broker(DictionaryStore(data), clock=clock)
    assert kept(again) == [message_id]
    assert broken_laws(again.engine) == []


def test_it_goes_when_it_was_kept_long_enough_and_not_when_its_life_ends(
    broker: Broker, clock: ManualClock
) -> None:
    first = complete(broker)
    clock.advance(ms=6_000)
    second = complete(broker)
    assert kept(broker) == [first, second]
    clock.advance(ms=4_000)
    assert kept(broker) == [second]
    assert broken_laws(broker.engine) == []
    broker.update_queue("q", retain_completed=None)
    clock.advance(ms=1)
    assert (kept(broker), broker.stats("q").done) == ([], 0)
    assert broken_laws(broker.engine) == []


def test_its_dedup_key_is_free_at_once_and_its_end_takes_no_key_from_another(
    broker: Broker, clock: ManualClock
) -> None:
    first = complete(broker, dedup_key="d")
    broker.update_queue("q", ttl=None)
    second = broker.enqueue("q", b"y", dedup_key="d")
    assert second != first
    clock.advance(ms=10_000)
    assert kept(broker) == []
    assert broker.enqueue("q", b"z", dedup_key="d") == second
    assert broken_laws(broker.engine) == []


def test_a_queue_may_remember_the_key_as_long_as_the_message_is_kept(
    broker: Broker, clock: ManualClock
) -> None:
    broker.update_queue("q", dedup="kept")
    first = complete(broker, dedup_key="d")
    broker.update_queue("q", dedup="live")
    assert broker.enqueue("q", b"y", dedup_key="d") == first
    clock.advance(ms=10_000)
    assert broker.enqueue("q", b"z", dedup_key="d") != first
    assert broken_laws(broker.engine) == []


def test_a_prune_takes_the_longest_done_and_a_purge_leaves_them(broker: Broker, clock: ManualClock) -> None:
    first = complete(broker)
    clock.advance(ms=2_000)
    second = complete(broker)
    broker.enqueue_many("q", [NewMessage(b"x") for _ in range(3)])
    broker.purge("q")
    assert kept(broker) == [first, second]
    assert broker.prune("q", older_than="1s", which="done").changed == (first,)
    assert broker.drop("q", [second]).changed == (second,)
    assert broker.stats("q").done == 0
    assert broken_laws(broker.engine) == []


def test_a_claim_ends_the_keeping_of_a_queue_that_keeps_none_any_more(broker: Broker) -> None:
    complete(broker)
    broker.update_queue("q", retain_completed=None)
    broker.claim("q")
    assert kept(broker) == []
