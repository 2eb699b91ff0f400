"""Each rule of the audit finds the breach that it is there for, and none in a history that is as it should
be.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.crash.journal import Line

from .audit import Found, check_produced, check_settled

SENT = {"m1": "a", "m2": None, "m3": "a", "m4": "b"}
TAGS = list(SENT)


def claim(number: int, tags: list[str], attempts: int = 0) -> Line:
    return {
        "ev": "done",
        "do": "claim",
        "number": number,
        "members": [[f"id-{tag}", tag, attempts] for tag in tags],
    }


def read(number: int, tags: list[str], slice: int = 0, slices: int = 1) -> Line:
    return {"ev": "done", "do": "read", "number": number, "slice": slice, "slices": slices, "tags": tags}


def close(up_to: int, visible: list[str]) -> list[Line]:
    return [
        {"ev": "begin", "do": "close", "up_to": up_to, "visible": visible},
        {"ev": "done", "do": "close", "up_to": up_to},
    ]


GOOD = [
    claim(1, ["m1", "m2"]),
    read(1, ["m1", "m2"]),
    claim(1, ["m1", "m2"]),
    read(1, ["m1"], 0, 2),
    read(1, ["m2"], 1, 2),
    *close(1, ["m1", "m2"]),
    claim(2, ["m3", "m4"]),
    read(2, ["m3", "m4"]),
    *close(2, TAGS),
    claim(3, []),
]
CLEAN = Found(sink=TAGS)


def test_a_history_as_it_should_be_has_no_problems() -> None:
    assert check_produced(SENT, GOOD, CLEAN) == []


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (replace(CLEAN, sink=["m1", "m2", "m4"]), "lost: m3"),
        (replace(CLEAN, sink=[*TAGS, "m2"]), "published 2 times: m2"),
        (replace(CLEAN, sink=[*TAGS, "m9"]), "nobody sent m9"),
        (replace(CLEAN, sink=["m3", "m1", "m2", "m4"]), "stream a is out of order"),
        (replace(CLEAN, source_left=1), "still in the source"),
        (replace(CLEAN, open_claims=["etl"]), "still open at the end: etl"),
        (replace(CLEAN, unpublished=["q/3"]), "neither published nor discarded: q/3"),
        (replace(CLEAN, unlawful=["counters"]), "verify: counters"),
    ],
)
def test_what_is_left_in_the_queues_is_judged(found: Found, problem: str) -> None:
    (told,) = check_produced(SENT, GOOD, found)
    assert problem in told


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            [*GOOD[:5], *close(1, ["m1"]), *GOOD[7:]],
            "completed before it was published: close up to 1 of claim 1 without ['m2']",
        ),
        ([*GOOD[:5], *close(2, ["m1", "m2"]), *GOOD[7:]], "close up to 2 of claim 2 without ['m3', 'm4']"),
        ([*GOOD, *close(2, [])], None),
        ([claim(1, ["m1", "m2"]), claim(1, ["m2", "m1"]), *GOOD[1:]], "claim 1 was another one"),
        (
            [*GOOD[:3], read(1, ["m1"]), *GOOD[3:]],
            "slice (1, 0) of claim 1 was another one when it was read again",
        ),
        ([claim(1, ["m1", "m2"]), read(1, ["m2", "m1"]), *GOOD[5:]], "not in the order of the claim"),
        ([claim(1, ["m1", "m2"]), read(1, ["m1", "m2", "m4"]), *GOOD[5:]], "not in the order of the claim"),
        ([*GOOD[:4], read(1, [], 1, 2), *GOOD[5:]], "the 2 slices of claim 1 are not the claim"),
        ([*GOOD, claim(3, ["m4"])], "in 2 claims: m4"),
        ([*GOOD[:8], *GOOD[9:]], "claim 2 was closed, and not all of it was read"),
        ([*GOOD[:8], read(2, ["m3"], 0, 2), *GOOD[9:]], "claim 2 was closed, and not all of it was read"),
    ],
)
def test_what_the_broker_was_asked_is_judged(lines: list[Line], problem: str | None) -> None:
    told = check_produced(SENT, lines, CLEAN)
    assert any(problem in one for one in told) if problem else told == []


KINDS = {"m1": "complete", "m2": "fail", "m3": "release", "m4": "dead"}


def record(number: int, tags: list[str], part: str) -> Line:
    return {
        "ev": "done",
        "do": "record",
        "number": number,
        "part": part,
        "items": [["complete", f"id-{tag}"] for tag in tags],
    }


def choose(number: int, *parts: str, add: bool = False) -> Line:
    return {"ev": "done", "do": "choose", "number": number, "parts": list(parts), "add": add}


SETTLED = [
    claim(1, TAGS),
    record(1, TAGS, "p1"),
    record(1, TAGS[:1], "p2"),
    choose(1, "p1"),
    *close(1, []),
    {"ev": "done", "do": "claim", "number": 2, "members": [["id-m2", "m2", 1], ["id-m3", "m3", 0]]},
    record(2, ["m2", "m3"], "p3"),
    choose(2, "p3"),
    *close(2, []),
]
BURIED = Found(dead=[("m4", 1)])


def test_settlements_as_they_should_be_have_no_problems() -> None:
    assert check_settled(KINDS, SETTLED, BURIED) == []
    assert check_settled(KINDS, [*SETTLED[:4], choose(1, "p2", add=True), *SETTLED[4:]], BURIED) == []


@pytest.mark.parametrize(
    ("lines", "found", "problem"),
    [
        (
            [*SETTLED[:3], choose(1, "p2"), *SETTLED[4:]],
            BURIED,
            "closed without a word about ['id-m2', 'id-m3', 'id-m4'] of claim 1",
        ),
        (
            [*SETTLED[:4], choose(1, "p2"), *SETTLED[4:]],
            BURIED,
            "closed without a word about ['id-m2', 'id-m3', 'id-m4'] of claim 1",
        ),
        ([*SETTLED[:3], *SETTLED[4:]], BURIED, "closed without a word"),
        ([*SETTLED, claim(3, ["m1"])], BURIED, "complete: m1 was claimed with attempts [0, 0], expected [0]"),
        (SETTLED[:6], BURIED, "fail: m2 was claimed with attempts [0], expected [0, 1]"),
        (SETTLED, Found(), "dead: m4 is among the dead letters []"),
        (SETTLED, Found(dead=[("m4", 2)]), "dead: m4 is among the dead letters [('m4', 2)]"),
        (SETTLED, Found(dead=[("m4", 1), ("m1", 1)]), "a dead letter that nobody made: m1"),
    ],
)
def test_settlements_are_judged(lines: list[Line], found: Found, problem: str) -> None:
    assert any(problem in one for one in check_settled(KINDS, lines, found))
