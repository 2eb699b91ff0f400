"""The short check of whole columns, with the check message by message as its oracle."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import NewMessage
from fairlead.errors import InvalidRequest
from fairlead.model.checks import by_column, check_messages, find_columns, find_plain
from fairlead.model.limits import MAX_BATCH_MESSAGES, MAX_KEY_BYTES, MAX_WEIGHT

_TEXTS = st.sampled_from(["a", "b", "ключ", "x" * 100])
_WRONG_TEXTS = st.sampled_from(["", "\ud800", "x" * (MAX_KEY_BYTES + 1), "é" * MAX_KEY_BYTES, 7, b"a", ["a"]])
_DURATIONS = st.sampled_from(["30s", "2m", timedelta(seconds=1), "0s"])
GOOD: dict[str, st.SearchStrategy[Any]] = {
    "payload": st.binary(max_size=5),
    "headers": st.none() | st.dictionaries(_TEXTS, _TEXTS, max_size=2),
    "fairness_key": _TEXTS,
    "weight": st.integers(1, MAX_WEIGHT),
    "throttle_keys": st.sampled_from([(), ("a",), ("a", "b"), ["b"], ("b", "a"), ("a", "a")]),
    "stream": st.none() | _TEXTS,
    "delay": st.none() | _DURATIONS,
    "dedup_key": st.none() | _TEXTS,
    "ttl": st.none() | _DURATIONS,
}
WRONG: dict[str, st.SearchStrategy[Any]] = {
    "payload": st.sampled_from(["text", None, bytearray(b"x"), memoryview(b"x")]),
    "headers": st.sampled_from([{"a": 1}, ["a"], {1: "a"}, {"\ud800": "a"}]),
    "fairness_key": _WRONG_TEXTS | st.none(),
    "weight": st.sampled_from([0, -5, MAX_WEIGHT + 1, True, 1.0, "1", None]),
    "throttle_keys": st.sampled_from(["a", (1,), ([],), ("",), [["a"]], 5]),
    "stream": _WRONG_TEXTS,
    "delay": st.sampled_from([5, "soon", "-1s", [], 0.5]),
    "dedup_key": _WRONG_TEXTS,
    "ttl": st.sampled_from([5, "soon", [], True]),
}


@st.composite
def messages(draw: st.DrawFn) -> list[NewMessage]:
    fields = draw(st.sets(st.sampled_from(sorted(GOOD)), max_size=4)) | {"payload"}
    made = draw(
        st.lists(st.fixed_dictionaries({field: GOOD[field] for field in fields}), min_size=1, max_size=6)
    )
    if draw(st.booleans()):
        field = draw(st.sampled_from(sorted(WRONG)))
        made[draw(st.integers(0, len(made) - 1))][field] = draw(WRONG[field])
    return [NewMessage(**one) for one in made]


@given(messages())
def test_columns_are_those_of_the_messages_checked_one_by_one(given_messages: list[NewMessage]) -> None:
    columns = find_columns(given_messages)
    if columns is None:
        return
    expected = by_column(check_messages(given_messages))
    for name, ours, theirs in zip(columns._fields, columns, expected, strict=True):
        assert (None if ours is None else [*ours]) == (None if theirs is None else [*theirs]), name


@given(messages())
def test_the_columns_of_one_plain_message_are_those_of_its_check(given_messages: list[NewMessage]) -> None:
    for message in given_messages:
        columns = find_plain(message)
        if columns is not None:
            expected = by_column(check_messages([message]))
            assert [column and [*column] for column in columns] == [
                column and [*column] for column in expected
            ]


@pytest.mark.parametrize("more", [{}, {"stream": "s"}, {"dedup_key": "d"}, {"throttle_keys": ("t",)}])
def test_a_plain_message_takes_the_shortest_way(more: dict[str, Any]) -> None:
    assert find_plain(NewMessage(b"p", fairness_key="k", weight=3, **more)) is not None


@given(messages())
def test_messages_that_are_refused_one_by_one_have_no_columns(given_messages: list[NewMessage]) -> None:
    try:
        check_messages(given_messages)
    except InvalidRequest:
        assert find_columns(given_messages) is None


@pytest.mark.parametrize("field", GOOD)
def test_each_field_has_a_short_way(field: str) -> None:
    usual: dict[str, Any] = {
        "payload": b"p",
        "headers": {"a": "b"},
        "fairness_key": "ключ",
        "weight": 3,
        "throttle_keys": ("a", "b"),
        "stream": "s",
        "delay": "30s",
        "dedup_key": "d",
        "ttl": "1m",
    }
    assert find_columns([NewMessage(**({"payload": b""} | {field: usual[field]}))]) is not None


def test_no_messages_and_too_many_have_no_columns() -> None:
    assert find_columns([]) is None
    assert find_columns([NewMessage(b"")] * (MAX_BATCH_MESSAGES + 1)) is None
    assert find_columns("messages") is None
