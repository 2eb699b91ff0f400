from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from fairlead.model.delivery import Delivery
from fairlead.model.failure import FailureReason, FailureRecord, Progress
from fairlead.model.ids import IdSource, show_id
from fairlead.model.lane import pack_lane
from fairlead.model.message import Message, MessageState, pack_headers
from fairlead.model.views import MessageInfo
from fairlead.spark.data_source.rows import BatchConverter, shown_ids
from fairlead.spark.data_source.schema import arrow_schema, read_schema
from fairlead.wire.browsed import encode_browsed
from fairlead.wire.deliveries import encode_deliveries
from fairlead.wire.normalize import fill_defaults
from fairlead.wire.schemas import BROWSED, DELIVERIES

AT_MS = 1_700_000_000_123
AT = datetime.fromtimestamp(AT_MS / 1000, UTC)
IDS = IdSource().next(AT_MS, 5)


def delivery(
    n: int,
    *,
    payload: bytes = b"x",
    headers: bytes = b"",
    stream: str = "",
    seq: int = 0,
    state: MessageState | None = None,
) -> Delivery:
    lane = pack_lane("acme", ("gpu",) if n % 2 else ())
    message = Message(IDS[n], 0, lane, 1, headers, payload, AT_MS, 0, 0, 0, "", stream, seq)
    return Delivery(message, state, "orders", 7, AT_MS, 1, None)


def rows_of(deliveries: list[Delivery], **options) -> list[dict]:
    batch = fill_defaults(encode_deliveries(deliveries), DELIVERIES)
    made = BatchConverter(read_schema(), "orders", receipt="etl/3/12", **options).convert(batch)
    made.validate(full=True)
    assert made.schema.equals(arrow_schema(read_schema()))
    return made.to_pylist(maps_as_pydicts="strict")


def test_a_plain_delivery_has_its_defaults():
    assert rows_of([delivery(0)]) == [
        {
            "id": show_id(IDS[0]),
            "queue": "orders",
            "fairness_key": "acme",
            "weight": 1,
            "throttle_keys": [],
            "stream": None,
            "seq": None,
            "payload": b"x",
            "headers": {},
            "attempts": 0,
            "deliveries": 1,
            "progress": 0,
            "carry": None,
            "enqueued_at": AT,
            "receipt": "etl/3/12/7",
        }
    ]


def test_rows_with_and_without_headers_keys_and_streams_stand_side_by_side():
    found = rows_of(
        [
            delivery(0),
            delivery(1, headers=pack_headers({"trace": "1", "tenant": "a"}), stream="s", seq=4),
            delivery(2, headers=pack_headers({"trace": "2"})),
        ]
    )
    assert [row["headers"] for row in found] == [{}, {"trace": "1", "tenant": "a"}, {"trace": "2"}]
    assert [row["throttle_keys"] for row in found] == [[], ["gpu"], []]
    assert [(row["stream"], row["seq"]) for row in found] == [(None, None), ("s", 4), (None, None)]


def test_the_first_place_of_a_stream_is_a_place():
    assert rows_of([delivery(0, stream="s", seq=0)])[0]["seq"] == 0


def test_what_earlier_tries_left_behind_is_there():
    state = MessageState(0, attempts=2, progress=5, carry=b"half")
    first, second = rows_of([delivery(0, state=state), delivery(1)])
    assert (first["attempts"], first["progress"], first["carry"]) == (2, 5, b"half")
    assert (second["attempts"], second["progress"], second["carry"]) == (0, 0, None)


def test_headers_that_are_not_asked_for_are_null():
    assert rows_of([delivery(0, headers=pack_headers({"a": "b"}))], headers=False)[0]["headers"] is None


def test_payloads_are_not_copied():
    batch = fill_defaults(encode_deliveries([delivery(n, payload=bytes(1000)) for n in range(3)]), DELIVERIES)
    made = BatchConverter(read_schema(), "orders", receipt="r").convert(batch)
    assert made.column("payload").buffers()[2].address == batch.column("payload").buffers()[2].address


@pytest.mark.parametrize(("start", "length"), [(0, 5), (2, 2), (4, 1), (0, 0)])
def test_ids_are_shown_as_everywhere_else_also_of_a_part_of_a_batch(start: int, length: int):
    ids = pa.array(IDS, pa.binary(16)).slice(start, length)
    assert shown_ids(ids).to_pylist() == [show_id(raw) for raw in IDS[start : start + length]]


def info(n: int = 0, **changes: object) -> MessageInfo:
    plain = MessageInfo(
        id=show_id(IDS[n]),
        queue="orders.dlq",
        where="ready",
        payload=b"x",
        headers={},
        fairness_key="acme",
        weight=1,
        throttle_keys=(),
        enqueued_at=AT_MS,
        attempts=2,
        deliveries=2,
        progress=Progress.NONE,
        dead_since=AT_MS + 9,
        source="orders",
        rule="max_attempts",
        reason=None,
        failures=(),
        place=1,
        stream=None,
        seq=0,
        carry=b"c",
        failures_cut=0,
        due_at=None,
        expires_at=None,
        lease_until=None,
        consumer=None,
    )
    return replace(plain, **changes)


def test_what_the_server_may_not_show_is_null_and_not_empty():
    hidden = info(0, payload=b"", headers={"trace": ""}, carry=b"", hidden=("payload", "headers", "carry"))
    partly = info(
        1,
        payload=b'{"card": "[redacted]"}',
        headers={"trace": "t"},
        hidden=("payload $.card", "header cookie"),
    )
    made = BatchConverter(read_schema(), "orders").convert(
        fill_defaults(encode_browsed([hidden, partly, info(2)]), BROWSED)
    )
    made.validate(full=True)
    rows = made.to_pylist(maps_as_pydicts="strict")
    assert [(row["payload"], row["headers"], row["carry"]) for row in rows] == [
        (None, None, None),
        (b'{"card": "[redacted]"}', {"trace": "t"}, b"c"),
        (b"x", {}, b"c"),
    ]


def test_a_dead_letter_tells_how_it_died():
    failures = (
        FailureRecord(AT_MS, 1, int(FailureReason.TIMEOUT_EXCEEDED), "slow", "w1", "exponential", AT_MS + 5),
        FailureRecord(AT_MS + 9, 2, int(FailureReason.HANDLER_EXCEPTION), "boom", "w2", "max_attempts"),
    )
    dead = info(reason=FailureReason.HANDLER_EXCEPTION, failures=failures)
    schema = read_schema("dead")
    made = BatchConverter(schema, "orders.dlq").convert(fill_defaults(encode_browsed([dead]), BROWSED))
    made.validate(full=True)
    (row,) = made.to_pylist(maps_as_pydicts="strict")
    assert (row["reason"], row["error"], row["rule"], row["source"], row["receipt"]) == (
        "handler_exception",
        "boom",
        "max_attempts",
        "orders",
        None,
    )
    assert row["failures"][0] == {
        "at": AT,
        "attempt": 1,
        "reason": "timeout_exceeded",
        "error": "slow",
        "consumer": "w1",
        "rule": "exponential",
        "due": datetime.fromtimestamp((AT_MS + 5) / 1000, UTC),
    }
    assert row["failures"][1]["due"] is None
