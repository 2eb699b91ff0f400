"""Searches that find what `re` finds, and never take longer for the expression."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.decide.pattern import MOST_CHARACTERS, MOST_PLACES, Pattern, Refused

ATOMS = [
    "a", "b", "A", "é", "_", " ", r"\n", r"\.", ".", r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", "[ab]", "[^a]", r"[a-c\d]", "[^\\n]",
    "^", "$", r"\A", r"\Z", r"\b", r"\B", "(?i:a)", "(?s:.)", "(?m:^)", "(?m:$)", r"(?a:\w)", r"(?a:\b)", "(?-i:b)", "(?:)",
]  # fmt: skip
REPEATS = ["*", "+", "?", "*?", "+?", "??", "{2}", "{0}", "{,2}", "{1,}", "{1,3}", "{1,3}?"]

expressions = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda branches: f"({'|'.join(branches)})"),
        st.tuples(inner, st.sampled_from(REPEATS)).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=6,
)
texts = st.text(alphabet="aAbBcé_1 .\n", max_size=7)
flags = st.sampled_from(["", "(?i)", "(?m)", "(?s)", "(?a)", "(?im)"])


@settings(max_examples=700, deadline=None)
@given(flag=flags, expression=expressions, given_texts=st.lists(texts, min_size=1, max_size=5))
def test_it_finds_what_re_finds(flag: str, expression: str, given_texts: list[str]) -> None:
    pattern = Pattern(flag + expression)
    for text in given_texts:
        assert pattern.search(text) == (re.search(flag + expression, text) is not None), (flag + expression, text)


@pytest.mark.parametrize("expression", [r"(?a:\w)", r"(?a)\w", r"(?a).?(?u:\w)", r"(?a:\b)", r"(?u:(?a:\w)\w)"])
@pytest.mark.parametrize("text", ["é", "aé", "éa"])
def test_an_inner_alphabet_takes_the_place_of_the_outer(expression: str, text: str) -> None:
    assert Pattern(expression).search(text) == (re.search(expression, text) is not None)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (r"(a+)+$", "a" * 5000 + "!"),
        (r"(a|a)*b", "a" * 5000),
        (r"(a|aa|aaa)+$", "a" * 5000 + "b"),
        (r".*foo.*bar.*baz", "foobar" * 1000),
        (r"(x+x+)+y", "x" * 5000),
    ],
    ids=["nested", "ambiguous", "overlapping", "wildcards", "twice"],
)
def test_an_expression_that_re_never_ends_on_costs_a_few_steps(expression: str, text: str) -> None:
    pattern = Pattern(expression)
    assert pattern.search(text) is False
    assert pattern._steps < 50, "what was worked out for one character serves all like it"


def test_what_is_remembered_is_bounded_and_forgetting_it_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.decide.pattern._MOST_KNOWN", 5)
    pattern = Pattern("(a|b)*a(a|b){5}c")
    for text in ("abbabaabbc", "bbbbbbbbbbbb", "abababababac", "aaaaac"):
        assert pattern.search(text) == (re.search("(a|b)*a(a|b){5}c", text) is not None)
        assert pattern._steps <= 6


@pytest.mark.parametrize(
    "expression",
    ["(", "a**", "[", "(?=a)", "(?!a)", "(?<=a)b", "(?<!a)b", r"(a)\1", "(a)(?(1)b|c)", "(?>a+)", "a++", "a{1,100000}", "(" * 5000 + ")" * 5000],
    ids=lambda expression: expression[:20],
)
def test_what_is_no_expression_or_needs_going_back_is_refused(expression: str) -> None:
    with pytest.raises(Refused):
        Pattern(expression)


def test_an_expression_may_have_so_many_places_and_no_more() -> None:
    assert Pattern("a" * MOST_PLACES).search("a" * MOST_PLACES)
    with pytest.raises(Refused):
        Pattern("a" * (MOST_PLACES + 1))
    assert Pattern("(?:){1000000000}").search("")


def test_an_expression_may_be_so_long_and_no_longer() -> None:
    longest = "[" + "a" * (MOST_CHARACTERS - 2) + "]"
    assert Pattern(longest).search("a")
    with pytest.raises(Refused):
        Pattern(longest + "a")
