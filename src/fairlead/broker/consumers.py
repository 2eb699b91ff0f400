"""Durable consumers: a name that reads one queue in numbered claims, each of which can be asked for again until it is closed."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from itertools import chain

import msgspec

from fairlead.broker import consumer_claims, consumer_close, consumer_read
from fairlead.broker.consumer_book import info_of, pack_outcomes
from fairlead.broker.core import Core
from fairlead.broker.requests import check_bool, check_count
from fairlead.errors import ConsumerTaken, InvalidRequest, LimitReached
from fairlead.model.checks import check_text
from fairlead.model.consumer import CloseResult, ConsumerInfo, ConsumerRecord, NumberedClaim, Recorded
from fairlead.model.delivery import Delivery
from fairlead.model.durations import Duration, to_ms
from fairlead.model.facts import ConsumerSaved, Fact, OutcomesRecorded, PartsChosen
from fairlead.model.handles import check_fail, check_progress, read_handle
from fairlead.model.ids import show_id
from fairlead.model.lane import first_place
from fairlead.model.limits import (
    MAX_ANSWER_BYTES,
    MAX_BATCH_MESSAGES,
    MAX_CLAIM,
    MAX_CONSUMER_BYTES,
    MAX_CONSUMER_TTL_MS,
    MAX_CONSUMERS,
    MAX_PART_BYTES,
    MAX_RECORDED_BYTES,
    MIN_CONSUMER_TTL_MS,
)
from fairlead.model.settle import Complete, Fail, Release

_MOST_NUMBER = (1 << 62) - 1


class Consumers:
    """`broker.consumers`. `generation` is what `register` gave; whoever registers later fences off all before.

    What is claimed, recorded, chosen and closed is synced before the answer, whatever the durability of the broker.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    def register(self, name: str, queue: str, *, ttl: Duration = "7d") -> ConsumerInfo:
        """Make the consumer, or take it over with the claim it has in hand: from now on only the new generation counts.

        Not seen for its time to live, it lets go of that claim. A name belongs to one queue until it is dropped.
        """
        check_name(name)
        ttl_ms = to_ms(ttl, "ttl")
        if not MIN_CONSUMER_TTL_MS <= ttl_ms <= MAX_CONSUMER_TTL_MS:
            raise InvalidRequest("ttl", "between 1s and 365d", ttl)
        core = self._core
        with consumer_close.at_rest(core, name):
            read, book, now_ms = core.queue(queue), core.consumer_book, core.clock.now_ms()
            known = book.find(name)
            if known is None:
                if len(book) >= MAX_CONSUMERS:
                    raise LimitReached("durable consumers", MAX_CONSUMERS)
                # Above every generation that a dropped consumer of this name may have had: each took a commit.
                record = ConsumerRecord(name, read.queue_id, queue, core.store.last_commit + 1, ttl_ms, now_ms)
            elif known.record.queue != queue:
                raise ConsumerTaken(name, known.record.queue, queue)
            else:
                record = msgspec.structs.replace(
                    known.record, queue_id=read.queue_id, generation=known.record.generation + 1, ttl_ms=ttl_ms, seen_ms=now_ms
                )
            commit = self._save(record)
        core.confirm(commit, synced=True)
        return info_of(record)

    def claim(
        self,
        name: str,
        generation: int,
        number: int,
        *,
        limit: int = 10_000,
        max_bytes: int = 64 * 1024 * 1024,
        wait: Duration | None = None,
        up_to: int | None = None,
    ) -> NumberedClaim:
        """Take the next claim, waiting up to `wait` for the first message; the number in hand gives what it gave before.

        Its messages stay as they are until it is closed: nobody else gets them, settles them or moves them. `max_bytes` is
        passed by at most a few messages. `up_to` is a place, as `ceiling` gives it: nothing behind it is taken.
        """
        check_name(name)
        wanted = consumer_claims.Wanted(
            name,
            check_whole(generation, "generation"),
            check_count(number, "number", most=_MOST_NUMBER),
            check_count(limit, "limit", most=MAX_CLAIM),
            check_count(max_bytes, "max_bytes", most=MAX_ANSWER_BYTES),
            None if up_to is None else check_whole(up_to, "up_to"),
        )
        return consumer_claims.claim(self._core, wanted, 0 if wait is None else to_ms(wait, "wait"))

    def read(self, name: str, generation: int, number: int, *, slice: int = 0, slices: int = 1) -> Iterator[Delivery]:
        """The messages of the claim in hand, in its order; of `slices` slices only this one. A stream is in one slice.

        Every reading of an open claim gives the same. When it is over, so are its bodies: `ClaimClosed`, `ClaimReleased`.
        """
        return chain.from_iterable(self.read_pages(name, generation, number, slice=slice, slices=slices))

    def read_pages(self, name: str, generation: int, number: int, *, slice: int = 0, slices: int = 1) -> Iterator[Sequence[Delivery]]:
        """`read` for a server's door: up to a thousand at a time, or about eight mebibytes."""
        check_count(slices, "slices", most=MAX_CLAIM)
        if check_whole(slice, "slice") >= slices:
            raise InvalidRequest("slice", f"less than slices, which is {slices}", slice)
        check_name(name)
        return consumer_read.read_pages(self._core, name, check_whole(generation, "generation"), check_whole(number, "number"), slice, slices)

    def record(self, name: str, generation: int, number: int, items: Sequence[Complete | Fail | Release], *, part: str = "") -> None:
        """Say how it went with messages of the claim in hand; it takes effect when the claim is closed.

        The last word on a message counts. What is recorded under a part counts only if `choose` names the part.
        """
        check_name(name)
        check_whole(generation, "generation")
        check_whole(number, "number")
        part = check_text(part, "part", MAX_PART_BYTES, may_be_empty=True)
        said, claim_ids = read_outcomes(items)
        raw = pack_outcomes(said)
        core = self._core
        with core.lock:
            core.check_open()
            record = core.consumer_book.opened(name, generation, number).record
            find, claim_id = core.leases.find, record.claim_id
            for outcome, given in zip(said, claim_ids, strict=True):
                lease = find(outcome.id)
                if given != claim_id or lease is None or lease.claim_id != claim_id:
                    raise InvalidRequest("items", f"about messages of claim {number} of consumer {name!r}", show_id(outcome.id))
            if not said:
                return
            if record.recorded_bytes + len(raw) > MAX_RECORDED_BYTES:
                raise LimitReached(f"bytes of outcomes in a claim of consumer {name!r}", MAX_RECORDED_BYTES)
            after = msgspec.structs.replace(
                record, recorded=record.recorded + 1, recorded_bytes=record.recorded_bytes + len(raw), seen_ms=core.clock.now_ms()
            )
            commit = self._save(after, OutcomesRecorded(name, number, record.recorded, part, raw))
        core.confirm(commit, synced=True)

    def choose(self, name: str, generation: int, number: int, parts: Sequence[str], *, add: bool = False) -> None:
        """Of what was recorded under parts, only that of these counts; said again, it replaces what was chosen before.

        With `add`, what was chosen before counts too.
        """
        check_name(name)
        check_whole(generation, "generation")
        check_whole(number, "number")
        check_bool(add, "add")
        if isinstance(parts, str) or not isinstance(parts, Sequence) or len(parts) > MAX_BATCH_MESSAGES:
            raise InvalidRequest("parts", f"a list of at most {MAX_BATCH_MESSAGES} names of parts", parts)
        chosen = [check_text(part, "parts", MAX_PART_BYTES) for part in parts]
        core = self._core
        with core.lock:
            core.check_open()
            record = core.consumer_book.opened(name, generation, number).record
            chosen = builtins.list(dict.fromkeys([*(core.store.claim_choice(name, number) if add else ()), *chosen]))
            if len(chosen) > MAX_BATCH_MESSAGES:
                raise LimitReached(f"chosen parts in a claim of consumer {name!r}", MAX_BATCH_MESSAGES)
            commit = self._save(msgspec.structs.replace(record, seen_ms=core.clock.now_ms()), PartsChosen(name, number, tuple(chosen)))
        core.confirm(commit, synced=True)

    def close(self, name: str, generation: int, up_to: int) -> CloseResult:
        """The claim in hand is done: each message gets the outcome recorded for it, and is completed where there is none.

        Closing what is closed already changes nothing. A crash once it has begun is made good when the broker is opened again.
        """
        return consumer_close.close(self._core, check_name(name), check_whole(generation, "generation"), check_whole(up_to, "up_to"))

    def heartbeat(self, name: str, generation: int) -> ConsumerInfo:
        """The consumer lives: its time to live begins anew. All other calls with its generation say so too."""
        check_name(name)
        check_whole(generation, "generation")
        core = self._core
        with core.lock:
            core.check_open()
            record = core.consumer_book.current(name, generation).record
            seen = msgspec.structs.replace(record, seen_ms=core.clock.now_ms())
            self._save(seen)
            return info_of(seen)

    def ceiling(self, name: str, generation: int) -> int:
        """A place: what is ready in the queue now stands at or before it, and what is enqueued or tried again later behind it."""
        check_name(name)
        check_whole(generation, "generation")
        with self._core.lock:
            self._core.check_open()
            self._core.consumer_book.current(name, generation)
            return first_place(self._core.store.last_commit + 1) - 1

    def release(self, name: str) -> int:
        """Let go of the claim in hand, whoever works on it: its messages go back to their places. Returns how many.

        Whoever comes with its number is told `ClaimReleased`; the consumer goes on with the next one.
        """
        return consumer_close.release(self._core, check_name(name), "an operator let go of it")

    def drop(self, name: str) -> None:
        """Let go of the claim in hand, and forget the consumer."""
        consumer_close.release(self._core, check_name(name), "an operator dropped its consumer", dropping=True)

    def list(self) -> builtins.list[ConsumerInfo]:
        """In order of their names."""
        with self._core.lock:
            self._core.check_open()
            return [info_of(state.record) for state in self._core.consumer_book]

    def show(self, name: str) -> ConsumerInfo:
        """Raises `ConsumerNotFound`."""
        check_name(name)
        with self._core.lock:
            self._core.check_open()
            return info_of(self._core.consumer_book.get(name).record)

    def _save(self, record: ConsumerRecord, *facts: Fact) -> int:
        """Under the lock, for one that was just seen."""
        core = self._core
        commit = core.commit([ConsumerSaved(record), *facts])
        core.consumer_book.seen(core.consumer_book.put(record), core.clock)
        core.wake_timer(record.seen_ms + record.ttl_ms)
        return commit


def check_name(name: object) -> str:
    return check_text(name, "name", MAX_CONSUMER_BYTES)


def check_whole(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequest(field, "a whole number, 0 or greater", value)
    return value


def read_outcomes(items: object) -> tuple[list[Recorded], list[int]]:
    """What is stored of each item, and the claim that its handle names."""
    if not isinstance(items, Sequence) or isinstance(items, (str, bytes)) or len(items) > MAX_BATCH_MESSAGES:
        raise InvalidRequest("items", f"a list of at most {MAX_BATCH_MESSAGES} Complete, Fail or Release", type(items))
    said: list[Recorded] = []
    claim_ids: list[int] = []
    for item in items:
        if not isinstance(item, (Complete, Fail, Release)):
            raise InvalidRequest("items", "Complete, Fail or Release", item)
        raw_id, claim_id = read_handle(item.delivery)
        claim_ids.append(claim_id)
        if isinstance(item, Complete):
            said.append(Recorded(raw_id, "complete", check_progress(item.progress)))
        elif isinstance(item, Release):
            said.append(Recorded(raw_id, "release", keep_order=check_bool(item.keep_order, "keep_order")))
        else:
            fail = check_fail(item)
            said.append(Recorded(raw_id, "fail", fail.progress, fail.error, int(fail.reason), fail.retry_in_ms, fail.dead))
    return said, claim_ids
