"""Streams: messages of a queue that are delivered in order."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

import msgspec

SeqOf = Callable[[int], int]


class StreamRow(msgspec.Struct, frozen=True, array_like=True):
    """What the messages of a stream do not tell: which of them may pass earlier ones that wait, and after which
    seq all may.
    """

    allowed_to_pass: tuple[int, ...]
    all_after: int


class Stream:
    """The live messages of a stream, as numbers in the order of their seqs. A stream whose only message stands
    for itself is an integer in memory instead. `Memory.apply` alone changes it.
    """

    __slots__ = ("all_after", "allowed_to_pass", "cold_from", "counted", "front", "has_row", "is_unread", "key",
                 "leased", "name", "numbers")  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        #: The fairness key of the message that opened it: all its messages have it.
        self.key = ""
        self.numbers: list[int] = []
        #: Those that a claim holds.
        self.leased: list[int] = []
        #: The message that stands in its lane for the stream; 0: none does.
        self.front = 0
        #: Messages that may pass earlier ones that wait, and the seq after which all may; 0: not all.
        self.allowed_to_pass: set[int] = set()
        self.all_after = 0
        self.has_row = False
        #: Seq of its first message that memory may lack, or a seq before it; 0: all are in memory.
        self.cold_from = 0
        #: Whether memory knows nothing of its messages; its front may stand in a lane all the same.
        self.is_unread = False
        #: How many of its messages count as kept in memory although they need not be.
        self.counted = 0

    def covers(self, seq: int) -> bool:
        """Whether memory has the message with that seq, if there is one."""
        return not 0 < self.cold_from <= seq

    def has(self, number: int, seq_of: SeqOf) -> bool:
        """Whether memory has the message as one of the stream."""
        at = bisect_left(self.numbers, seq_of(number), key=seq_of)
        return at < len(self.numbers) and self.numbers[at] == number

    def row(self) -> StreamRow | None:
        """None: its messages tell everything."""
        if not self.allowed_to_pass and not self.all_after:
            return None
        return StreamRow(tuple(sorted(self.allowed_to_pass)), self.all_after)

    def join(self, number: int, seq_of: SeqOf) -> bool:
        """False: it is here already."""
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
        """It is gone or dead, and holds nobody up any more."""
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
        """Where the messages with a greater seq begin."""
        return bisect_left(self.numbers, seq + 1, key=seq_of)


def _remove(numbers: list[int], number: int, seq_of: SeqOf) -> None:
    at = bisect_left(numbers, seq_of(number), key=seq_of)
    if at < len(numbers) and numbers[at] == number:
        del numbers[at]
