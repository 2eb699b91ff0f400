"""A stream: messages of a queue that are worked in order. One small record each, as long as any of its
messages is live.
"""

from __future__ import annotations

import msgspec


class StreamRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A live message of a stream. The row's place is its seq; its STATE flag may lag behind."""

    lane: bytes
    row: bytes

    @property
    def seq(self) -> int:
        return int.from_bytes(self.row[:8], "big")

    @property
    def id(self) -> bytes:
        return self.row[8:24]


class StreamRecord(msgspec.Struct, frozen=True, array_like=True):
    """`first` is the live message with the lowest seq; the others have rows of their own.

    `front` is the seq of the message that stands in the ready rows for the stream (0: none); a leased one has
    left them. `let_by` and `all_after` say who may pass earlier messages that wait. `key` binds the stream to
    the fairness key of the message that opened it.
    """

    key: str
    live: int
    first: StreamRow
    front: int = 0
    let_by: tuple[int, ...] = ()
    all_after: int = 0
