"""Small requests without a record batch: what is asked in rows is answered in rows."""

from __future__ import annotations

from fairlead import Complete
from fairlead.model.checks import check_messages
from fairlead.model.message import NewMessage
from fairlead.wire.calls import ClaimCall, EnqueueCall, SettleCall
from fairlead.wire.deliveries import decode_deliveries
from fairlead.wire.rows import FEW_BYTES, FEW_ROWS, message_rows, read_delivery_rows
from fairlead.wire.settlement_rows import settlement_rows
from tests.doors.flight.test_flight_door import Rig, rig, three

__all__ = ["rig"]


def test_a_message_goes_in_out_and_is_completed_without_a_batch(rig: Rig) -> None:
    asked = EnqueueCall(
        [("q", 1)], rows=message_rows(check_messages([NewMessage(b"1", {"a": "b"}, fairness_key="k")]))
    )
    enqueued, body = rig.channel("enqueue").call(asked)
    assert body is None
    claimed, body = rig.channel("claim").call(ClaimCall("q", in_rows=True))
    assert body is None
    (delivery,) = read_delivery_rows(claimed.rows, claimed.queues)
    assert ([delivery.id], delivery.payload, delivery.headers, delivery.fairness_key) == (
        enqueued.ids,
        b"1",
        {"a": "b"},
        "k",
    )
    assert claimed.now_ms == rig.broker.clock.now_ms()
    settled, body = rig.channel("settle").call(SettleCall(rows=settlement_rows([Complete(delivery)])[0]))
    assert body is None
    assert [(raw_id, outcome) for raw_id, outcome, *_ in settled.settled] == [(delivery.raw_id, "completed")]
    assert settled.now_ms == rig.broker.clock.now_ms()
    assert rig.broker.stats("q").ready == 0


def test_who_asks_with_a_batch_is_answered_with_one(rig: Rig) -> None:
    answer, ids = rig.channel("enqueue").call(EnqueueCall([("q", 3)]), three())
    assert ids is not None
    assert answer.ids == []
    answer, body = rig.channel("claim").call(ClaimCall("q", limit=3))
    assert body is not None
    assert answer.rows == []


def test_many_deliveries_or_large_ones_come_in_a_batch_all_the_same(rig: Rig) -> None:
    rig.broker.enqueue_many("q", [NewMessage(b"") for _ in range(FEW_ROWS + 1)])
    rig.broker.create_queue("large")
    rig.broker.enqueue("large", bytes(FEW_BYTES + 1))
    for queue, count in (("q", FEW_ROWS + 1), ("large", 1)):
        answer, body = rig.channel("claim").call(ClaimCall(queue, limit=count, in_rows=True))
        assert body is not None
        assert answer.rows == []
        assert len(decode_deliveries(body, answer.queues)) == count


def test_credit_is_used_up_in_rows(rig: Rig) -> None:
    rig.broker.enqueue("q", b"1")
    channel = rig.channel("claim")
    answer, body = channel.call(ClaimCall("q", credit=1, wait_ms=60_000, in_rows=True))
    assert body is None
    assert [row.payload for row in answer.rows] == [b"1"]
    assert not answer.done
    assert channel.receive()[0].done


def test_rows_count_as_bytes_in_hand(rig: Rig) -> None:
    large = message_rows(check_messages([NewMessage(bytes(600))]))
    with rig.limits.call(600):
        answer, _ = rig.channel("enqueue").call(EnqueueCall([("q", 1)], rows=large))
    assert answer.error is not None
    assert answer.error.code == "overloaded"
