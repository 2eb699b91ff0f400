"""The streams of one queue. Only the front of a stream is in its lane; the others are behind it.

Facts say where messages are. The front follows from that once all facts of a request are known:
`update_fronts` of `reduce/streams.py` lets the fronts of changed streams enter and leave their lanes, live
and at open.

Memory has the beginning of a stream, or nothing of it; the rest is on disk and read on demand. A message of a
hot chunk is always in memory, and comes before those that need not be (`Memory.is_cold_member`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from fairlead.decide.fronts import LOOK_BACK, find_followers, find_front
from fairlead.engine import cold
from fairlead.records.chunk import Chunk, LaneName
from fairlead.records.ids import BLOCK_MASK, BLOCK_SHIFT
from fairlead.records.lease import GroupLease
from fairlead.records.stream import Stream

#: A seq before that of every message.
_FIRST_SEQ = 1 << BLOCK_SHIFT


class Messages(Protocol):
    """The questions that streams ask about messages."""

    held: dict[int, GroupLease]

    def seq_of(self, number: int) -> int: ...
    def waits(self, number: int) -> bool: ...
    def lane_and_weight(self, number: int) -> tuple[LaneName, int]: ...
    def is_cold_member(self, number: int) -> bool:
        """Whether memory need not hold the message of a stream."""
        ...

    def read_stream(self, queue_id: int, stream: Stream, wanted: int) -> None:
        """Load the next messages of a stream that continues on disk."""
        ...

    def find_stream_key(self, queue_id: int, name: str, start: int) -> str | None:
        """The fairness key of a stream with rows from a seq on; None if it has none."""
        ...

    def has_stream_rows(self, queue_id: int) -> bool:
        """Whether a stream of the queue has rows."""
        ...

    def has_one_message(self, queue_id: int, name: str) -> bool:
        """For a stream of which memory knows nothing: whether it has exactly one message."""
        ...


class QueueStreams:
    """Only `Memory.apply` changes it."""

    __slots__ = ("_keys_on_disk", "_messages", "_queue_id", "_touched", "_unchecked_before", "_used", "by_name",
                 "demoted", "may_be_on_disk", "promoted")  # fmt: skip

    def __init__(
        self,
        messages: Messages,
        queue_id: int,
        touched: dict[tuple[int, str], Stream],
        used: set[tuple[int, str]],
    ) -> None:
        self._messages = messages
        self._queue_id = queue_id
        #: Streams of all queues whose front may have changed; and those that this transaction used.
        self._touched = touched
        self._used = used
        #: The only message of a stream of which nothing else is known; or a stream.
        self.by_name: dict[str, int | Stream] = {}
        #: Whether a stream may have rows. Only then can there be a stream that memory does not know.
        self.may_be_on_disk = False
        #: The fairness keys of streams that memory does not have, as they were read; None if there is no such
        #: stream.
        self._keys_on_disk: dict[str, str | None] = {}
        #: A stream whose only message has a lower number may continue on disk: it was found at open.
        self._unchecked_before = 0
        #: How often a message became the front of its stream, or ceased to be.
        self.promoted = 0
        self.demoted = 0

    # Questions

    @property
    def has_any(self) -> bool:
        """False if no message of the queue is in a stream."""
        return bool(self.by_name) or self.may_be_on_disk

    def key_of(self, name: str) -> str | None:
        """The fairness key that a new message of the stream gets; None if it is the first one, which keeps
        its own.
        """
        known = self.by_name.get(name)
        if isinstance(known, Stream) and known.numbers:
            return known.key
        if isinstance(known, int):
            return self._messages.lane_and_weight(known)[0][0]
        self.look_up([name])
        return self._keys_on_disk.get(name)

    def look_up(self, names: Iterable[str]) -> None:
        """Read which of these streams exist, for those that memory does not know."""
        if not self.may_be_on_disk:
            self._keys_on_disk.clear()
            return
        known, keys, messages = self.by_name, self._keys_on_disk, self._messages
        unknown = [name for name in names if name and name not in keys and self._is_empty(known.get(name))]
        for name in unknown:
            keys[name] = messages.find_stream_key(self._queue_id, name, 0)
        if unknown and not any(keys[name] for name in unknown):
            self.may_be_on_disk = messages.has_stream_rows(self._queue_id)

    def _is_empty(self, known: int | Stream | None) -> bool:
        """Whether memory knows no message of the stream."""
        return known is None or (isinstance(known, Stream) and not known.numbers)

    def row_changed(self, name: str) -> None:
        """Rows of the stream were added or deleted, so cached reads of them are outdated."""
        self._keys_on_disk.pop(name, None)
        self.may_be_on_disk = True

    def goes_on_on_disk(self, name: str) -> bool:
        """Whether it has cold messages. New messages come after them and are cold too."""
        if not self.may_be_on_disk:
            return False
        known = self.by_name.get(name)
        if self._is_empty(known):
            self.look_up([name])
            return self._keys_on_disk.get(name) is not None
        last, cold_from = known, 0
        if isinstance(known, Stream):
            last, cold_from = known.numbers[-1], known.cold_from
        elif isinstance(known, int) and known < self._unchecked_before:
            cold_from = self._messages.seq_of(known) + 1
        assert isinstance(last, int)
        if self._messages.is_cold_member(last):
            return True
        return cold_from > 0 and (self._messages.find_stream_key(self._queue_id, name, cold_from) is not None)

    def find(self, name: str, wanted: int = 1) -> Stream | None:
        """A stream with its first messages, `wanted` of them or all, and with everything that determines its
        front.
        """
        stream = self._find(name)
        while stream is not None and stream.cold_from and len(stream.numbers) < wanted:
            self._read_on(stream, wanted - len(stream.numbers))
        return stream

    def find_up_to(self, name: str, number: int) -> Stream | None:
        """A stream with everything before a message, as far back as a release looks."""
        stream, seq = self._find(name), self._messages.seq_of(number)
        while stream is not None and not stream.covers(seq) and len(stream.numbers) < LOOK_BACK:
            self._read_on(stream, cold.STREAM_MESSAGES)
        return stream

    def knows(self, name: str, number: int, seq: int) -> bool:
        """Whether memory has the message as one of its stream. The state with its seq need not be in memory."""
        known = self.by_name.get(name)
        if isinstance(known, Stream):
            return known.covers(seq)
        return known == number

    def followers(self, name: str, head: int, limit: int) -> Sequence[tuple[LaneName, int]]:
        """Messages that may be delivered after the head in the same claim, each with its lane."""
        stream = self._find_behind(name, head, limit)
        if stream is None or limit < 1:
            return ()
        messages = self._messages
        found = find_followers(
            stream, head, messages.seq_of, messages.waits, messages.held.__contains__, limit
        )
        return [(messages.lane_and_weight(number)[0], number) for number in found]

    def go_on(self, name: str, last: int, limit: int) -> Sequence[tuple[LaneName, int]]:
        """As `followers`, after the last message of the stream in a claim."""
        stream, messages = self._find_behind(name, last, limit), self._messages
        if stream is None or limit < 1:
            return ()
        claim_id = messages.held[last].terms.claim_id
        earlier = stream.numbers[: stream.index_after(messages.seq_of(last), messages.seq_of)]
        leases = [messages.held.get(number) for number in earlier]
        found = find_followers(
            stream,
            last,
            messages.seq_of,
            messages.waits,
            messages.held.__contains__,
            limit,
            nothing_waits_before=all(
                lease is not None and lease.terms.claim_id == claim_id for lease in leases
            ),
        )
        return [(messages.lane_and_weight(number)[0], number) for number in found]

    def _find_behind(self, name: str, number: int, limit: int) -> Stream | None:
        """A stream with its messages up to that one, and the next ones; None if it has no other message."""
        known = self.by_name.get(name)
        if isinstance(known, int) and not self._may_go_on(known):
            return None
        stream, seq_of = self._find(name), self._messages.seq_of
        while stream is not None and stream.cold_from:
            lacking = stream.index_after(seq_of(number), seq_of) + limit - len(stream.numbers)
            if lacking <= 0 and stream.covers(seq_of(number)):
                break
            self._read_on(stream, max(lacking, cold.STREAM_MESSAGES))
        return stream

    def is_first_of_run(self, name: str, number: int) -> bool:
        """Whether the message is the earliest of its stream that its claim still holds."""
        stream, held = self._find_behind(name, number, 0), self._messages.held
        if stream is None:
            return True
        claim_id = held[number].terms.claim_id
        first = next(other for other in stream.leased if held[other].terms.claim_id == claim_id)
        return first == number

    def stream_backlog(self) -> Iterator[int]:
        """Ready messages in memory that are in no lane."""
        messages = self._messages
        for stream in self.by_name.values():
            if isinstance(stream, Stream):
                for number in stream.numbers:
                    if number != stream.front and number not in messages.held and not messages.waits(number):
                        yield number

    def names_of_several(self) -> list[str]:
        """Streams in memory that have, or may have, several messages."""
        return [
            name
            for name, known in self.by_name.items()
            if isinstance(known, Stream) or self._may_go_on(known)
        ]

    def _may_go_on(self, only: int) -> bool:
        """Whether other messages may follow the only message of a stream that memory knows."""
        return self.may_be_on_disk and only < self._unchecked_before

    # Changes

    def found(self, name: str, number: int) -> None:
        """At open: an implied message of a hot chunk."""
        if name in self.by_name:
            self.join(name, number)
        else:
            self.by_name[name] = number

    def begin(self, unchecked_before: int) -> None:
        """At open, once all messages that memory must hold have joined their streams: if there are rows, any
        of these streams may continue on disk.
        """
        self.may_be_on_disk = self._messages.has_stream_rows(self._queue_id)
        if not self.may_be_on_disk:
            return
        self._unchecked_before = unchecked_before
        for name, stream in self.by_name.items():
            if isinstance(stream, int):
                continue
            numbers = stream.numbers
            stream.cold_from = self._messages.seq_of(numbers[-1]) + 1 if numbers else _FIRST_SEQ
            if not numbers:
                # Read on demand.
                stream.is_unread = True
                self._touched.pop((self._queue_id, name), None)

    def open(self, chunk: Chunk, numbers: Iterable[int]) -> list[int]:
        """Add new messages of a hot chunk, in order, some of which wait. Returns those that enter their
        lanes: messages without a stream, and fronts of new streams. The others join their streams.
        """
        names, by_name, waits = chunk.columns.streams or [], self.by_name, self._messages.waits
        entering: list[int] = []
        for number in numbers:
            name = names[number & BLOCK_MASK]
            if name and (name in by_name or waits(number)):
                self._join_hot(name, number)
                if self._opens_up(name, number):
                    entering.append(number)
                continue
            if name:
                by_name[name] = number
            if not waits(number):
                entering.append(number)
        return entering

    def prepare(self, chunk: Chunk) -> set[str]:
        """Before `open_on_disk`: those streams of a new chunk that have messages already."""
        names = set(chunk.columns.streams or ()) - {""}
        self.look_up(names)
        for name in names & self.by_name.keys():
            known = self.by_name[name]
            if isinstance(known, int):
                known = self.by_name[name] = self._expanded(name, known)
            elif known.all_after:
                self._find(name)
            self._used.add((self._queue_id, name))
        return {name for name in names if name in self.by_name or self._keys_on_disk.get(name) is not None}

    def open_on_disk(self, chunk: Chunk, numbers: Iterable[int], begun: set[str]) -> list[int]:
        """As `open`, for a cold chunk, whose messages memory need not hold. They have their rows. `begun`:
        what `prepare` returned.
        """
        names, waits = chunk.columns.streams or [], self._messages.waits
        entering: list[int] = []
        for number in numbers:
            name = names[number & BLOCK_MASK]
            if name in begun:
                stream = self.by_name.get(name)
                if isinstance(stream, Stream):
                    if not stream.cold_from and not stream.has(number, self._messages.seq_of):
                        stream.cold_from = number
                    if self._opens_up(name, number):
                        entering.append(number)
                continue
            if name:
                begun.add(name)
            if not waits(number):
                entering.append(number)
        return entering

    def _opens_up(self, name: str, number: int) -> bool:
        """Whether a new message is the front, because all may pass the waiting messages of its stream."""
        stream = self.by_name[name]
        if isinstance(stream, int) or not stream.all_after or stream.front:
            return False
        self._know(stream)
        front = find_front(stream, self._messages.seq_of, self._messages.waits)
        stream.front = front if front == number else 0
        return front == number

    def meet(self, name: str) -> None:
        """Before a message of the stream ends its delivery: load the stream as it is until then, unless it
        has no other message.
        """
        known, messages = self.by_name.get(name), self._messages
        if known is None:
            is_known = messages.has_one_message(self._queue_id, name)
        elif isinstance(known, int):
            goes_on = self._may_go_on(known) and messages.find_stream_key(self._queue_id, name, 0) is not None
            is_known = not goes_on
        else:
            is_known = not known.is_unread
        if not is_known:
            self._touch(name)

    def _join_hot(self, name: str, number: int) -> None:
        """Its chunk would be cold if the stream continued on disk."""
        stream = self._touch(name)
        stream.cold_from = 0
        self._join(stream, number)

    def join(self, name: str, number: int) -> None:
        """Add a live message of the stream, which may be there already, and may wait."""
        self._join(self._touch(name), number)

    def _join(self, stream: Stream, number: int) -> None:
        messages = self._messages
        if not stream.numbers and not stream.cold_from:
            stream.key = messages.lane_and_weight(number)[0][0]
        if stream.covers(messages.seq_of(number)):
            stream.join(number, messages.seq_of)

    def lease(self, name: str, number: int) -> bool:
        """A claim takes the message. Returns whether it was in its lane. What memory does not know of the
        stream is known when it is read.
        """
        stream = self.by_name.get(name)
        if not isinstance(stream, Stream) or stream.is_unread:
            return True
        stood = stream.front == number
        if stream.has(number, self._messages.seq_of):
            stream.lease(number, self._messages.seq_of)
        return stood

    def move(self, name: str, number: int) -> bool:
        """A message of the stream is about to move, and no claim holds it any more. Returns whether it was in
        its lane.
        """
        stream = self._touch(name)
        stream.give_back(number, self._messages.seq_of)
        stood = stream.front == number
        if stood:
            stream.front = 0
        return stood

    def leave(self, name: str, number: int) -> None:
        """The message is gone or dead. Its seq must still be known."""
        stream = self.by_name.get(name)
        if isinstance(stream, Stream):
            self._touch(name).leave(number, self._messages.seq_of)
        elif stream == number:
            del self.by_name[name]

    def allow_to_pass(self, name: str, numbers: Iterable[int], all_after: int) -> None:
        stream = self._touch(name)
        stream.allowed_to_pass.update(numbers)
        stream.all_after = max(all_after, stream.all_after)
        stream.has_row = True

    def read(self, stream: Stream, numbers: Sequence[int], cold_from: int) -> None:
        """Its next messages were read from disk."""
        held = self._messages.held
        if numbers and not stream.numbers:
            stream.key = self._messages.lane_and_weight(numbers[0])[0][0]
        stream.numbers.extend(numbers)
        stream.leased.extend([number for number in numbers if number in held])
        stream.cold_from = cold_from

    def let_go(self, name: str) -> None:
        """Memory need not hold any of its messages."""
        stream = self.by_name[name]
        if isinstance(stream, int) or stream.row() is None:
            del self.by_name[name]
            return
        stream.numbers, stream.leased, stream.front = [], [], 0
        stream.cold_from, stream.is_unread = _FIRST_SEQ, True

    def front_of(self, name: str) -> int:
        """The message in memory that represents the stream in its lane; 0 if none does."""
        known = self.by_name[name]
        if isinstance(known, Stream):
            return known.front
        is_free = known not in self._messages.held and not self._messages.waits(known)
        return known if is_free else 0

    def demote(self, name: str, number: int) -> list[int]:
        """Memory no longer needs to hold this message of the stream and those behind it. If it must hold some
        before them, these leave the stream and are returned.
        """
        self._used.add((self._queue_id, name))
        stream, seq_of = self.by_name[name], self._messages.seq_of
        if isinstance(stream, int):
            return []
        at = stream.index_after(number - 1, seq_of)
        if not at or stream.front in stream.numbers[at:]:
            return []
        gone = stream.numbers[at:]
        del stream.numbers[at:]
        stream.leased = [leased for leased in stream.leased if seq_of(leased) < number]
        stream.cold_from = number
        return gone

    def fronts(self) -> list[int]:
        """At open: the fronts of all streams in memory."""
        held, waits, found = self._messages.held, self._messages.waits, list[int]()
        for known in self.by_name.values():
            if isinstance(known, Stream):
                found.append(known.front)
            elif known not in held and not waits(known):
                found.append(known)
        return [number for number in found if number]

    def move_front(self, stream: Stream) -> tuple[int, int]:
        """The message that leaves its lane and the one that enters it; 0 for none."""
        before, messages = stream.front, self._messages
        self._know(stream)
        stream.front = find_front(stream, messages.seq_of, messages.waits)
        self._shrink(stream)
        if stream.front == before:
            return 0, 0
        self.demoted += before != 0
        self.promoted += stream.front != 0
        return before, stream.front

    def _shrink(self, stream: Stream) -> None:
        if stream.cold_from:
            return
        if not stream.numbers:
            del self.by_name[stream.name]
        elif len(stream.numbers) == 1 and stream.row() is None:
            self.by_name[stream.name] = stream.numbers[0]

    def _touch(self, name: str) -> Stream:
        """The stream, which is about to change; a new one if there is none."""
        stream = self._find(name)
        if stream is None:
            stream = Stream(name)
        self.by_name[name] = stream
        self._touched[self._queue_id, name] = stream
        self._used.add((self._queue_id, name))
        return stream

    # Reading

    def _find(self, name: str) -> Stream | None:
        """As `find`. A stream with one message, and nothing else to read, stays one in memory."""
        known = self.by_name.get(name)
        if isinstance(known, int):
            stream = self._expanded(name, known)
            if not stream.cold_from:
                return stream
        elif known is not None:
            stream = known
        elif self.may_be_on_disk and self._keys_on_disk.get(name, name) is not None:
            stream = Stream(name)
            stream.cold_from, stream.is_unread = _FIRST_SEQ, True
        else:
            return None
        if stream.is_unread:
            self._know(stream)
            stream.is_unread = False
            stream.front = find_front(stream, self._messages.seq_of, self._messages.waits)
            if known is None and not stream.numbers:
                self._keys_on_disk[name] = None
                return None
        self.by_name[name] = stream
        self._used.add((self._queue_id, name))
        return stream

    def _know(self, stream: Stream) -> None:
        """Read as much of a stream as determines its front."""
        while self._is_open(stream):
            self._read_on(stream, cold.STREAM_MESSAGES)

    def _is_open(self, stream: Stream) -> bool:
        """Whether a message that memory lacks may be the front."""
        if not stream.cold_from:
            return False
        numbers, messages = stream.numbers, self._messages
        if not numbers:
            return True
        if not messages.waits(numbers[0]):
            return False
        all_may_pass = stream.all_after >= messages.seq_of(numbers[0])
        if all_may_pass and stream.index_after(stream.all_after, messages.seq_of) == len(numbers):
            return True
        return bool(stream.allowed_to_pass) and not stream.allowed_to_pass.issubset(numbers)

    def _read_on(self, stream: Stream, wanted: int) -> None:
        self._messages.read_stream(self._queue_id, stream, wanted)

    def _expanded(self, name: str, number: int) -> Stream:
        messages, stream = self._messages, Stream(name)
        stream.key = messages.lane_and_weight(number)[0][0]
        stream.numbers.append(number)
        if self._may_go_on(number):
            stream.cold_from = messages.seq_of(number) + 1
        if number in messages.held:
            stream.leased.append(number)
        elif not messages.waits(number):
            stream.front = number
        return stream
