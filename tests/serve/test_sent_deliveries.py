from __future__ import annotations

from fairlead.model.delivery import Delivery
from fairlead.model.settle import LeaseRef
from fairlead.server.sent_deliveries import KEEP_AFTER_LEASE_MS, SentDeliveries
from fairlead.testing import ManualClock, open_in_memory


def deliveries(count: int) -> list[Delivery]:
    with open_in_memory(clock=ManualClock()) as broker:
        broker.create_queue("q")
        for _ in range(count):
            broker.enqueue("q", b"")
        return broker.claim("q", limit=count)


def test_each_connection_has_the_token_of_what_it_was_sent() -> None:
    one, two = deliveries(2)
    sent = SentDeliveries()
    sent.remember("a", one, lease_end_ms=one.lease_until, now_ms=0)
    sent.remember("b", two, lease_end_ms=two.lease_until, now_ms=0)
    assert sent.find("a", "q", one.raw_id) == LeaseRef(one.raw_id, one.claim_id)
    assert sent.find("b", "q", one.raw_id) is None
    assert sent.find("a", "other", one.raw_id) is None
    sent.forget("a", one.raw_id)
    assert sent.find("a", "q", one.raw_id) is None


def test_only_so_many_are_remembered_and_the_oldest_go_first() -> None:
    sent = SentDeliveries(most=2)
    one, two, three = deliveries(3)
    for delivery in (one, two, one, three):
        sent.remember("a", delivery, lease_end_ms=delivery.lease_until, now_ms=0)
    assert [sent.find("a", "q", delivery.raw_id) is not None for delivery in (one, two, three)] == [
        True,
        False,
        True,
    ]


def test_a_delivery_is_remembered_past_its_lease_but_not_for_ever() -> None:
    sent = SentDeliveries()
    one, two = deliveries(2)
    sent.remember("a", one, lease_end_ms=one.lease_until, now_ms=0)
    sent.remember("a", two, lease_end_ms=two.lease_until, now_ms=one.lease_until + KEEP_AFTER_LEASE_MS)
    assert sent.find("a", "q", one.raw_id) is not None
    sent.remember("a", two, lease_end_ms=two.lease_until, now_ms=one.lease_until + KEEP_AFTER_LEASE_MS + 1)
    assert sent.find("a", "q", one.raw_id) is None
