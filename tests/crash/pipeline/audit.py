"""The rules that a query from a source to a sink must keep, whatever was killed when."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import fairlead
from fairlead.clock import SystemClock
from fairlead.testing import ManualClock
from tests.crash.journal import Line, read_tag

from .ledger import sink_tag


@dataclass(frozen=True, slots=True)
class Found:
    """What is in the queues once everything has stopped. `open_claims` and `unpublished` are told in words."""

    sink: Sequence[str] = ()
    dead: Sequence[tuple[str, int]] = ()
    source_left: int = 0
    open_claims: Sequence[str] = ()
    unpublished: Sequence[str] = ()
    unlawful: Sequence[str] = ()


@dataclass(slots=True)
class Claim:
    """`members` as they were said first: (id, tag, attempts)."""

    number: int
    members: list[tuple[str, str, int]]
    reads: list[Line] = field(default_factory=list)

    @property
    def tags(self) -> list[str]:
        return [tag for _, tag, _ in self.members]


def look_inside(data: Path, *, source: str, sink: str | None) -> Found:
    """Of a directory that no server holds. Takes everything out of the sink and of the dead letters."""
    lawful = fairlead.verify(data)
    clock = ManualClock(now_ms=SystemClock().now_ms())
    with fairlead.open(data, durability="os", clock=clock) as broker:
        broker.run_due()
        stats = broker.stats(source)
        found = Found(
            sink=[sink_tag(d.payload) for d in _drain(broker, sink)] if sink else [],
            dead=[(read_tag(d.payload), d.attempts) for d in _drain(broker, source + ".dlq")],
            source_left=stats.ready + stats.waiting + stats.leased,
            open_claims=[
                f"{c.name}: claim {c.open} of {c.messages} messages"
                for c in broker.consumers.list()
                if c.open
            ],
            unpublished=[f"{s.token}: {s.chunks} chunks" for s in broker.staging.list() if not s.published],
            unlawful=[str(problem) for problem in lawful.problems],
        )
    after = fairlead.verify(data)
    return found if after.ok else Found(unlawful=[*found.unlawful, *map(str, after.problems)])


def check_produced(sent: dict[str, str | None], lines: Iterable[Line], found: Found) -> list[str]:
    """Every breach in a query that copies each message of the source, transformed, into the sink. `sent` is
    tag -> stream.
    """
    lines = list(lines)
    claims = claims_of(lines)
    return [
        *_leftovers(found),
        *_exactly_once(sent, found.sink),
        *_order(sent, found.sink),
        *_claimed_once(claims.values()),
        *_same_again(claims, lines),
        *_read_as_a_whole(claims.values(), lines),
        *_never_before_published(claims, lines),
    ]


def check_settled(kinds: dict[str, str], lines: Iterable[Line], found: Found) -> list[str]:
    """Every breach in a query that settles. `kinds` is tag -> what the query says of it: see `driver.py`."""
    lines = list(lines)
    claims = claims_of(lines)
    return [
        *_leftovers(found),
        *_as_often_as_said(kinds, claims.values(), found),
        *_same_again(claims, lines),
        *_never_before_chosen(claims, lines),
    ]


def claims_of(lines: Iterable[Line]) -> dict[int, Claim]:
    """By number, in the order in which they were made."""
    claims: dict[int, Claim] = {}
    for line in lines:
        if line["ev"] == "done" and line["do"] == "claim" and line["members"]:
            members = [(m[0], m[1], m[2]) for m in line["members"]]
            claims.setdefault(line["number"], Claim(line["number"], members))
        elif (
            line["ev"] == "done"
            and line["do"] == "read"
            and line["number"] in claims
            and not line.get("rest")
        ):
            claims[line["number"]].reads.append(line)
    return claims


def _leftovers(found: Found) -> Iterator[str]:
    yield from (f"verify: {problem}" for problem in found.unlawful)
    yield from (f"still open at the end: {claim}" for claim in found.open_claims)
    yield from (f"staged and neither published nor discarded: {write}" for write in found.unpublished)
    if found.source_left:
        yield f"still in the source at the end: {found.source_left} messages"


def _exactly_once(sent: dict[str, str | None], sink: Sequence[str]) -> Iterator[str]:
    counts = Counter(sink)
    yield from (f"lost: {tag}" for tag in sent if not counts[tag])
    yield from (f"published {count} times: {tag}" for tag, count in counts.items() if count > 1)
    yield from (f"nobody sent {tag}" for tag in counts if tag not in sent)


def _order(sent: dict[str, str | None], sink: Sequence[str]) -> Iterator[str]:
    """Tags sort as they were sent."""
    streams: dict[str, list[str]] = defaultdict(list)
    for tag in sink:
        if (stream := sent.get(tag)) is not None:
            streams[stream].append(tag)
    for stream, tags in streams.items():
        if tags != sorted(tags):
            yield f"stream {stream} is out of order in the sink: {tags}"


def _claimed_once(claims: Iterable[Claim]) -> Iterator[str]:
    counts = Counter(tag for claim in claims for tag in claim.tags)
    yield from (f"in {count} claims: {tag}" for tag, count in counts.items() if count > 1)


def _same_again(claims: dict[int, Claim], lines: Sequence[Line]) -> Iterator[str]:
    """A claim that is asked for again is the same, and what is read of it is the same whenever and in however
    many slices.
    """
    for line in lines:
        is_claim = line["ev"] == "done" and line["do"] == "claim" and line["members"]
        if is_claim and [m[1] for m in line["members"]] != claims[line["number"]].tags:
            yield f"claim {line['number']} was another one when it was asked for again"
    for claim in claims.values():
        place = {tag: n for n, tag in enumerate(claim.tags)}
        slices: dict[tuple[int, int], list[str]] = {}
        for read in claim.reads:
            key, tags = (read["slices"], read["slice"]), read["tags"]
            if slices.setdefault(key, tags) != tags:
                yield f"slice {key} of claim {claim.number} was another one when it was read again"
            if [place.get(tag, -1) for tag in tags] != sorted(
                {place.get(tag, -1) for tag in tags}
            ) or not place.keys() >= set(tags):
                yield f"slice {key} of claim {claim.number} is not in the order of the claim"
        for count, group in groupby(sorted(slices), key=lambda key: key[0]):
            keys = list(group)
            read_tags = [tag for key in keys for tag in slices[key]]
            if len(keys) == count and sorted(read_tags) != sorted(claim.tags):
                yield f"the {count} slices of claim {claim.number} are not the claim"


def _read_as_a_whole(claims: Iterable[Claim], lines: Iterable[Line]) -> Iterator[str]:
    """Also a sign that the ledger sees what is asked of the broker."""
    closed = max(
        (line["up_to"] for line in lines if line["ev"] == "done" and line["do"] == "close"), default=0
    )
    for claim in claims:
        slices = {(read["slices"], read["slice"]) for read in claim.reads}
        if claim.number <= closed and not any(
            all((count, n) in slices for n in range(count)) for count, _ in slices
        ):
            yield f"claim {claim.number} was closed, and not all of it was read"


def _never_before_published(claims: dict[int, Claim], lines: Iterable[Line]) -> Iterator[str]:
    """The server looks into the sink before each close takes effect."""
    closed = 0
    for line in lines:
        if line["do"] != "close" or line["ev"] == "refused":
            continue
        if line["ev"] == "done":
            closed = max(closed, line["up_to"])
            continue
        for number in range(closed + 1, line["up_to"] + 1):
            missing = set(claims[number].tags) - set(line["visible"]) if number in claims else set()
            if missing:
                yield f"completed before it was published: close up to {line['up_to']} of claim {number} without {sorted(missing)}"


def _never_before_chosen(claims: dict[int, Claim], lines: Iterable[Line]) -> Iterator[str]:
    """Every member has a word in a part that was chosen before its claim is closed."""
    words: dict[tuple[int, str], set[str]] = defaultdict(set)
    chosen: dict[int, set[str]] = {}
    closed = 0
    for line in lines:
        if line["ev"] == "done" and line["do"] == "record":
            words[line["number"], line["part"]] |= {item[1] for item in line["items"]}
        elif line["ev"] == "done" and line["do"] == "choose":
            chosen[line["number"]] = set(line["parts"]) | (
                chosen.get(line["number"], set()) if line["add"] else set()
            )
        elif line["ev"] == "begin" and line["do"] == "close":
            for number in range(closed + 1, line["up_to"] + 1):
                told = set[str]().union(*(words[number, part] for part in chosen.get(number, ())))
                missing = (
                    {message_id for message_id, _, _ in claims[number].members} - told
                    if number in claims
                    else set()
                )
                if missing:
                    yield f"closed without a word about {sorted(missing)} of claim {number}"
        elif line["ev"] == "done" and line["do"] == "close":
            closed = max(closed, line["up_to"])


#: What is said of a message at its first delivery -> the attempts with which it is seen, and those it has as
#: a dead letter.
_SEEN = {"complete": ([0], None), "fail": ([0, 1], None), "release": ([0, 0], None), "dead": ([0], 1)}


def _as_often_as_said(kinds: dict[str, str], claims: Iterable[Claim], found: Found) -> Iterator[str]:
    seen: dict[str, list[int]] = defaultdict(list)
    for claim in claims:
        for _, tag, attempts in claim.members:
            seen[tag].append(attempts)
    dead = Counter(found.dead)
    for tag, kind in kinds.items():
        expected, attempts = _SEEN[kind]
        if seen[tag] != expected:
            yield f"{kind}: {tag} was claimed with attempts {seen[tag]}, expected {expected}"
        if dead[tag, attempts or 0] != (attempts is not None):
            yield f"{kind}: {tag} is among the dead letters {[d for d in found.dead if d[0] == tag]}"
    yield from (
        f"a dead letter that nobody made: {tag} with {attempts} attempts"
        for tag, attempts in dead
        if kinds.get(tag) != "dead"
    )


def _drain(broker: fairlead.Broker, queue: str) -> Iterator[fairlead.Delivery]:
    while deliveries := broker.claim(queue, limit=1000, max_per_stream=1000):
        yield from deliveries
        broker.settle([fairlead.Complete(d) for d in deliveries])
