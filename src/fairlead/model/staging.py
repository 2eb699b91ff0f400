"""Staged writes: chunks of messages that are invisible until all of them are published at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from fairlead.errors import InvalidRequest
from fairlead.model.failure import FailureReason, bounded_error, read_reason
from fairlead.model.names import Scoped

#: Why a message is staged as a dead letter: a reason, and the error text.
Dead = tuple[FailureReason | str | int, str]


class Refusal(msgspec.Struct, frozen=True):
    """Why one row of a chunk was not staged."""

    row: int
    error: str


class StageResult(msgspec.Struct, frozen=True):
    count: int
    bytes: int
    refused: list[Refusal] = []


class PublishResult(msgspec.Struct, frozen=True):
    """`already`: this token was published before, with this number of messages; the call changed nothing."""

    outcome: Literal["published", "already"]
    count: int


class StagedWrite(msgspec.Struct, frozen=True, kw_only=True):
    """`expires_at` is when the write is discarded or, after it was published, forgotten."""

    token: str
    published: bool
    chunks: int
    messages: int
    bytes: int
    queue: str
    staged_at: int
    expires_at: int


class StagedChunk(msgspec.Struct, frozen=True, array_like=True):
    """What is known about a chunk without reading it. `bytes` is the size of its messages, `stored_bytes` its
    size on disk.

    `lanes` counts the distinct lanes of its messages. The messages of a `dead` chunk become dead letters of
    its queue.
    """

    token: str
    chunk: str
    queue_id: int
    queue: str
    count: int
    bytes: int
    stored_bytes: int
    lanes: int
    staged_ms: int
    expires_ms: int
    dead: bool = False
    #: The number and the message count of each part.
    parts: tuple[tuple[int, int], ...] = ()

    @property
    def write(self) -> Scoped:
        return Scoped(self.queue, self.token)


class Publishing(msgspec.Struct, frozen=True, array_like=True):
    """A write whose publication is decided: all of it will become messages. `chunks` are the remaining ones,
    the first of them from `offset` on.
    """

    token: str
    chunks: tuple[str, ...]
    published_ms: int
    staged_ms: int
    chunk_count: int
    count: int
    bytes: int
    queue: str
    offset: int = 0

    @property
    def write(self) -> Scoped:
        return Scoped(self.queue, self.token)


class Published(msgspec.Struct, frozen=True, array_like=True):
    """A published write, remembered so that it is not published twice."""

    token: str
    chunk_count: int
    count: int
    bytes: int
    queue: str
    staged_ms: int
    published_ms: int
    until_ms: int

    @property
    def write(self) -> Scoped:
        return Scoped(self.queue, self.token)


class Death(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Why a message that was never tried is a dead letter."""

    reason: int
    error: str


def read_deaths(given: object, count: int) -> list[Death]:
    """Read a caller's (reason, error) for all messages of a chunk, or one for each."""
    if isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        if len(given) == 2 and isinstance(given[0], (str, int)):
            return [_read_death(given)]
        if len(given) == count:
            return [_read_death(one) for one in given]
    raise InvalidRequest("dead", f"(reason, error), or {count} of them, one for each message", given)


def _read_death(given: object) -> Death:
    if (
        isinstance(given, (str, bytes))
        or not isinstance(given, Sequence)
        or len(given) != 2
        or not isinstance(given[1], str)
    ):
        raise InvalidRequest("dead", "(reason, error)", given)
    return Death(int(read_reason(given[0], "dead")), bounded_error(given[1]))
