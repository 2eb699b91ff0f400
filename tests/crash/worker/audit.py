"""The rules that the calls of a worker's steps must keep, whatever was killed when.

A step is confirmed before the next one is called, and a message is settled before the next of its stream is:
so the ledger alone shows what had been confirmed when, and the broker is only asked how everything ended.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import fairlead
from fairlead import FailureReason
from fairlead.clock import SystemClock
from fairlead.errors import MessageNotFound
from fairlead.testing import ManualClock
from tests.crash.journal import Line

from .fates import LIMIT, QUEUE, REASON, STEPS, Sent


@dataclass(frozen=True, slots=True)
class Ending:
    """How the broker says that a message ended. `failures` are (reason, error); of one that is gone,
    completed and not kept, none.
    """

    where: str
    attempts: int = 0
    failures: Sequence[tuple[str, str]] = ()


GONE = Ending("gone")


@dataclass(frozen=True, slots=True)
class Found:
    """What is in the queues once everything has stopped. `open_claims` are told in words."""

    endings: dict[str, Ending]
    left: int = 0
    open_claims: Sequence[str] = ()
    unlawful: Sequence[str] = ()


def look_inside(data: Path, ids: dict[str, str]) -> Found:
    """Of a directory that no server holds. `ids` is tag -> id."""
    lawful = fairlead.verify(data)
    with fairlead.open(data, durability="os", clock=ManualClock(now_ms=SystemClock().now_ms())) as broker:
        stats = broker.stats(QUEUE)
        return Found(
            {tag: _ending(broker, message_id) for tag, message_id in ids.items()},
            stats.ready + stats.waiting + stats.leased,
            [f"{c.name}: claim {c.open} of {c.messages} messages" for c in broker.consumers.list() if c.open],
            [str(problem) for problem in lawful.problems],
        )


def _ending(broker: fairlead.Broker, message_id: str) -> Ending:
    try:
        info = broker.find(message_id)
    except MessageNotFound:
        return GONE
    where = "dead" if info.source is not None else info.where
    return Ending(
        where, info.attempts, [(FailureReason(record.reason).word, record.error) for record in info.failures]
    )


def check(
    sent: Iterable[Sent], lines: Iterable[Line], found: Found, *, retained: bool, kills: int = 0
) -> list[str]:
    """Every breach. `retained`: what is completed is still there. `kills` is how many there were."""
    sent, lines = list(sent), list(lines)
    calls: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        calls[line["tag"]].append(line)
    return [
        *_leftovers(found),
        *(f"nobody sent {tag}" for tag in calls.keys() - {one.tag for one in sent}),
        *(
            problem
            for one in sent
            for problem in _ended(one, calls[one.tag], found.endings.get(one.tag, GONE), retained, kills)
        ),
        *(problem for one in sent for problem in _not_again(one, calls[one.tag], kills)),
        *check_order(sent, lines),
    ]


def _leftovers(found: Found) -> Iterator[str]:
    yield from (f"verify: {problem}" for problem in found.unlawful)
    yield from (f"still open at the end: {claim}" for claim in found.open_claims)
    if found.left:
        yield f"still in the queue at the end: {found.left} messages"


def _ended(one: Sent, calls: list[Line], ending: Ending, retained: bool, kills: int) -> Iterator[str]:
    """As its fate says; and no failure is on its record, or missing from it, that neither fate nor a kill
    explains.
    """
    fate = one.fate
    due = "dead" if fate is not None and fate.kills else "done" if retained else "gone"
    if ending.where != due:
        yield f"{one.tag} should be {due} at the end, and is {ending.where}: {fate}"
        return
    ended = {line["step"] for line in calls if line["ev"] == "end"}
    if due != "dead" and ended != set(STEPS):
        yield f"lost: {one.tag} is completed, and of its steps only {sorted(ended)} were ever done"
    if due == "gone":
        return
    told = fate is not None and fate.how != "slow"
    fated = [
        failure for failure in ending.failures if fate is not None and told and failure[0] == REASON[fate.how]
    ]
    if len(ending.failures) != ending.attempts:
        yield f"{one.tag} has {ending.attempts} attempts and {len(ending.failures)} failures on its record"
    if len(ending.failures) - len(fated) > kills:
        yield f"{one.tag} has failures on its record that nobody made: {list(ending.failures)}, {fate}"
    if fate is None or not told:
        return
    if due == "dead" and (ending.attempts != LIMIT if fate.how != "dead" else not fated):
        yield f"{one.tag} is dead after {ending.attempts} attempts: {list(ending.failures)}, {fate}"
    if due == "done" and len(fated) < fate.times - kills:
        yield f"{one.tag} failed {fate.times} times, and its record is {list(ending.failures)}"


def _not_again(one: Sent, calls: list[Line], kills: int) -> Iterator[str]:
    """No step after it was confirmed, none before the one before it was, and none that ended well unless
    somebody was killed.
    """
    reached, attempts = 0, 0
    ended: Counter[str] = Counter()
    begun: Counter[str] = Counter()
    for line in calls:
        step, place = line["step"], STEPS.index(line["step"])
        if line["ev"] == "end":
            ended[step] += 1
        if line["ev"] != "begin":
            continue
        begun[step] += 1
        if place < reached:
            yield f"{one.tag}: {step} was confirmed, because {STEPS[reached]} had been called, and was called again"
        if place and not ended[STEPS[place - 1]]:
            yield f"{one.tag}: {step} was called before {STEPS[place - 1]} was done"
        if line["attempts"] < attempts:
            yield f"{one.tag}: {step} was called with {line['attempts']} attempts after it had had {attempts}"
        reached, attempts = max(reached, place), max(attempts, line["attempts"])
    for step, count in ended.items():
        if count > 1 + kills:
            yield f"{one.tag}: {step} was done {count} times, with {kills} kills"
    for step, count in begun.items():
        due = (
            one.fate.times if one.fate is not None and one.fate.step == step and one.fate.how != "slow" else 0
        )
        if count > 1 + min(due, LIMIT) + kills:
            yield f"{one.tag}: {step} was called {count} times, with {kills} kills: {one.fate}"


def check_order(sent: Sequence[Sent], lines: Iterable[Line]) -> Iterator[str]:
    """When a message of a stream is called, all that were sent into it before are settled: done to the last
    step, or to be dead, and never called again.
    """
    fates = {(one.stream, one.n): one for one in sent if one.stream is not None}
    now: dict[str, int] = {}
    done: dict[str, set[int]] = defaultdict(set)
    for line in lines:
        stream = line["stream"]
        if stream is None:
            continue
        if line["ev"] == "end" and line["step"] == STEPS[-1]:
            done[stream].add(line["n"])
        if line["ev"] != "begin":
            continue
        before, n = now.get(stream, 0), line["n"]
        if n < before:
            yield f"{line['tag']}, {n} of stream {stream}, was called after {before} of it"
        for earlier in range(before, n):
            one = fates.get((stream, earlier))
            if earlier not in done[stream] and not (
                one is not None and one.fate is not None and one.fate.kills
            ):
                yield f"{line['tag']}, {n} of stream {stream}, was called before {earlier} of it was done"
        now[stream] = max(before, n)
