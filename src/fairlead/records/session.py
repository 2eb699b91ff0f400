"""Stored answers of a session, which may still be asked for again."""

from __future__ import annotations

import msgspec


class RememberedAnswer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row of a session. The row that was written last says of the whole session up to where all answers have arrived,
    and when the session was used. Number 0 has no answer: the session was opened, or used by a request that is not
    remembered.
    """

    number: int
    arrived: int
    used_ms: int
    verb: str = ""
    #: As MessagePack; of a claim nothing, because it is remembered by its leases.
    answer: bytes = b""
