"""The way in: from what a call says about its caller to the broker as that caller may use it."""

from __future__ import annotations

from collections.abc import Callable

from fairlead.broker.broker import Broker
from fairlead.decide.redact import Redaction
from fairlead.errors import Unauthenticated
from fairlead.server.guard import Caller, GuardedBroker

ANONYMOUS = "anonymous"


class Access:
    """One for a server, shared by its doors. With `keys` off everybody may do everything, and acts are still
    written down.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        keys: bool = False,
        redaction: Redaction | None = None,
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._broker = broker
        self._keys = keys
        self._redaction = redaction
        self._on_refused = on_refused

    def admit(self, authorization: str | None, source: str) -> GuardedBroker:
        """`authorization` is the header of that name; raises `Unauthenticated` before anything is looked at."""
        if not self._keys:
            return GuardedBroker(self._broker, Caller(None, ANONYMOUS, source), self._redaction)
        try:
            record = self._broker.keys.authenticate(_bearer(authorization))
        except Unauthenticated:
            self._on_refused()
            raise
        return GuardedBroker(self._broker, Caller(record.key_id, record.name, source), self._redaction)


def _bearer(authorization: str | None) -> str:
    if not authorization:
        raise Unauthenticated("the call brought none")
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer":
        raise Unauthenticated("the header begins with something else than Bearer")
    return token.strip()
