"""What is stored of a session: the answers that may still be asked for again."""

from __future__ import annotations

import msgspec


class RememberedAnswer(msgspec.Struct, frozen=True, array_like=True):
    """Under the number of a request. The row that was written last says of its whole session up to where all answers
    have arrived, and when it was used. Under number 0 there is no answer: the session was opened, or used by a
    request that is not remembered.
    """

    arrived: int
    used_ms: int
    verb: str = ""
    #: As MessagePack; of a claim nothing, because it is remembered by its leases.
    answer: bytes = b""
