"""A staged write: chunks of messages that nobody sees until all of them are published at once."""

from __future__ import annotations

from typing import Literal

import msgspec


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
    staged_at: int
    expires_at: int
