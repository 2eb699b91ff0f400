"""Authentication: turns credentials into a caller, and checks on each request that its key is still valid."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fairlead.errors import Unauthenticated
from fairlead.request import Answer, Caller, Handler, Request

if TYPE_CHECKING:
    from fairlead.engine.key_ring import KeyRing

ANONYMOUS = "anonymous"


class Credentials:
    """Turns the credentials of a call into its caller. Without a key ring every caller is anonymous and may
    do everything.
    """

    def __init__(self, key_ring: KeyRing | None, on_refused: Callable[[], None]) -> None:
        self._key_ring = key_ring
        self._on_refused = on_refused

    def caller(self, authorization: str | None, source: str, size: int = 0) -> Caller:
        """The caller. `authorization` is the header of that name. Raises `Unauthenticated` before anything
        else is read.
        """
        if self._key_ring is None:
            return Caller(None, ANONYMOUS, source, size=size)
        try:
            record = self._key_ring.authenticate(_bearer(authorization))
        except Unauthenticated:
            self._on_refused()
            raise
        return Caller(record.key_id, record.name, source, size=size)


class Authenticate:
    """A connection serves many requests. A key that was revoked or has expired since it was opened is refused
    with `Unauthenticated`, even where no right is needed.
    """

    def __init__(self, inner: Handler, key_ring: KeyRing) -> None:
        self._inner = inner
        self._key_ring = key_ring

    def __call__(self, request: Request[Answer], caller: Caller) -> Answer:
        if caller.key_id is not None:
            self._key_ring.current(caller.key_id)
        return self._inner(request, caller)


def _bearer(authorization: str | None) -> str:
    if not authorization:
        raise Unauthenticated("the call brought none")
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer":
        raise Unauthenticated("the header begins with something else than Bearer")
    return token.strip()
