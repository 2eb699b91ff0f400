"""What a caller is told of a session: its numbered requests, remembered so that a repeat has no second effect."""

from __future__ import annotations

import msgspec


class SessionInfo(msgspec.Struct, frozen=True):
    """`arrived`: all answers up to this number have arrived, as the client said. `last`: the highest number that was
    carried out, as far as the broker knows; the next request may have the number behind it.
    """

    session: str
    arrived: int
    last: int
