"""Rows are batches in another form: whatever arrives in a batch arrives in rows, and looks the same."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import NewMessage, SettleResult, errors
from fairlead.model.checks import check_messages
from fairlead.model.delivery import Delivery
from fairlead.model.settle import Settlement
from fairlead.wire import schemas
from fairlead.wire.calls import Answer, EnqueueCall, SettleCall, decode, encode
from fairlead.wire.deliveries import decode_deliveries, encode_deliveries, runs_of
from fairlead.wire.rows import (
    DeliveryRow,
    MessageRow,
    delivery_rows,
    message_rows,
    read_delivery_rows,
    read_message_rows,
)
from fairlead.wire.settlement_rows import Row, read_settlement_rows, settlement_rows
from fairlead.wire.settlements import decode_settlements, encode_settlements, read_results
from tests.wire.test_round_trips import deliveries, new_messages, results, settlements


def test_a_row_has_the_columns_of_a_batch_in_their_order() -> None:
    assert MessageRow.__struct_fields__ == tuple(schemas.MESSAGES.names)
    assert DeliveryRow.__struct_fields__ == tuple(schemas.DELIVERIES.names)
    assert Row.__struct_fields__ == tuple(schemas.SETTLEMENTS.names)
    assert SettleResult.__struct_fields__[1:] == tuple(schemas.RESULTS.names[1:])


@given(st.lists(new_messages, max_size=8))
def test_messages_arrive_in_rows(messages: list[NewMessage]) -> None:
    checked = check_messages(messages)
    call = decode(encode(EnqueueCall([("q", len(messages))], rows=message_rows(checked))), EnqueueCall)
    assert call.rows is not None
    assert check_messages(read_message_rows(call.rows)) == checked


@given(st.lists(deliveries, max_size=6))
def test_deliveries_arrive_in_rows_as_in_a_batch(given_out: list[Delivery]) -> None:
    answer = decode(encode(Answer(queues=runs_of(given_out), rows=delivery_rows(given_out))), Answer)
    in_rows = read_delivery_rows(answer.rows, answer.queues)
    in_a_batch = decode_deliveries(encode_deliveries(given_out), runs_of(given_out))
    assert [_seen(delivery) for delivery in in_rows] == [_seen(delivery) for delivery in in_a_batch]


def _seen(delivery: Delivery) -> list[object]:
    """Without a stream nothing is ordered, whatever the number says."""
    names = [
        "id",
        "lease",
        "lease_until",
        "queue",
        "payload",
        "headers",
        "fairness_key",
        "weight",
        "throttle_keys",
        "stream",
        "enqueued_at",
    ]
    names += ["deliveries", "attempts", "progress", "carry", "failures", "dead_since", "source"] + (
        ["seq"] if delivery.stream else []
    )
    return [getattr(delivery, name) for name in names]


@given(st.lists(settlements, max_size=8))
def test_settlements_arrive_in_rows_as_in_a_batch(items: list[Settlement]) -> None:
    rows, _ = settlement_rows(items)
    call = decode(encode(SettleCall(rows=rows)), SettleCall)
    assert call.rows is not None
    assert read_settlement_rows(call.rows) == decode_settlements(encode_settlements(rows))


@given(st.lists(results, max_size=8))
def test_results_arrive_in_rows(given_back: list[SettleResult]) -> None:
    told = [(r.raw_id, r.outcome, r.rule, r.due_ms, r.lease_until, r.error) for r in given_back]
    assert read_results(decode(encode(Answer(settled=told)), Answer).settled) == given_back


@pytest.mark.parametrize(
    "rows",
    [
        [["text"]],
        [[b"x", None, 5]],
        [[b"x", b"not a map"]],
        [[b"x", None, "k", 1, [], None, 2**63]],
        [[]],
        "none",
    ],
    ids=[
        "payload is text",
        "key is a number",
        "headers are no map",
        "delay of 292 million years",
        "nothing in it",
        "no list",
    ],
)
def test_rows_that_make_no_sense_are_refused(rows: object) -> None:
    raw = msgspec.msgpack.encode({"queues": [["q", 1]], "rows": rows})
    with pytest.raises(errors.InvalidRequest):
        read_message_rows(decode(raw, EnqueueCall).rows or [])
