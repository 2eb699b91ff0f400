"""A session as callers see it: numbered requests whose answers are remembered, so that a repeat has no second
effect.
"""

from __future__ import annotations

import msgspec


class SessionInfo(msgspec.Struct, frozen=True):
    """`arrived`: the client has received all answers up to this number. `last`: the highest number that was
    carried out, as far as the broker knows; the next request may have the number after it.
    """

    session: str
    arrived: int
    last: int
