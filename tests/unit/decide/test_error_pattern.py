"""Searches by RE2: they find what `re` finds where both have the syntax, refuse the rest, and let other
threads run.
"""

from __future__ import annotations

import re
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.decide.error_pattern import ErrorPattern, PatternRefused
from fairlead.model.limits import MAX_PATTERN_BYTES, MAX_PATTERN_INSTRUCTIONS
from tests.sampling import sampled

#: Each as RE2 writes it and as `re` (with `re.ASCII`) writes the same: `$` of RE2 is the very end, which `re`
#: calls `\Z`.
ATOMS = [
    *(
        (atom, atom)
        for atom in (
            "a",
            "b",
            "A",
            "é",
            "_",
            " ",
            r"\n",
            r"\.",
            ".",
            r"\d",
            r"\D",
            r"\w",
            r"\W",
            "[ab]",
            "[^a]",
            r"[a-c\d]",
        )
    ),
    *((atom, atom) for atom in ("^", r"\A", r"\b", r"\B", "(?i:a)", "(?s:.)", "(?m:^)", "(?-i:b)", "(?:)")),
    ("$", r"\Z"),
    (r"\z", r"\Z"),
    ("(?m:$)", "(?m:$)"),
]
REPEATS = ["*", "+", "?", "*?", "+?", "??", "{2}", "{0}", "{0,2}", "{1,}", "{1,3}", "{1,3}?"]

Pair = tuple[str, str]


def _joined(parts: list[Pair], before: str = "", between: str = "", after: str = "") -> Pair:
    ours, theirs = zip(*parts, strict=True)
    return before + between.join(ours) + after, before + between.join(theirs) + after


expressions = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(_joined),
        st.lists(inner, min_size=2, max_size=3).map(lambda branches: _joined(branches, "(", "|", ")")),
        st.tuples(inner, st.sampled_from(REPEATS)).map(
            lambda pair: _joined([pair[0]], "(?:", "", f"){pair[1]}")
        ),
    ),
    max_leaves=6,
)
texts = st.text(alphabet="aAbBcé_1 .\n", max_size=7)
flags = st.sampled_from(["", "(?i)", "(?m)", "(?s)", "(?im)"])


@settings(max_examples=sampled(125, of=500), deadline=None)
@given(flag=flags, expression=expressions, given_texts=st.lists(texts, min_size=1, max_size=5))
def test_it_finds_what_re_finds(flag: str, expression: Pair, given_texts: list[str]) -> None:
    ours, theirs = expression
    if "m" in flag:
        # There `$` is the end of any line for both.
        theirs = ours.replace(r"\z", r"\Z")
    if r"\B" in ours:
        # `re` finds no \B in an empty text; RE2 finds one, and one between the bytes of a character.
        given_texts = [text for text in given_texts if text and text.isascii()]
    pattern = ErrorPattern(flag + ours)
    for text in given_texts:
        assert pattern.search(text) == (re.search(flag + theirs, text, re.ASCII) is not None), (
            flag + ours,
            text,
        )


@pytest.mark.parametrize(
    ("expression", "text", "found"),
    [
        ("host$", "no host\n", False),
        (r"\w", "é", False),
        (r"\pL", "é", True),
        (r"\d", "٣", False),
        ("a{,2}", "a", False),
        ("a{,2}", "a{,2}", True),
        (r"\Qa.b\E", "a.b", True),
        (r"\Qa.b\E", "axb", False),
        ("[[:upper:]]", "aB", True),
    ],
)
def test_what_the_reference_says_differs_from_re_does(expression: str, text: str, found: bool) -> None:
    assert ErrorPattern(expression).search(text) is found


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (r"(a+)+$", "a" * 5000 + "!"),
        (r"(a|a)*b", "a" * 5000),
        (r"(a|aa|aaa)+$", "a" * 5000 + "b"),
        (r".*foo.*bar.*baz", "foobar" * 1000),
        (r"(x+x+)+y", "x" * 5000),
        (r"(a|b)*a(a|b){100}c", "ab" * 4000),
    ],
    ids=["nested", "ambiguous", "overlapping", "wildcards", "twice", "states"],
)
def test_an_expression_that_re_never_ends_on_comes_to_an_end(expression: str, text: str) -> None:
    assert ErrorPattern(expression).search(text) is False


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("(", "missing )"),
        ("[", "missing ]"),
        ("a**", "bad repetition"),
        ("(?=a)", "look-around"),
        ("(?!a)", "look-around"),
        ("(?<=a)b", "look-around"),
        ("(?<!a)b", "look-around"),
        (r"(a)\1", "back references"),
        ("(a)(?(1)b|c)", "conditions"),
        ("(?>a+)", "atomic"),
        ("a++", "possessive"),
        ("a{1,100000}", "repetition size"),
        ("(x{1,999}){1,999}", "repetition size"),
        ("a.{240}b.{240}c", "RE2 instructions"),
        (r"\pL{500}", "more memory"),
        ("\ud800", "not Unicode"),
    ],
)
def test_an_expression_that_cannot_be_searched_for_is_refused_with_the_reason(
    expression: str, why: str
) -> None:
    with pytest.raises(PatternRefused, match=re.escape(why)):
        ErrorPattern(expression)


def test_an_expression_may_have_so_many_bytes_and_instructions_and_no_more() -> None:
    longest = "a" * MAX_PATTERN_BYTES
    assert ErrorPattern(longest).search(longest)
    with pytest.raises(PatternRefused, match=str(MAX_PATTERN_BYTES)):
        ErrorPattern(longest + "a")
    assert ErrorPattern("(a?){900}").instructions <= MAX_PATTERN_INSTRUCTIONS
    with pytest.raises(PatternRefused, match=str(MAX_PATTERN_INSTRUCTIONS)):
        ErrorPattern("(a?b?){600}c")


def test_other_threads_run_during_a_search() -> None:
    """With this switch interval a thread keeps the GIL until it gives it up by itself."""
    pattern, text = ErrorPattern("(a?){900}c"), "a" * 8000
    begins, ran = threading.Event(), threading.Event()
    seen: list[bool] = []

    def search() -> None:
        begins.set()
        pattern.search(text)
        seen.append(ran.is_set())

    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        worker = threading.Thread(target=search)
        worker.start()
        begins.wait()
        ran.set()
        worker.join()
    finally:
        sys.setswitchinterval(before)
    assert seen == [True]
