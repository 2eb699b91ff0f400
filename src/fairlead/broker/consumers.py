"""Durable consumers: each reads one queue in numbered claims, which can be asked for again until they are
closed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote

import msgspec

from fairlead.broker import consumer_claims, consumer_close, consumer_read, consumer_record
from fairlead.broker.consumer_book import info_of
from fairlead.broker.core import Core
from fairlead.broker.room import MESSAGE_BYTES
from fairlead.broker.shown_times import shown_pages
from fairlead.decide.arguments import check_bool, check_count
from fairlead.errors import InvalidRequest, LimitReached
from fairlead.model.checks import check_text
from fairlead.model.consumer import (
    CloseResult,
    ConsumerInfo,
    ConsumerRecord,
    NumberedClaim,
    TakenUp,
    Unspoken,
)
from fairlead.model.delivery import Delivery
from fairlead.model.durations import Duration, to_ms
from fairlead.model.facts import ConsumerSaved, Fact, PartsChosen
from fairlead.model.lane import first_place
from fairlead.model.limits import (
    MAX_ANSWER_BYTES,
    MAX_BATCH_MESSAGES,
    MAX_CLAIM,
    MAX_CONSUMER_BYTES,
    MAX_CONSUMER_TTL_MS,
    MAX_CONSUMERS,
    MAX_NUMBER,
    MAX_PART_BYTES,
    MIN_CONSUMER_TTL_MS,
)
from fairlead.model.names import Scoped, check_queue_name
from fairlead.model.settle import Complete, Extend, Fail, Release, Start


def register(
    core: Core, name: str, queue: str, *, ttl: Duration = "7d", unspoken: Unspoken = "complete"
) -> ConsumerInfo:
    consumer = read_consumer(name, queue)
    if unspoken not in ("complete", "release"):
        raise InvalidRequest("unspoken", "'complete' or 'release'", unspoken)
    ttl_ms = to_ms(ttl, "ttl")
    if not MIN_CONSUMER_TTL_MS <= ttl_ms <= MAX_CONSUMER_TTL_MS:
        raise InvalidRequest("ttl", "between 1s and 365d", ttl)
    with consumer_close.at_rest(core, consumer):
        read, book, now_ms = core.queue(queue), core.consumer_book, core.now_ms()
        known = book.find(consumer)
        if known is None:
            if len(book) >= MAX_CONSUMERS:
                raise LimitReached("durable consumers", MAX_CONSUMERS)
            core.store.check_room(MESSAGE_BYTES)
            # Above every generation that a dropped consumer of this name and queue may have had: each
            # took a commit.
            record = ConsumerRecord(
                consumer.name,
                read.queue_id,
                consumer.queue,
                core.store.last_commit + 1,
                ttl_ms,
                now_ms,
                unspoken=unspoken,
            )
        else:
            _check_same(known.record, unspoken)
            record = msgspec.structs.replace(
                known.record,
                queue_id=read.queue_id,
                generation=known.record.generation + 1,
                ttl_ms=ttl_ms,
                seen_ms=now_ms,
                unspoken=unspoken,
            )
        commit = _save(core, record)
    core.confirm(commit, synced=True)
    return info_of(record)


def claim(
    core: Core,
    name: str,
    queue: str,
    generation: int,
    number: int,
    *,
    limit: int = 10_000,
    max_bytes: int = 64 * 1024 * 1024,
    wait: Duration | None = None,
    up_to: int | None = None,
    max_per_stream: int = MAX_CLAIM,
) -> NumberedClaim:
    wanted = consumer_claims.Wanted(
        read_consumer(name, queue),
        check_whole(generation, "generation"),
        check_count(number, "number", most=MAX_NUMBER),
        check_count(limit, "limit", most=MAX_CLAIM),
        check_count(max_bytes, "max_bytes", most=MAX_ANSWER_BYTES),
        None if up_to is None else check_whole(up_to, "up_to"),
        check_count(max_per_stream, "max_per_stream", most=MAX_CLAIM),
    )
    return consumer_claims.claim(core, wanted, 0 if wait is None else to_ms(wait, "wait"))


def read_pages(
    core: Core,
    name: str,
    queue: str,
    generation: int,
    number: int,
    *,
    slice: int = 0,
    slices: int = 1,
    unsettled: bool = False,
    after: bytes = b"",
) -> Iterator[Sequence[Delivery]]:
    check_slice(slice, slices)
    consumer = read_consumer(name, queue)
    check_bool(unsettled, "unsettled")
    check_whole(generation, "generation")
    check_whole(number, "number")
    pages = consumer_read.read_pages(
        core, consumer_read.Slice(consumer, generation, number, slice, slices, unsettled), after
    )
    return shown_pages(pages, core.time.ahead_ms)


def record(
    core: Core,
    name: str,
    queue: str,
    generation: int,
    number: int,
    items: Sequence[Complete | Fail | Release | Start | Extend],
    *,
    part: str = "",
) -> None:
    consumer = read_consumer(name, queue)
    check_whole(generation, "generation")
    check_whole(number, "number")
    part = check_text(part, "part", MAX_PART_BYTES, may_be_empty=True)
    consumer_record.record(core, consumer, generation, number, consumer_record.read_items(items, part), part)


def take_up(
    core: Core, name: str, queue: str, generation: int, number: int, *, slice: int = 0, slices: int = 1
) -> TakenUp:
    consumer = read_consumer(name, queue)
    check_slice(slice, slices)
    return consumer_record.take_up(
        core,
        consumer,
        check_whole(generation, "generation"),
        check_whole(number, "number"),
        slice,
        slices,
    )


def choose(
    core: Core,
    name: str,
    queue: str,
    generation: int,
    number: int,
    parts: Sequence[str],
    *,
    add: bool = False,
) -> None:
    consumer = read_consumer(name, queue)
    check_whole(generation, "generation")
    check_whole(number, "number")
    check_bool(add, "add")
    if isinstance(parts, str) or not isinstance(parts, Sequence) or len(parts) > MAX_BATCH_MESSAGES:
        raise InvalidRequest("parts", f"a list of at most {MAX_BATCH_MESSAGES} names of parts", parts)
    chosen = [check_text(part, "parts", MAX_PART_BYTES) for part in parts]
    with core.lock:
        core.check_open()
        record = core.consumer_book.opened(consumer, generation, number).record
        chosen = list(dict.fromkeys([*(core.store.claim_choice(consumer, number) if add else ()), *chosen]))
        if len(chosen) > MAX_BATCH_MESSAGES:
            raise LimitReached(f"chosen parts in a claim of consumer {name!r}", MAX_BATCH_MESSAGES)
        core.store.check_room(sum(map(len, chosen)), in_reserve=True)
        commit = _save(
            core,
            msgspec.structs.replace(record, seen_ms=core.now_ms()),
            PartsChosen(consumer, number, tuple(chosen)),
        )
        core.consumer_book.get(consumer).words = None
    core.confirm(commit, synced=True)


def close(core: Core, name: str, queue: str, generation: int, up_to: int) -> CloseResult:
    consumer = read_consumer(name, queue)
    return consumer_close.close(
        core, consumer, check_whole(generation, "generation"), check_whole(up_to, "up_to")
    )


def heartbeat(core: Core, name: str, queue: str, generation: int) -> ConsumerInfo:
    consumer = read_consumer(name, queue)
    check_whole(generation, "generation")
    with core.lock:
        core.check_open()
        record = core.consumer_book.current(consumer, generation).record
        seen = msgspec.structs.replace(record, seen_ms=core.now_ms())
        _save(core, seen)
        return info_of(seen)


def ceiling(core: Core, name: str, queue: str, generation: int) -> int:
    consumer = read_consumer(name, queue)
    check_whole(generation, "generation")
    with core.lock:
        core.check_open()
        core.consumer_book.current(consumer, generation)
        return first_place(core.store.last_commit + 1) - 1


def release(core: Core, name: str, queue: str) -> int:
    return consumer_close.release(core, read_consumer(name, queue), "an operator let go of it")


def drop(core: Core, name: str, queue: str) -> None:
    consumer_close.release(
        core, read_consumer(name, queue), "an operator dropped its consumer", dropping=True
    )


def list_all(core: Core) -> list[ConsumerInfo]:
    with core.lock:
        core.check_open()
        return [info_of(state.record) for state in core.consumer_book]


def show(core: Core, name: str, queue: str) -> ConsumerInfo:
    consumer = read_consumer(name, queue)
    with core.lock:
        core.check_open()
        return info_of(core.consumer_book.get(consumer).record)


def _save(core: Core, record: ConsumerRecord, *facts: Fact) -> int:
    """Under the lock, for one that was just seen."""
    commit = core.commit([ConsumerSaved(record), *facts])
    core.consumer_book.seen(core.consumer_book.put(record), core.clock)
    core.wake_timer(record.seen_ms + record.ttl_ms)
    return commit


def read_consumer(name: object, queue: object) -> Scoped:
    return Scoped(check_queue_name(queue), check_text(name, "name", MAX_CONSUMER_BYTES))


def check_whole(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequest(field, "a whole number, 0 or greater", value)
    return value


def check_slice(slice: int, slices: int) -> None:
    check_count(slices, "slices", most=MAX_CLAIM)
    if check_whole(slice, "slice") >= slices:
        raise InvalidRequest("slice", f"less than slices, which is {slices}", slice)


def _check_same(record: ConsumerRecord, unspoken: Unspoken) -> None:
    """Whoever made the claim in hand relied on what becomes of those it does not speak of."""
    if record.in_hand and record.unspoken != unspoken:
        release = f"fairlead consumer release {record.queue} {quote(record.name)}"
        expected = (
            f"{record.unspoken!r} while claim {record.number} is open: close it, or let go of it ({release})"
        )
        raise InvalidRequest("unspoken", expected, unspoken)
