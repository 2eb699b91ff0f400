"""A lease is one message in the hands of one consumer; a claim is the set of leases granted by one call."""

from __future__ import annotations

import msgspec

#: Leases of a numbered claim have no end of their own: they last until the claim is closed, or its consumer
#: lets go of it.
NEVER_EXPIRES_MS = (1 << 63) - 1


class Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    """`claim_id` contains the boot number, so that a claim lost in a power cut never shares its token with a
    later one.

    `token` is the caller's own, for idempotent claims ("" when none was given).
    """

    claim_id: int
    consumer: str
    token: str
    granted_ms: int
    lease_ms: int

    @property
    def lease_token(self) -> str:
        return f"{self.claim_id:x}"


class Lease(msgspec.Struct, gc=False):
    """`row` and `lane` are where a release returns the message to; `deliveries` counts this one.

    The fields after `started` live in memory only: `deadline_ms` is monotonic time, the one that counts in
    this process; `expires_ms` is the instant in the store's time that a reopened broker goes by.
    """

    queue_id: int
    lane: bytes
    row: bytes
    claim_id: int
    expires_ms: int
    deliveries: int
    started: bool
    deadline_ms: int = 0
    consumer: str = ""

    @property
    def id(self) -> bytes:
        return self.row[8:24]

    @property
    def pinned(self) -> bool:
        """In a numbered claim: nothing but the end of that claim may move the message."""
        return self.expires_ms == NEVER_EXPIRES_MS
