"""Steps of a run with durable consumers. Generations, numbers of claims and members are those of the side."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fairlead import Complete, Extend, Fail, Release, Start
from fairlead.errors import FairleadError
from fairlead.model.consumer import ConsumerInfo
from fairlead.request import Request
from fairlead.verbs.consumers import (
    ConsumersBeginSlice,
    ConsumersCeiling,
    ConsumersChoose,
    ConsumersClaim,
    ConsumersClose,
    ConsumersDrop,
    ConsumersHeartbeat,
    ConsumersList,
    ConsumersRead,
    ConsumersRecord,
    ConsumersRegister,
    ConsumersRelease,
    ConsumersShow,
)

if TYPE_CHECKING:
    from tests.conformance.engines.running import Side

Make = Callable[["Side", ConsumerInfo], Request[Any]]

QUEUES = ("first", "first", "second", "first.dlq")
#: The second one has the name of a plain consumer.
NAMES = ("etl", "a")
_STEPS = {
    "register": 3,
    "claim": 6,
    "read": 5,
    "record": 8,
    "begin slice": 2,
    "choose": 2,
    "close": 4,
    "heartbeat": 1,
    "ceiling": 1,
    "end": 1,
    "look": 1,
}


def consumer_step(random: Random) -> Callable[[Side], Request[Any]]:
    name, queue = random.choice(NAMES), random.choice(QUEUES)
    (kind,) = random.choices(list(_STEPS), list(_STEPS.values()))
    if kind == "register":
        ttl, default_outcome = (
            random.choice(("7d", "7d", "20s", "2s", "1ms")),
            random.choice(("complete", "release")),
        )
        return lambda side: ConsumersRegister(name, queue, ttl, default_outcome)  # type: ignore[arg-type]
    if kind == "end":
        end = random.choice((ConsumersRelease, ConsumersDrop))
        return lambda side: end(name, queue)
    if kind == "look":
        look = random.choice((ConsumersList(), ConsumersShow(name, queue)))
        return lambda side: look
    make = _MAKERS[kind](random)
    # Now and then a generation or a number that is over, or still to come.
    off = random.choice((0,) * 12 + (-1, 1)), random.choice((0,) * 12 + (-1, 1))

    def step(side: Side) -> Request[Any]:
        info = _show(side, name, queue)
        return make(side, _moved(info, *off))

    return step


def _show(side: Side, name: str, queue: str) -> ConsumerInfo:
    try:
        shown: ConsumerInfo = side.do(ConsumersShow(name, queue))
    except FairleadError:
        return ConsumerInfo(
            name=name, queue=queue, generation=1, last_closed=0, ttl_ms=0, seen_at=0, expires_at=0
        )
    return shown


def _moved(info: ConsumerInfo, generation: int, number: int) -> ConsumerInfo:
    return replace(
        info, generation=info.generation + generation, last_closed=max(0, info.last_closed + number)
    )


def _claim(random: Random) -> Make:
    limit, max_bytes = random.choice((1, 3, 10, 40, 100)), random.choice((1 << 20, 1 << 20, 1 << 20, 1))
    below = random.random() < 0.2

    def make(side: Side, info: ConsumerInfo) -> Request[Any]:
        up_to = side.ceiling if below else None
        number = info.last_closed + 1
        return ConsumersClaim(info.name, info.queue, info.generation, number, limit, max_bytes, up_to=up_to)

    return make


def _read(random: Random) -> Make:
    unsettled, after = random.random() < 0.3, random.random() < 0.3
    share = random.random()

    def make(side: Side, info: ConsumerInfo) -> Request[Any]:
        # A read alone counts as a sign of life only now and then, and not alike in both engines.
        with suppress(FairleadError):
            side.do(ConsumersHeartbeat(info.name, info.queue, info.generation))
        members = side.members.get((info.name, info.queue), [])
        last = members[int(share * len(members))].raw_id if after and members else b""
        return ConsumersRead(
            info.name, info.queue, info.generation, info.last_closed + 1, unsettled=unsettled, after=last
        )

    return make


def _record(random: Random) -> Make:
    part = random.choice(("", "", "", "a", "b"))
    items = [(random.random(), _item(random, part)) for _ in range(random.randint(0, 8))]

    def make(side: Side, info: ConsumerInfo) -> Request[Any]:
        members = side.members.get((info.name, info.queue), [])
        said = [item(members[int(share * len(members))]) for share, item in items] if members else []
        return ConsumersRecord(info.name, info.queue, info.generation, info.last_closed + 1, said, part)

    return make


def _item(random: Random, part: str) -> Callable[[Any], Any]:
    progress, carry = random.choice((0, 1, 2, 3)) << 20, random.choice((None, b"", b"half"))
    outcomes = (
        Complete,
        Complete,
        lambda one: Fail(one, "no", "dependency_failure", progress=4),
        lambda one: Fail(one, retry_in="700ms"),
        lambda one: Fail(one, dead=True),
        Release,
    )
    on_the_way = (Start, Start, lambda one: Extend(one, progress=progress, carry=carry))
    chosen: Callable[[Any], Any] = random.choice(outcomes if part else outcomes + on_the_way)
    return chosen


def _begin_slice(random: Random) -> Make:
    # Slices follow the ids, which each engine makes for itself: only the whole claim can be compared.
    slices = random.choice((1, 1, 1, 0))
    return lambda side, info: ConsumersBeginSlice(
        info.name, info.queue, info.generation, info.last_closed + 1, 0, slices
    )


def _choose(random: Random) -> Make:
    parts, add = random.choice(([], ["a"], ["b"], ["a", "b"])), random.random() < 0.5
    return lambda side, info: ConsumersChoose(
        info.name, info.queue, info.generation, info.last_closed + 1, parts, add
    )


def _close(random: Random) -> Make:
    again = random.random() < 0.2
    return lambda side, info: ConsumersClose(
        info.name, info.queue, info.generation, info.last_closed + (not again)
    )


def _heartbeat(random: Random) -> Make:
    return lambda side, info: ConsumersHeartbeat(info.name, info.queue, info.generation)


def _ceiling(random: Random) -> Make:
    return lambda side, info: ConsumersCeiling(info.name, info.queue, info.generation)


_MAKERS: dict[str, Callable[[Random], Make]] = {
    "claim": _claim,
    "read": _read,
    "record": _record,
    "begin slice": _begin_slice,
    "choose": _choose,
    "close": _close,
    "heartbeat": _heartbeat,
    "ceiling": _ceiling,
}
