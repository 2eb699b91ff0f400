"""Each rule of the audit finds the breach that it is there for, and none in a ledger that is as it should be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.crash.journal import Line

from .audit import GONE, Ending, Found, check
from .fates import ALWAYS, LIMIT, STEPS, Fate, Sent

SENT = [
    Sent("m0", None, 0),
    Sent("m1", "s", 0, Fate("fails", "charge", 1)),
    Sent("m2", "s", 1, Fate("dead", "mail")),
    Sent("m3", "s", 2, Fate("slow", "parse", ms=1)),
]


def call(tag: str, step: str, how: str = "end", attempts: int = 0) -> list[Line]:
    """`how` it ended; "" for one that never did."""
    (one,) = [one for one in SENT if one.tag == tag]
    line: Line = {"tag": tag, "step": step, "stream": one.stream, "n": one.n, "attempts": attempts}
    return [line | {"ev": ev} for ev in ("begin", how) if ev]


def calls(tag: str, *steps: str, attempts: int = 0) -> list[Line]:
    return [line for step in steps for line in call(tag, step, attempts=attempts)]


M0 = calls("m0", *STEPS)
M1 = [*calls("m1", "parse"), *call("m1", "charge", "failed"), *calls("m1", "charge", "mail", attempts=1)]
M2 = [*calls("m2", "parse", "charge"), *call("m2", "mail", "failed")]
M3 = calls("m3", *STEPS)
GOOD = [*M0, *M1, *M2, *M3]

TOLD, KILLED = ("dependency_failure", "as it was told"), ("timeout_exceeded", "the process that ran it ended")
REFUSED = ("validation_failure", "as it was told")
ENDINGS = {
    "m0": Ending("done"),
    "m1": Ending("done", 1, [TOLD]),
    "m2": Ending("dead", 1, [REFUSED]),
    "m3": Ending("done"),
}
CLEAN = Found(ENDINGS)


def ended(**endings: Ending) -> Found:
    return Found(ENDINGS | endings)


def test_a_ledger_as_it_should_be_has_no_problems() -> None:
    assert check(SENT, GOOD, CLEAN, retained=True) == []
    gone = {tag: GONE if ending.where == "done" else ending for tag, ending in ENDINGS.items()}
    assert check(SENT, GOOD, Found(gone), retained=False) == []


def test_what_a_kill_leaves_in_doubt_may_be_done_again_and_may_be_counted_against_it() -> None:
    killed = [
        *call("m0", "parse"),
        *call("m0", "parse"),
        *call("m0", "charge", ""),
        *calls("m0", "charge", "mail", attempts=1),
        *GOOD[len(M0) :],
    ]
    assert check(SENT, killed, ended(m0=Ending("done", 1, [KILLED])), retained=True, kills=1) == []
    told = check(SENT, killed, ended(m0=Ending("done", 1, [KILLED])), retained=True)
    words = ("nobody made", "parse was done 2 times", "parse was called 2 times", "charge was called 2 times")
    assert all(word in problem for word, problem in zip(words, told, strict=True)), told


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (replace(CLEAN, left=2), "still in the queue at the end: 2 messages"),
        (replace(CLEAN, open_claims=["worker:billing"]), "still open at the end: worker:billing"),
        (replace(CLEAN, unlawful=["counters"]), "verify: counters"),
        (ended(m0=GONE), "m0 should be done at the end, and is gone"),
        (ended(m0=Ending("leased")), "m0 should be done at the end, and is leased"),
        (ended(m0=Ending("dead", 1, [KILLED])), "m0 should be done at the end, and is dead"),
        (ended(m2=Ending("done")), "m2 should be dead at the end, and is done"),
        (ended(m2=Ending("dead", 1, [])), "m2 has 1 attempts and 0 failures"),
        (ended(m2=Ending("dead", 1, [KILLED])), "m2 is dead after 1 attempts"),
        (ended(m0=Ending("done", 1, [KILLED])), "m0 has failures on its record that nobody made"),
        (ended(m1=Ending("done")), "m1 failed 1 times, and its record is []"),
    ],
)
def test_how_messages_ended_is_judged(found: Found, problem: str) -> None:
    assert any(problem in told for told in check(SENT, GOOD, found, retained=True))


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (GOOD[:-1], "lost: m3 is completed, and of its steps only ['charge', 'parse'] were ever done"),
        (
            [*GOOD, *calls("m0", "charge")],
            "m0: charge was confirmed, because mail had been called, and was called again",
        ),
        ([*GOOD, *call("m0", "parse", "")], "m0: parse was confirmed"),
        (
            [*calls("m0", "parse", "mail", "charge"), *GOOD[len(M0) :]],
            "m0: mail was called before charge was done",
        ),
        (
            [*call("m0", "parse", ""), *calls("m0", "charge", "mail"), *GOOD[len(M0) :]],
            "m0: charge was called before parse was done",
        ),
        ([*GOOD, *calls("m0", "mail")], "m0: mail was done 2 times, with 0 kills"),
        ([*GOOD, *call("m0", "mail", "")], "m0: mail was called 2 times, with 0 kills"),
        (
            [*M0, *M1, *calls("m1", "mail"), *M2, *M3],
            "m1: mail was called with 0 attempts after it had had 1",
        ),
        ([{**GOOD[0], "tag": "m9"}, *GOOD], "nobody sent m9"),
        ([*M0, *M2, *M1, *M3], "m1, 0 of stream s, was called after 1 of it"),
        (
            [*M0, *M1[:-1], *M2[:1], M1[-1], *M2[1:], *M3],
            "m2, 1 of stream s, was called before 0 of it was done",
        ),
        ([*M0, *M1, *M3[:1], *M2, *M3[1:]], "m2, 1 of stream s, was called after 2 of it"),
        ([*M0, *M1, *M2, *M3[:2], *M2[-2:], *M3[2:]], "m2, 1 of stream s, was called after 2 of it"),
    ],
)
def test_when_steps_were_called_is_judged(lines: list[Line], problem: str) -> None:
    assert any(problem in told for told in check(SENT, lines, CLEAN, retained=True))


def test_one_that_always_fails_must_have_its_whole_record() -> None:
    hopeless = [Sent("m0", fate=Fate("fails", "parse", ALWAYS))]
    lines = [line for attempts in range(LIMIT) for line in call("m0", "parse", "failed", attempts)]
    assert check(hopeless, lines, Found({"m0": Ending("dead", LIMIT, [TOLD] * LIMIT)}), retained=True) == []
    (told,) = check(
        hopeless, lines, Found({"m0": Ending("dead", LIMIT - 1, [TOLD] * (LIMIT - 1))}), retained=True
    )
    assert f"m0 is dead after {LIMIT - 1} attempts" in told
