"""Streams: messages of a queue that are delivered in order."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

import msgspec

SeqOf = Callable[[int], int]


class StreamRow(msgspec.Struct, frozen=True, array_like=True):
    """The properties of a stream that its messages do not have: which of them may pass earlier ones that
    wait, and the seq after which all may.
    """

    allowed_to_pass: tuple[int, ...]
    all_after: int


class Stream:
    """The live messages of a stream, as numbers in the order of their seqs. Only `Memory.apply` changes it.

    In memory, a stream with a single message is that message's number instead.
    """

    __slots__ = ("all_after", "allowed_to_pass", "cold_from", "counted", "front", "has_row", "is_unread", "key",
                 "leased", "name", "numbers")  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        #: The fairness key of the stream's first message, which all of its messages have.
        self.key = ""
        self.numbers: list[int] = []
        #: Messages that a claim holds.
        self.leased: list[int] = []
        #: The message that represents the stream in its lane; 0: none does.
        self.front = 0
        #: Messages that may pass earlier ones that wait, and the seq after which all may; 0: not all.
        self.allowed_to_pass: set[int] = set()
        self.all_after = 0
        self.has_row = False
        #: The seq of its first message that memory may lack, or an earlier seq; 0: all are in memory.
        self.cold_from = 0
        #: Whether memory holds none of its messages. Its front may be in a lane nevertheless.
        self.is_unread = False
        #: How many of its messages count as kept in memory although they could be cold.
        self.counted = 0

    def covers(self, seq: int) -> bool:
        """Whether a message with that seq would be in memory."""
        return not 0 < self.cold_from <= seq

    def has(self, number: int, seq_of: SeqOf) -> bool:
        """Whether memory holds the message as one of the stream."""
        at = bisect_left(self.numbers, seq_of(number), key=seq_of)
        return at < len(self.numbers) and self.numbers[at] == number

    def row(self) -> StreamRow | None:
        """The row to store; None if its messages tell everything."""
        if not self.allowed_to_pass and not self.all_after:
            return None
        return StreamRow(tuple(sorted(self.allowed_to_pass)), self.all_after)

    def join(self, number: int, seq_of: SeqOf) -> bool:
        """Add a message. False if it is there already."""
        numbers = self.numbers
        if not numbers or seq_of(numbers[-1]) < seq_of(number):
            numbers.append(number)
            return True
        at = bisect_left(numbers, seq_of(number), key=seq_of)
        if numbers[at] == number:
            return False
        numbers.insert(at, number)
        return True

    def leave(self, number: int, seq_of: SeqOf) -> None:
        """Remove a message that is gone or dead and no longer blocks others."""
        _remove(self.numbers, number, seq_of)
        self.give_back(number, seq_of)
        self.allowed_to_pass.discard(number)
        if self.front == number:
            self.front = 0
        if not self.numbers or self.all_after < seq_of(self.numbers[0]):
            self.all_after = 0

    def lease(self, number: int, seq_of: SeqOf) -> None:
        insort(self.leased, number, key=seq_of)
        if self.front == number:
            self.front = 0

    def give_back(self, number: int, seq_of: SeqOf) -> None:
        if self.leased:
            _remove(self.leased, number, seq_of)

    def index_after(self, seq: int, seq_of: SeqOf) -> int:
        """The index of the first message with a greater seq."""
        return bisect_left(self.numbers, seq + 1, key=seq_of)


def _remove(numbers: list[int], number: int, seq_of: SeqOf) -> None:
    at = bisect_left(numbers, seq_of(number), key=seq_of)
    if at < len(numbers) and numbers[at] == number:
        del numbers[at]
