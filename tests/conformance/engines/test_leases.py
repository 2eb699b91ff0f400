"""Who holds what until when: leases by consumer, by token and by time, also of an engine that was opened again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from fairlead import Complete, Delivery, Extend, NewMessage
from fairlead.engine import moves
from fairlead.engine.broker import Broker
from fairlead.engine.laws import broken_laws
from fairlead.engine.reduce import leases
from fairlead.errors import QueueNotFound, StoreFull
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.testing import ManualClock
from fairlead.testing.faulty import FaultyStore

Open = Callable[[], Broker]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(DictionaryStore(DictionaryData()))


@pytest.fixture
def broker(store: FaultyStore, clock: ManualClock) -> Broker:
    """Two queues with four messages each."""
    broker = Broker(store, clock=clock)
    for queue in ("q", "r"):
        broker.create_queue(queue, visibility_timeout="10s", retry="immediate")
        broker.enqueue_many(queue, [NewMessage(b"%s%d" % (queue.encode(), n)) for n in range(4)])
    return broker


@pytest.fixture(params=["at once", "reopened"])
def look_again(
    request: pytest.FixtureRequest, broker: Broker, store: FaultyStore, clock: ManualClock
) -> Iterator[Open]:
    """The broker as it is, or another one on the same rows. Whatever a test does, the laws hold at the end."""
    brokers = [broker]

    def look() -> Broker:
        if request.param == "reopened":
            brokers[-1].engine.stop_working()
            brokers.append(Broker(store, clock=clock))
        return brokers[-1]

    yield look
    assert broken_laws(brokers[-1].engine) == []


def payloads(deliveries: list[Delivery]) -> list[bytes]:
    return [one.payload for one in deliveries]


def test_consumers_are_counted_per_queue_and_forgotten_with_their_last_lease(
    broker: Broker, look_again: Open
) -> None:
    in_q = broker.claim("q", limit=2, consumer="ann")
    broker.claim("r", limit=1, consumer="ann")
    broker.claim("r", limit=1, consumer="bob")
    again = look_again()
    assert [again.stats(queue).consumers for queue in ("q", "r")] == [1, 2]
    again.settle([Complete(one) for one in in_q])
    again = look_again()
    assert [again.stats(queue).consumers for queue in ("q", "r")] == [0, 2]
    assert (again.goodbye("ann"), again.goodbye("ann"), again.goodbye("nobody")) == (1, 0, 0)
    assert [again.stats("r").consumers, again.stats("r").leased] == [1, 1]


def test_unsettled_messages_are_limited_per_consumer_and_queue(broker: Broker, look_again: Open) -> None:
    for queue in ("q", "r"):
        broker.update_queue(queue, max_unsettled_per_consumer=3)
    first = broker.claim("q", limit=9, consumer="ann")
    again = look_again()
    assert [len(again.claim(queue, limit=9, consumer="ann")) for queue in ("q", "r")] == [0, 3]
    assert len(again.claim("q", limit=9, consumer="bob")) == 1
    again.settle([Complete(first[0])])
    again.enqueue("q", b"next")
    assert len(look_again().claim("q", limit=9, consumer="ann")) == 1


def test_a_token_names_the_live_leases_of_all_its_claims(broker: Broker, look_again: Open) -> None:
    """A claim of two queues is two claims, and an extended member has a lease apart."""
    held = broker.claim(["q", "r"], limit=6, token="t")
    broker.claim("q", token="another")
    assert {one.queue for one in held} == {"q", "r"}
    broker.settle([Extend(held[1], "1m")])
    again = look_again()
    assert sorted(payloads(again.claim(["q", "r"], token="t"))) == sorted(payloads(held))
    in_q = [one for one in held if one.queue == "q"]
    again.settle([Complete(one) for one in in_q])
    left = [one.payload for one in held if one.queue == "r"]
    assert sorted(payloads(look_again().claim(["q", "r"], token="t"))) == sorted(left)


def test_a_token_whose_leases_have_all_ended_begins_anew(
    broker: Broker, look_again: Open, clock: ManualClock
) -> None:
    (held,) = broker.claim("q", token="t")
    broker.settle([Complete(held)])
    (second,) = look_again().claim("q", token="t")
    assert second.id != held.id
    clock.advance(ms=10_000)
    (again,) = look_again().claim("q", token="t")
    assert again.lease != second.lease


@pytest.mark.parametrize(("duration", "ends_ms"), [("5s", [5_000, 10_000]), ("20s", [10_000, 20_000])])
def test_a_lease_that_was_moved_ends_then_and_the_others_of_its_claim_when_they_did(
    broker: Broker, look_again: Open, clock: ManualClock, duration: str, ends_ms: list[int]
) -> None:
    moved, _ = broker.claim("q", limit=2)
    broker.settle([Extend(moved, duration)])
    again = look_again()
    passed_ms = 0
    for left, end_ms in zip((1, 0), ends_ms, strict=True):
        clock.advance(ms=end_ms - passed_ms - 1)
        assert again.stats("q").leased == left + 1
        clock.advance(ms=1)
        assert again.stats("q").leased == left
        passed_ms = end_ms


def test_of_a_run_that_expires_in_several_steps_only_the_first_message_has_failed(
    broker: Broker, look_again: Open, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when a member has a lease apart, and leases of another claim end between the two."""
    broker.create_queue("s", visibility_timeout="10s", retry="immediate")
    broker.enqueue_many("s", [NewMessage(b"%d" % n, stream="in order") for n in range(3)])
    run = broker.claim("s", limit=3, max_per_stream=3)
    broker.claim("q", limit=2)
    broker.settle([Extend(run[1])])
    monkeypatch.setattr(moves, "STEP_MESSAGES", 1)
    again = look_again()
    clock.advance(ms=10_000)
    returned = again.claim("s", limit=3, max_per_stream=3)
    assert [(one.payload, one.attempts) for one in returned] == [(b"0", 1), (b"1", 0), (b"2", 0)]


def test_a_lease_whose_expiry_is_not_written_expires_later(
    broker: Broker, store: FaultyStore, clock: ManualClock
) -> None:
    broker.claim("q", limit=4)
    store.arm(1, "fail", only=("write",))
    with pytest.raises(StoreFull):
        clock.advance(ms=10_000)
    assert broken_laws(broker.engine) == []
    broker.run_due()
    assert (broker.stats("q").ready, broker.stats("q").leased) == (4, 0)
    assert broken_laws(broker.engine) == []


def test_leases_that_ended_are_forgotten_before_their_time_and_the_others_still_expire(
    broker: Broker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_MIN_ENDED", 3)
    kept = broker.claim("r", limit=2)
    for _ in range(50):
        broker.enqueue("q", b"more")
        broker.settle([Complete(one) for one in broker.claim("q")])
    assert len(broker.engine.memory.expiries) < 10
    assert broken_laws(broker.engine) == []
    clock.advance(ms=10_000)
    assert set(payloads(kept)) < set(payloads(broker.claim("r", limit=4)))


def test_a_claim_token_shows_nothing_of_a_queue_that_is_deleted_and_all_of_one_whose_deletion_failed(
    broker: Broker, look_again: Open, store: FaultyStore
) -> None:
    held = broker.claim("q", limit=2, token="t")
    store.arm(1, "fail", only=("write",))
    with pytest.raises(StoreFull):
        broker.delete_queue("q")
    assert payloads(look_again().claim("q", token="t")) == payloads(held)
    look_again().delete_queue("q")
    again = look_again()
    with pytest.raises(QueueNotFound):
        again.claim("q", token="t")
    again.create_queue("q")
    again = look_again()
    assert again.claim("q", token="t") == []
    assert [one.outcome for one in again.settle([Complete(one) for one in held])] == ["not_found"] * 2
