"""Batches in the hand of a caller: whole on the way out, fitted on the way in."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.model.delivery import Delivery
from fairlead.model.failure import FailureReason, FailureRecord, Progress
from fairlead.model.ids import show_id
from fairlead.model.lane import pack_lane
from fairlead.model.message import Message, MessageState
from fairlead.model.views import MessageInfo
from fairlead.wire.browsed import encode_browsed
from fairlead.wire.deliveries import encode_deliveries, runs_of
from fairlead.wire.normalize import fill_defaults, fit
from fairlead.wire.schemas import BROWSED, DELIVERIES, MESSAGES
from fairlead.wire.values import queues_of, read_failures, read_headers

text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
times = st.none() | st.integers(1, 2**50)
infos = st.builds(
    MessageInfo,
    id=st.binary(min_size=16, max_size=16).map(show_id),
    queue=st.sampled_from(["q", "q.dlq"]),
    where=st.sampled_from(["ready", "waiting", "leased", "done"]),
    payload=st.binary(max_size=20),
    headers=st.dictionaries(text, text, max_size=2),
    fairness_key=text | st.just("default"),
    weight=st.integers(1, 1000),
    throttle_keys=st.lists(text, max_size=2).map(tuple),
    stream=st.none() | text,
    enqueued_at=st.integers(0, 2**50),
    place=st.integers(0, 2**50),
    seq=st.integers(0, 2**40),
    attempts=st.integers(0, 2**31 - 1),
    deliveries=st.integers(0, 2**31 - 1),
    progress=st.integers(0, 2**63 - 1).map(Progress),
    carry=st.binary(max_size=9),
    failures=st.lists(
        st.builds(
            FailureRecord,
            st.integers(0, 2**50),
            st.integers(1, 9),
            st.just(2),
            text,
            text,
            text,
            st.integers(0, 9),
        ),
        max_size=2,
    ).map(tuple),
    failures_cut=st.integers(0, 99),
    reason=st.none() | st.sampled_from(FailureReason),
    rule=st.just("") | text,
    due_at=times,
    expires_at=times,
    lease_until=times,
    consumer=st.none() | text,
    source=st.none() | text,
    dead_since=times,
    done_at=times,
    hidden=st.lists(text, max_size=2).map(tuple),
)


def delivery(
    payload: bytes = b"p", *, lane: bytes | None = None, state: MessageState | None = None, stream: str = ""
) -> Delivery:
    message = Message(
        bytes(16),
        1,
        lane or pack_lane("default"),
        1,
        b"",
        payload,
        5,
        1,
        stream=stream,
        seq=1 if stream else 0,
    )
    return Delivery(message, state, "q", 7, 9, 1)


@given(st.lists(infos, max_size=5))
def test_messages_looked_at_arrive_as_they_were(looked_at: list[MessageInfo]) -> None:
    batch = fill_defaults(encode_browsed(looked_at), BROWSED)
    queues = queues_of(runs_of(looked_at), len(looked_at))
    assert [read_back(row, queue) for row, queue in zip(batch.to_pylist(), queues, strict=True)] == looked_at


def read_back(row: dict[str, Any], queue: str) -> MessageInfo:
    """From columns as `normalize` promises them: what is still null stands for nothing."""
    read = {
        "id": show_id(row["id"]),
        "seq": row["seq"] or 0,
        "place": row["place"] or 0,
        "carry": row["carry"] or b"",
        "headers": read_headers(row["headers"]) or {},
        "progress": Progress(row["progress"]),
        "reason": None if row["reason"] is None else FailureReason(row["reason"]),
        "failures": read_failures(row["failures"]),
        "throttle_keys": tuple(row["throttle_keys"]),
        "hidden": tuple(row["hidden"]),
    }
    return MessageInfo(queue=queue, **row | read)


def test_defaults_that_travelled_as_nulls_are_filled_in() -> None:
    plain = fill_defaults(encode_deliveries([delivery(), delivery()]), DELIVERIES)
    assert plain.schema.equals(DELIVERIES)
    row = plain.to_pylist()[1]
    assert {
        name: row[name]
        for name in (
            "weight",
            "throttle_keys",
            "deliveries",
            "attempts",
            "progress",
            "fairness_key",
            "payload",
        )
    } == {
        "weight": 1,
        "throttle_keys": [],
        "deliveries": 1,
        "attempts": 0,
        "progress": 0,
        "fairness_key": "default",
        "payload": b"p",
    }
    assert {name for name, value in row.items() if value is None} == {
        "headers",
        "stream",
        "seq",
        "carry",
        "failures",
        "dead_since",
        "source",
    }


def test_defaults_are_filled_in_among_rows_that_differ() -> None:
    keyed = delivery(lane=pack_lane("k", ("a", "b")), state=MessageState(0, attempts=3, progress=4, weight=9))
    rows = fill_defaults(encode_deliveries([delivery(), keyed, delivery()]), DELIVERIES).to_pylist()
    assert [row["throttle_keys"] for row in rows] == [[], ["a", "b"], []]
    assert [(row["attempts"], row["progress"], row["weight"]) for row in rows] == [
        (0, 0, 1),
        (3, 4, 9),
        (0, 0, 1),
    ]


def test_a_null_list_that_hides_values_is_empty_all_the_same() -> None:
    hiding = pa.ListArray.from_buffers(
        pa.list_(pa.utf8()),
        2,
        [pa.py_buffer(b"\x02"), pa.array([0, 1, 2], pa.int32()).buffers()[1]],
        children=[pa.array(["secret", "b"])],
    )
    batch = pa.RecordBatch.from_arrays([hiding], names=["throttle_keys"])
    assert fill_defaults(batch, DELIVERIES).column("throttle_keys").to_pylist() == [[], ["b"]]


def test_columns_that_a_server_left_out_are_there() -> None:
    narrow = pa.RecordBatch.from_pydict({"id": pa.array([bytes(16)], pa.binary(16))})
    filled = fill_defaults(narrow, BROWSED)
    assert filled.schema.equals(BROWSED)
    assert filled.to_pylist()[0]["hidden"] == []


def test_payloads_stay_behind_when_nobody_asks_for_them() -> None:
    batch = fill_defaults(encode_deliveries([delivery(b"x" * 1000)], payloads=False), DELIVERIES)
    assert batch.column("payload").to_pylist() == [None]
    assert batch.get_total_buffer_size() < 1000


def test_a_batch_that_is_not_sound_is_refused_by_the_client_too() -> None:
    no_text = pa.StringArray.from_buffers(1, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff"))
    with pytest.raises(errors.InvalidRequest, match="sound"):
        fill_defaults(pa.RecordBatch.from_arrays([no_text], names=["stream"]), DELIVERIES)


def test_wider_types_are_fitted_and_missing_columns_are_null() -> None:
    given_batch = pa.RecordBatch.from_pydict(
        {
            "payload": pa.array([b"a", b"b"], pa.large_binary()),
            "weight": pa.array([1, 2], pa.int64()),
            "stream": pa.array(["s", None], pa.large_utf8()),
        }
    )
    fitted = fit(given_batch, MESSAGES)
    assert fitted.schema.equals(MESSAGES)
    assert fitted.column("payload").to_pylist() == [b"a", b"b"]
    assert fitted.column("weight").to_pylist() == [1, 2]
    assert fitted.column("ttl_ms").null_count == 2


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("weight", pa.array([2**40], pa.int64())),
        ("payload", pa.array([1.5])),
        ("delay_ms", pa.array(["soon"])),
        ("paylod", pa.array([b"x"])),
    ],
)
def test_a_column_that_cannot_be_fitted_is_named(column: str, value: pa.Array) -> None:
    with pytest.raises(errors.InvalidRequest, match=column):
        fit(pa.RecordBatch.from_arrays([value], names=[column]), MESSAGES)


def test_what_is_no_batch_is_refused() -> None:
    with pytest.raises(errors.InvalidRequest, match="RecordBatch"):
        fit({"payload": [b"x"]}, MESSAGES)
    with pytest.raises(errors.InvalidRequest, match="once"):
        fit(
            pa.RecordBatch.from_arrays([pa.array([b"x"]), pa.array([b"y"])], names=["payload", "payload"]),
            MESSAGES,
        )
