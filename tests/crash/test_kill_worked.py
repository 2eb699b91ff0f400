"""A claim worked on message by message, killed at any of its commits: what was answered holds, and of what
was not, all or nothing.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

import fairlead
from fairlead import Broker
from fairlead.testing import ManualClock

from .numbered import Victim
from .test_kill_numbered import live_and_die, say_all
from .worked import CLAIMED, FLIPPED, MESSAGES, OF_A_SLICE, PIECES, SLICES

WORKED = range(CLAIMED + 1, FLIPPED)
CLOSED = range(FLIPPED, FLIPPED + PIECES)


class Heard:
    """What the victim said before it died."""

    def __init__(self, lines: list[str]) -> None:
        words: dict[str, set[bytes]] = defaultdict(set)
        for line in lines:
            word, *names = line.split(" ")
            words[word] |= {name.encode() for name in names}
        self.begun, self.done, self.failed, self.progress = (
            words[word] for word in ("begun", "done", "failed", "progress")
        )


def die(tmp_path: Path, die_at: int, *, before: bool) -> tuple[Path, Heard]:
    data = tmp_path / "data"
    victim = Victim(str(data), "os" if die_at % 2 else "fsync", "close", die_at, before)
    return data, Heard(live_and_die(victim, tmp_path / "stderr.txt", "tests.crash.worked"))


#: Just after one and just before the next there is the same on disk, but not the same said: for one slice
#: that will do.
@pytest.mark.sample(10)
@pytest.mark.parametrize(
    ("die_at", "before"), [*[(at, True) for at in WORKED], *[(at, False) for at in WORKED[:OF_A_SLICE]]]
)
def test_a_worker_killed_at_any_commit_goes_on_with_what_was_left_and_fails_what_was_begun(
    die_at: int, before: bool, tmp_path: Path
) -> None:
    data, heard = die(tmp_path, die_at, before=before)
    with fairlead.open(data, durability="os", clock=ManualClock()) as broker:
        generation = broker.consumers.register("worker", "q", default_outcome="release").generation
        slices_begun = [
            broker.consumers.begin_slice("worker", "q", generation, 1, slice=at, slices=SLICES)
            for at in range(SLICES)
        ]
        made = die_at - CLAIMED - (1 if before else 0)
        assert [one.again for one in slices_begun] == [made > at * OF_A_SLICE for at in range(SLICES)]
        everything = {one.payload: one for one in broker.consumers.read("worker", "q", generation, 1)}
        left = {one.payload for one in broker.consumers.read("worker", "q", generation, 1, unsettled=True)}
        assert len(everything) == MESSAGES
        assert not left & (heard.begun | heard.done | heard.failed), "an answer that was forgotten"
        assert all(
            (int(everything[name].progress), everything[name].carry) == (1, name) for name in heard.progress
        )
        settled = broker.consumers.close("worker", "q", generation, 1).settled
        check_ended(broker, heard, settled)
    assert fairlead.verify(data).problems == []


@pytest.mark.sample(4)
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("die_at", CLOSED)
def test_a_close_killed_at_any_commit_ends_each_message_as_was_said(
    die_at: int, before: bool, tmp_path: Path
) -> None:
    data, heard = die(tmp_path, die_at, before=before)
    with fairlead.open(data, durability="os", clock=ManualClock()) as broker:
        broker.run_due()
        generation = broker.consumers.register("worker", "q", default_outcome="release").generation
        closed_before = broker.consumers.show("worker", "q").last_closed == 1
        assert closed_before == (die_at > FLIPPED or not before)
        if not closed_before:
            # Those that were on their way were begun too; nobody works on them any more, and without an outcome they go
            # back.
            broker.consumers.close("worker", "q", generation, 1)
        check_ended(
            broker,
            heard,
            {
                "completed": len(heard.done),
                "dead": len(heard.failed),
                "released": MESSAGES - len(heard.done | heard.failed),
            },
        )
    assert fairlead.verify(data).problems == []


def check_ended(broker: Broker, heard: Heard, settled: dict[str, int]) -> None:
    """Each once: done, dead or ready, by what was heard of it; progress is kept, and a stream is in its
    order.
    """
    dead = {one.payload: one for one in broker.peek("q.dlq", limit=1000)}
    ready = [one for _ in range(MESSAGES) for one in broker.claim("q", limit=1000, max_per_stream=1000)]
    names = [one.payload for one in ready]
    assert (len(dead), len(ready)) == (settled.get("dead", 0), settled.get("released", 0))
    assert sum(settled.values()) == MESSAGES
    assert heard.failed <= dead.keys()
    assert not heard.done & (dead.keys() | set(names))
    assert all(one.attempts == 0 for one in ready)
    kept = {one.payload: (int(one.progress) & 1, one.carry) for one in [*ready, *dead.values()]}
    assert all(kept[name] == (1, name) for name in heard.progress)
    for stream in {one.stream for one in ready if one.stream}:
        own = [int(one.payload) for one in ready if one.stream == stream]
        assert own == sorted(own)


def test_there_are_no_more_commits_than_those_it_was_killed_at(tmp_path: Path) -> None:
    victim = Victim(str(tmp_path / "data"), "os", "close", CLOSED[-1] + 1, die_before=True)
    assert say_all(victim, "tests.crash.worked")[-1] == "close"
