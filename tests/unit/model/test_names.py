from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import InvalidRequest
from fairlead.model.limits import MAX_QUEUE_NAME
from fairlead.model.names import check_queue_name, dead_letter_name, is_dead_letter_name


@pytest.mark.parametrize(
    "name", ["mail", "Mail_2", "a", "_x", "9", "billing/mail", "a.b-c", "p.x/q-1", "x" * MAX_QUEUE_NAME]
)
def test_a_good_name_passes_unchanged(name: str) -> None:
    assert check_queue_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-a",
        ".a",
        "a b",
        "a/",
        "/a",
        "a/b/c",
        "a//b",
        "a\n",
        "é",
        "a:b",
        "a\0",
        "x" * (MAX_QUEUE_NAME + 1),
        5,
        None,
        b"mail",
        ["a"],
    ],
)
def test_a_bad_name_is_refused_and_the_grammar_said(name: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_queue_name(name)
    assert refused.value.field == "queue"
    assert "letters, digits" in str(refused.value)


@given(
    st.from_regex(r"(?:[A-Za-z0-9_][A-Za-z0-9_.\-]{0,20}/)?[A-Za-z0-9_][A-Za-z0-9_.\-]{0,20}", fullmatch=True)
)
def test_the_dead_letter_queue_of_a_good_name_has_a_good_name(name: str) -> None:
    assert is_dead_letter_name(check_queue_name(dead_letter_name(check_queue_name(name))))
