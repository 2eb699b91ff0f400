"""A staged write: chunks of messages that nobody sees until all of them are published at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from fairlead.model.checks import CheckedMessage


class Refusal(msgspec.Struct, frozen=True):
    """Why one row of a chunk was not staged."""

    row: int
    error: str


class StageResult(msgspec.Struct, frozen=True):
    count: int
    bytes: int
    refused: list[Refusal] = []


class PublishResult(msgspec.Struct, frozen=True):
    """`already`: this token was published before, with so many messages; nothing was done."""

    outcome: Literal["published", "already"]
    count: int


class StagedWrite(msgspec.Struct, frozen=True, kw_only=True):
    """`expires_at` is when it is discarded, or, once published, forgotten."""

    token: str
    published: bool
    chunks: int
    messages: int
    bytes: int
    queues: list[str]
    staged_at: int
    expires_at: int


class StagedChunk(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a chunk without reading it. `bytes` are those of its messages, `stored_bytes` what it takes on disk.

    `lanes` counts the different ones among its messages.
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


class Publishing(msgspec.Struct, frozen=True, array_like=True):
    """A write that is decided: sooner or later all of it is messages. `chunks` are those still to come, the first one from `offset` on."""

    token: str
    chunks: tuple[str, ...]
    published_ms: int
    staged_ms: int
    chunk_count: int
    count: int
    bytes: int
    queues: tuple[str, ...]
    offset: int = 0


class Published(msgspec.Struct, frozen=True, array_like=True):
    """A write that is done, remembered so that it is not done twice."""

    token: str
    chunk_count: int
    count: int
    bytes: int
    queues: tuple[str, ...]
    staged_ms: int
    published_ms: int
    until_ms: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[CheckedMessage]).decode


def pack_chunk(messages: Sequence[CheckedMessage]) -> bytes:
    """Checked and encoded once, so that publishing has only to number them."""
    return _encode(messages)


def unpack_chunk(body: bytes) -> list[CheckedMessage]:
    """Raises `msgspec.DecodeError` (a `ValueError`) for what `pack_chunk` did not make."""
    return _decode(body)
