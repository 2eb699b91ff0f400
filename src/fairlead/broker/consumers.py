"""Durable consumers: each reads one queue in numbered claims, which can be asked for again until they are
closed.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from itertools import chain
from shlex import quote

import msgspec

from fairlead.broker import consumer_claims, consumer_close, consumer_read, consumer_record
from fairlead.broker.consumer_book import info_of
from fairlead.broker.core import Core
from fairlead.broker.requests import check_bool, check_count
from fairlead.broker.room import MESSAGE_BYTES
from fairlead.broker.shown_times import Answer, shown, shown_pages
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
    MAX_PART_BYTES,
    MIN_CONSUMER_TTL_MS,
)
from fairlead.model.names import Scoped, check_queue_name
from fairlead.model.settle import Complete, Extend, Fail, Release, Start

_MOST_NUMBER = (1 << 62) - 1


class Consumers:
    """`broker.consumers`. `generation` is what `register` gave; whoever registers later fences off all
    before.

    A consumer is known by its name and its queue: the same name in another queue is another consumer. What is
    claimed, recorded, chosen and closed is synced before the answer, whatever the durability of the broker.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    def register(
        self, name: str, queue: str, *, ttl: Duration = "7d", unspoken: Unspoken = "complete"
    ) -> ConsumerInfo:
        """Make the consumer, or take it over with the claim it has in hand: from now on only the new
        generation counts.

        Not seen for its time to live, it lets go of that claim. `unspoken` is what a close does with messages
        that nobody spoke of: "complete", or "release" back to their places.
        """
        consumer = read_consumer(name, queue)
        if unspoken not in ("complete", "release"):
            raise InvalidRequest("unspoken", "'complete' or 'release'", unspoken)
        ttl_ms = to_ms(ttl, "ttl")
        if not MIN_CONSUMER_TTL_MS <= ttl_ms <= MAX_CONSUMER_TTL_MS:
            raise InvalidRequest("ttl", "between 1s and 365d", ttl)
        core = self._core
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
            commit = self._save(record)
        core.confirm(commit, synced=True)
        return self._shown(info_of(record))

    def claim(
        self,
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
        """Take the next claim, waiting up to `wait` for the first message; the number in hand gives what it
        gave before.

        Its messages stay as they are until it is closed: nobody else gets them, settles them or moves them.
        `max_bytes` is passed by at most a few messages. `up_to` is a place, as `ceiling` gives it: nothing
        behind it is taken. A stream's run is taken whole unless `max_per_stream` ends it earlier, so that
        more streams find room.
        """
        wanted = consumer_claims.Wanted(
            read_consumer(name, queue),
            check_whole(generation, "generation"),
            check_count(number, "number", most=_MOST_NUMBER),
            check_count(limit, "limit", most=MAX_CLAIM),
            check_count(max_bytes, "max_bytes", most=MAX_ANSWER_BYTES),
            None if up_to is None else check_whole(up_to, "up_to"),
            check_count(max_per_stream, "max_per_stream", most=MAX_CLAIM),
        )
        return consumer_claims.claim(self._core, wanted, 0 if wait is None else to_ms(wait, "wait"))

    def read(
        self,
        name: str,
        queue: str,
        generation: int,
        number: int,
        *,
        slice: int = 0,
        slices: int = 1,
        unsettled: bool = False,
    ) -> Iterator[Delivery]:
        """The messages of the claim in hand, in its order; of `slices` slices only this one. A stream is in
        one slice.

        Every reading of an open claim gives the same. When it is over, so are its bodies: `ClaimClosed`,
        `ClaimReleased`. `unsettled`, for consumers whose unspoken messages are released, leaves out those
        that have an outcome by then, and in a stream all that are behind one which failed or was given back.
        """
        return chain.from_iterable(
            self.read_pages(name, queue, generation, number, slice=slice, slices=slices, unsettled=unsettled)
        )

    def read_pages(
        self,
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
        """`read` for a server's door: up to a thousand at a time, or about eight mebibytes, from behind the
        message `after` on.
        """
        check_slice(slice, slices)
        consumer = read_consumer(name, queue)
        check_bool(unsettled, "unsettled")
        check_whole(generation, "generation")
        check_whole(number, "number")
        pages = consumer_read.read_pages(
            self._core, consumer_read.Slice(consumer, generation, number, slice, slices, unsettled), after
        )
        return shown_pages(pages, self._core.time.ahead_ms)

    def record(
        self,
        name: str,
        queue: str,
        generation: int,
        number: int,
        items: Sequence[Complete | Fail | Release | Start | Extend],
        *,
        part: str = "",
    ) -> None:
        """Say how it goes with messages of the claim in hand; outcomes take effect when the claim is closed.

        The last outcome of a message counts. What is recorded under a part counts only if `choose` names the
        part. `Start` says that work begins: see `take_up`. It is no outcome and replaces none. `Extend` takes
        effect at once: progress grows, and what is carried is what was carried last, with an outcome or
        without; the outcome stands. An `Extend` that tells less progress than was told in this claim before
        is from one who lags behind, and changes nothing.
        """
        consumer = read_consumer(name, queue)
        check_whole(generation, "generation")
        check_whole(number, "number")
        part = check_text(part, "part", MAX_PART_BYTES, may_be_empty=True)
        consumer_record.record(
            self._core, consumer, generation, number, consumer_record.read_items(items, part), part
        )

    def take_up(
        self, name: str, queue: str, generation: int, number: int, *, slice: int = 0, slices: int = 1
    ) -> TakenUp:
        """Whoever begins to work on a slice says so first: what another had begun there and left without an
        outcome has failed.

        That is the rule for a started delivery that runs out, so that a message which ends its process comes
        to its end. Should the other one live after all, what it says later counts.
        """
        consumer = read_consumer(name, queue)
        check_slice(slice, slices)
        return consumer_record.take_up(
            self._core,
            consumer,
            check_whole(generation, "generation"),
            check_whole(number, "number"),
            slice,
            slices,
        )

    def choose(
        self, name: str, queue: str, generation: int, number: int, parts: Sequence[str], *, add: bool = False
    ) -> None:
        """Of what was recorded under parts, only that of these counts; said again, it replaces what was
        chosen before.

        With `add`, what was chosen before counts too.
        """
        consumer = read_consumer(name, queue)
        check_whole(generation, "generation")
        check_whole(number, "number")
        check_bool(add, "add")
        if isinstance(parts, str) or not isinstance(parts, Sequence) or len(parts) > MAX_BATCH_MESSAGES:
            raise InvalidRequest("parts", f"a list of at most {MAX_BATCH_MESSAGES} names of parts", parts)
        chosen = [check_text(part, "parts", MAX_PART_BYTES) for part in parts]
        core = self._core
        with core.lock:
            core.check_open()
            record = core.consumer_book.opened(consumer, generation, number).record
            chosen = builtins.list(
                dict.fromkeys([*(core.store.claim_choice(consumer, number) if add else ()), *chosen])
            )
            if len(chosen) > MAX_BATCH_MESSAGES:
                raise LimitReached(f"chosen parts in a claim of consumer {name!r}", MAX_BATCH_MESSAGES)
            core.store.check_room(sum(map(len, chosen)), in_reserve=True)
            commit = self._save(
                msgspec.structs.replace(record, seen_ms=core.now_ms()),
                PartsChosen(consumer, number, tuple(chosen)),
            )
            core.consumer_book.get(consumer).words = None
        core.confirm(commit, synced=True)

    def close(self, name: str, queue: str, generation: int, up_to: int) -> CloseResult:
        """The claim in hand is done: each message gets the outcome recorded for it. Where there is none it is
        completed, or what else the consumer said when it registered.

        Closing what is closed already changes nothing. A crash once it has begun is made good when the broker
        is opened again.
        """
        consumer = read_consumer(name, queue)
        return consumer_close.close(
            self._core, consumer, check_whole(generation, "generation"), check_whole(up_to, "up_to")
        )

    def heartbeat(self, name: str, queue: str, generation: int) -> ConsumerInfo:
        """The consumer lives: its time to live begins anew. All other calls with its generation say so too."""
        consumer = read_consumer(name, queue)
        check_whole(generation, "generation")
        core = self._core
        with core.lock:
            core.check_open()
            record = core.consumer_book.current(consumer, generation).record
            seen = msgspec.structs.replace(record, seen_ms=core.now_ms())
            self._save(seen)
            return self._shown(info_of(seen))

    def ceiling(self, name: str, queue: str, generation: int) -> int:
        """A place: what is ready in the queue now stands at or before it, and what is enqueued or tried again
        later behind it.
        """
        consumer = read_consumer(name, queue)
        check_whole(generation, "generation")
        with self._core.lock:
            self._core.check_open()
            self._core.consumer_book.current(consumer, generation)
            return first_place(self._core.store.last_commit + 1) - 1

    def release(self, name: str, queue: str) -> int:
        """Let go of the claim in hand, whoever works on it: its messages go back to their places. Returns how
        many.

        Whoever comes with its number is told `ClaimReleased`; the consumer goes on with the next one.
        """
        return consumer_close.release(self._core, read_consumer(name, queue), "an operator let go of it")

    def drop(self, name: str, queue: str) -> None:
        """Let go of the claim in hand, and forget the consumer."""
        consumer_close.release(
            self._core, read_consumer(name, queue), "an operator dropped its consumer", dropping=True
        )

    def list(self) -> builtins.list[ConsumerInfo]:
        """In order of their queues and names."""
        with self._core.lock:
            self._core.check_open()
            return self._shown([info_of(state.record) for state in self._core.consumer_book])

    def show(self, name: str, queue: str) -> ConsumerInfo:
        """Raises `ConsumerNotFound`."""
        consumer = read_consumer(name, queue)
        with self._core.lock:
            self._core.check_open()
            return self._shown(info_of(self._core.consumer_book.get(consumer).record))

    def _shown(self, answer: Answer) -> Answer:
        return shown(answer, self._core.time.ahead_ms)

    def _save(self, record: ConsumerRecord, *facts: Fact) -> int:
        """Under the lock, for one that was just seen."""
        core = self._core
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
