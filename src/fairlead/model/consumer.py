"""A durable consumer takes its messages in numbered claims: each can be asked for again, and stays as it is until it is closed."""

from __future__ import annotations

import msgspec


class ConsumerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`generation` fences: whoever registers gets a new one, and everybody with an older one is refused.

    `open` is the number of the claim that is not closed yet (0: none), with its `messages` and `bytes`. `lost` is the last
    claim that was let go of without being closed (0: none): by an operator, or because `expires_at` had come.
    """

    name: str
    queue: str
    generation: int
    last_closed: int
    open: int = 0
    messages: int = 0
    bytes: int = 0
    lost: int = 0
    ttl_ms: int
    seen_at: int
    expires_at: int


class NumberedClaim(msgspec.Struct, frozen=True):
    """`count` 0: nothing was there to hand out, and nothing was made."""

    number: int
    count: int
    bytes: int


class CloseResult(msgspec.Struct, frozen=True):
    """`settled` counts what became of the messages, by outcome; empty when the claim had been closed before."""

    last_closed: int
    settled: dict[str, int]
