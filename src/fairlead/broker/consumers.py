"""Durable consumers: each reads one queue in numbered claims, which can be asked for again until they are
closed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from fairlead.broker import consumer_claims, consumer_close, consumer_read, consumer_record
from fairlead.broker.core import Core
from fairlead.decide.arguments import check_bool, check_count
from fairlead.decide.numbered_claims import (
    check_same_unspoken,
    check_slice,
    check_unspoken,
    check_whole,
    info_of,
    read_consumer,
    read_consumer_ttl,
    read_items,
    read_parts,
)
from fairlead.engine.room import MESSAGE_BYTES
from fairlead.errors import LimitReached
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
    MAX_CONSUMERS,
    MAX_NUMBER,
    MAX_PART_BYTES,
)
from fairlead.model.settle import Complete, Extend, Fail, Release, Start
from fairlead.model.shown_times import shown_pages


def register(
    core: Core, name: str, queue: str, *, ttl: Duration = "7d", unspoken: Unspoken = "complete"
) -> ConsumerInfo:
    consumer = read_consumer(name, queue)
    check_unspoken(unspoken)
    ttl_ms = read_consumer_ttl(ttl)
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
            check_same_unspoken(known.record, unspoken)
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
    consumer_record.record(core, consumer, generation, number, read_items(items, part), part)


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
    chosen = read_parts(parts)
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
