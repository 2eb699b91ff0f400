"""The streams of one queue in memory. Only the front of a stream stands in its lane; the others are behind it.

Facts say where messages are; the front follows from that, once all facts of a request are known:
`Memory.update_fronts` lets the fronts of the streams that were touched enter and leave their lanes, live and at
open alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from fairlead.decide.fronts import find_followers, find_front
from fairlead.records.chunk import Chunk, LaneName
from fairlead.records.ids import BLOCK_MASK
from fairlead.records.lease import GroupLease
from fairlead.records.stream import Stream


class Messages(Protocol):
    """What streams ask about messages."""

    held: dict[int, GroupLease]

    def seq_of(self, number: int) -> int: ...
    def waits(self, number: int) -> bool: ...
    def lane_and_weight(self, number: int) -> tuple[LaneName, int]: ...


class QueueStreams:
    """`Memory.apply` alone changes it."""

    __slots__ = ("_messages", "_queue_id", "_touched", "by_name", "demoted", "promoted")

    def __init__(self, messages: Messages, queue_id: int, touched: dict[tuple[int, str], Stream]) -> None:
        self._messages = messages
        self._queue_id = queue_id
        #: Streams of all queues whose front may be another one now.
        self._touched = touched
        #: The only message of a stream, which nothing else is known of; or a stream.
        self.by_name: dict[str, int | Stream] = {}
        #: How often a message became the front of its stream, or had to make way.
        self.promoted = 0
        self.demoted = 0

    # Questions

    def key_of(self, name: str) -> str | None:
        """The fairness key that a new message of the stream gets; None: it is the first one, and keeps its
        own.
        """
        known = self.by_name.get(name)
        if isinstance(known, Stream):
            return known.key if known.numbers else None
        return None if known is None else self._messages.lane_and_weight(known)[0][0]

    def find(self, name: str) -> Stream | None:
        """As it is; a stream with one message too."""
        known = self.by_name.get(name)
        return self._expanded(name, known) if isinstance(known, int) else known

    def followers(self, name: str, head: int, limit: int) -> Sequence[tuple[LaneName, int]]:
        """Messages that may go out behind the head in the same claim, each with its lane."""
        stream = self.by_name.get(name)
        if not isinstance(stream, Stream) or limit < 1:
            return ()
        messages = self._messages
        found = find_followers(
            stream, head, messages.seq_of, messages.waits, messages.held.__contains__, limit
        )
        return [(messages.lane_and_weight(number)[0], number) for number in found]

    def go_on(self, name: str, last: int, limit: int) -> Sequence[tuple[LaneName, int]]:
        """As `followers`, behind the last message that a claim has of the stream."""
        stream, messages = self.by_name.get(name), self._messages
        if not isinstance(stream, Stream) or limit < 1:
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

    def is_first_of_run(self, name: str, number: int) -> bool:
        """Whether it is the earliest message of its stream that its claim still holds."""
        stream, held = self.by_name.get(name), self._messages.held
        if not isinstance(stream, Stream):
            return True
        claim_id = held[number].terms.claim_id
        first = next(other for other in stream.leased if held[other].terms.claim_id == claim_id)
        return first == number

    def behind(self) -> Iterator[int]:
        """Ready messages that stand in no lane."""
        messages = self._messages
        for stream in self.by_name.values():
            if isinstance(stream, Stream):
                for number in stream.numbers:
                    if number != stream.front and number not in messages.held and not messages.waits(number):
                        yield number

    # Changes

    def open(self, chunk: Chunk, numbers: Iterable[int]) -> list[int]:
        """New messages, in order, some of which wait. Returns those that enter their lanes: without a stream, or
        the front of a stream from the start. The others join their streams.
        """
        names, by_name, waits = chunk.columns.streams or [], self.by_name, self._messages.waits
        entering: list[int] = []
        for number in numbers:
            name = names[number & BLOCK_MASK]
            if name and (name in by_name or waits(number)):
                self.join(name, number)
                if self._opens_up(name, number):
                    entering.append(number)
                continue
            if name:
                by_name[name] = number
            if not waits(number):
                entering.append(number)
        return entering

    def _opens_up(self, name: str, number: int) -> bool:
        """Whether a message that has just joined is the front, because all may pass what waits in its stream."""
        stream = self.by_name[name]
        if isinstance(stream, int) or not stream.all_after or stream.front:
            return False
        front = find_front(stream, self._messages.seq_of, self._messages.waits)
        stream.front = front if front == number else 0
        return front == number

    def join(self, name: str, number: int) -> None:
        """A live message of the stream, which may be here already, and may wait."""
        stream = self._touch(name)
        if not stream.numbers:
            stream.key = self._messages.lane_and_weight(number)[0][0]
        stream.join(number, self._messages.seq_of)

    def lease(self, name: str, number: int) -> None:
        stream = self.by_name.get(name)
        if isinstance(stream, Stream):
            stream.lease(number, self._messages.seq_of)

    def move(self, name: str, number: int) -> bool:
        """A message of the stream is about to move, and no claim holds it any more. Returns whether it stood in
        its lane.
        """
        stream = self._touch(name)
        stream.give_back(number, self._messages.seq_of)
        stood = stream.front == number
        if stood:
            stream.front = 0
        return stood

    def leave(self, name: str, number: int) -> None:
        """It is gone or dead. Its seq must still be known."""
        stream = self.by_name.get(name)
        if isinstance(stream, Stream):
            self._touch(name).leave(number, self._messages.seq_of)
        elif stream == number:
            del self.by_name[name]

    def allow_to_pass(self, name: str, numbers: Iterable[int], all_after: int) -> None:
        stream = self._touch(name)
        stream.allowed_to_pass.update(numbers)
        stream.all_after = max(all_after, stream.all_after)

    def move_front(self, stream: Stream) -> tuple[int, int]:
        """The message that leaves its lane and the one that enters it; 0: none."""
        before, messages = stream.front, self._messages
        stream.front = find_front(stream, messages.seq_of, messages.waits)
        self._shrink(stream)
        if stream.front == before:
            return 0, 0
        self.demoted += before != 0
        self.promoted += stream.front != 0
        return before, stream.front

    def _shrink(self, stream: Stream) -> None:
        if not stream.numbers:
            del self.by_name[stream.name]
        elif len(stream.numbers) == 1 and stream.row() is None:
            self.by_name[stream.name] = stream.numbers[0]

    def _touch(self, name: str) -> Stream:
        """The stream, which is about to change; a new one, if there is none."""
        known = self.by_name.get(name)
        if isinstance(known, Stream):
            stream = known
        else:
            stream = Stream(name) if known is None else self._expanded(name, known)
            self.by_name[name] = stream
        self._touched[self._queue_id, name] = stream
        return stream

    def _expanded(self, name: str, number: int) -> Stream:
        messages, stream = self._messages, Stream(name)
        stream.key = messages.lane_and_weight(number)[0][0]
        stream.numbers.append(number)
        if number in messages.held:
            stream.leased.append(number)
        elif not messages.waits(number):
            stream.front = number
        return stream
