"""Messages that arrive by column are the messages that they would be one by one."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import InvalidRequest
from fairlead.model.checks import CheckedColumns, by_column, by_row, check_columns, check_messages
from fairlead.model.limits import MAX_DURATION_MS, MAX_KEY_BYTES
from fairlead.model.message import NewMessage
from fairlead.wire.columns import BatchColumns
from fairlead.wire.messages import decode_messages, encode_messages, read_messages
from fairlead.wire.schemas import MESSAGES

texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=5)
new_messages = st.builds(
    NewMessage,
    st.binary(max_size=9),
    st.none() | st.dictionaries(texts, texts, max_size=2),
    texts,
    st.integers(1, 1000),
    st.lists(texts, max_size=2).map(tuple),
    st.none() | texts,
    st.none() | st.integers(0, 99).map(lambda ms: timedelta(milliseconds=ms)),
    st.none() | texts,
    st.none() | st.integers(0, 99).map(lambda ms: timedelta(milliseconds=ms)),
)


@given(st.lists(new_messages, min_size=1, max_size=6))
def test_columns_that_arrive_are_checked_like_the_messages_in_them(given_in: list[NewMessage]) -> None:
    checked = check_messages(given_in)
    arrived = decode_messages(encode_messages(checked))
    assert isinstance(arrived, CheckedColumns)
    assert by_row(check_columns(arrived)) == checked
    assert check_messages([*arrived]) == checked
    assert check_messages([*arrived[1:3]]) == checked[1:3]


@given(st.lists(new_messages, min_size=1, max_size=6))
def test_rows_and_columns_are_two_forms_of_the_same(given_in: list[NewMessage]) -> None:
    checked = check_messages(given_in)
    assert by_row(by_column(checked)) == checked


WRONG = {
    "fairness_key": ["", "k" * (MAX_KEY_BYTES + 1)],
    "stream": ["", "s" * (MAX_KEY_BYTES + 1)],
    "dedup_key": [""],
    "delay_ms": [-1, MAX_DURATION_MS + 1],
    "ttl_ms": [-1, MAX_DURATION_MS + 1],
    "throttle_keys": [[""], [f"k{at}" for at in range(99)]],
    "headers": [b"\xc1", b"\x81\xa1a\x01"],
}


@pytest.mark.parametrize(("name", "value"), [(name, one) for name, values in WRONG.items() for one in values])
def test_a_wrong_value_in_a_column_is_refused_as_in_a_message(name: str, value: object) -> None:
    column = pa.array([None, value], MESSAGES.field(name).type)
    batch = pa.record_batch({"payload": pa.array([b"good", b"bad"]), name: column})

    def one_by_one() -> None:
        check_messages(read_messages(BatchColumns(batch, MESSAGES)))

    def by_columns() -> None:
        check_columns(decode_messages(batch))

    with pytest.raises(InvalidRequest) as expected:
        one_by_one()
    with pytest.raises(InvalidRequest) as refused:
        by_columns()
    assert str(refused.value) == str(expected.value)


def test_a_weight_out_of_bounds_is_corrected_also_in_a_column() -> None:
    batch = pa.record_batch({"payload": pa.array([b"a", b"b"]), "weight": pa.array([0, 5000], pa.int32())})
    assert list(check_columns(decode_messages(batch)).weights) == [1, 1000]
