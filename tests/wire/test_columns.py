"""What is remembered between batches is a short cut, never an answer of its own."""

from __future__ import annotations

import pyarrow as pa
import pytest

from fairlead import NewMessage, errors
from fairlead.model.checks import check_messages
from fairlead.wire import values
from fairlead.wire.columns import BatchColumns
from fairlead.wire.messages import decode_messages, encode_messages
from fairlead.wire.schemas import MESSAGES, SETTLEMENTS


def test_more_keys_than_are_remembered_still_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_MAX_KEYS", 3)
    monkeypatch.setattr(values, "_keys", {})
    for first in range(0, 12, 2):
        checked = check_messages([NewMessage(b"", fairness_key=f"key {n}") for n in range(first, first + 5)])
        assert check_messages(decode_messages(encode_messages(checked))) == checked


def test_more_lanes_than_are_remembered_are_still_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_MAX_LANES", 3)
    monkeypatch.setattr(values, "_lanes", {})
    for first in range(0, 12, 2):
        keys = [f"key {n}" for n in range(first, first + 5)]
        assert values.keys_of(values.lanes_of(keys, None))[0] == keys


def test_columns_may_come_in_another_order_and_without_the_rest() -> None:
    narrow = pa.RecordBatch.from_pydict({"fairness_key": ["a", None], "payload": [b"x", b"y"]})
    columns = BatchColumns(narrow, MESSAGES)
    assert columns.read("payload") == [b"x", b"y"]
    assert columns.read("fairness_key", "default") == ["a", "default"]
    assert columns.find("headers") is None


def test_a_batch_of_another_schema_is_refused_however_often_it_comes() -> None:
    strange = pa.RecordBatch.from_pydict({"payload": ["text"]})
    for _ in range(2):
        with pytest.raises(errors.InvalidRequest, match="column payload"):
            BatchColumns(strange, MESSAGES)
        with pytest.raises(errors.InvalidRequest, match="columns"):
            BatchColumns(strange, SETTLEMENTS)
