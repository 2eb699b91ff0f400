"""The stored answers of a session, which a client may ask for again."""

from __future__ import annotations

import msgspec


class RememberedAnswer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row of a session. The row that was written last tells for the whole session which answers have
    arrived, and when the session was used.

    Number 0 has no answer: the session was opened, or used by a request that is not remembered.
    """

    number: int
    arrived: int
    used_ms: int
    verb: str = ""
    #: As MessagePack. Empty for a claim, which is remembered by its leases.
    answer: bytes = b""
