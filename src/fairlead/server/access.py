"""Authentication: from the credentials of a call to the broker as its caller may use it."""

from __future__ import annotations

from collections.abc import Callable

from fairlead.broker.broker import Broker
from fairlead.decide.redact import Redaction
from fairlead.errors import Unauthenticated
from fairlead.middleware.stack import AdmittedCaller, Layers
from fairlead.request import Caller

ANONYMOUS = "anonymous"


class Access:
    """One for a server, shared by its doors. With `keys` off every caller may do everything, and acts are
    still audited.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        keys: bool = False,
        redaction: Redaction | None = None,
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._layers = Layers(broker, redaction)
        self._key_ring = broker.key_ring if keys else None
        self._on_refused = on_refused

    def admit(self, authorization: str | None, source: str) -> AdmittedCaller:
        """`authorization` is the header of that name. Raises `Unauthenticated` before anything is looked at."""
        if self._key_ring is None:
            return AdmittedCaller(self._layers, Caller(None, ANONYMOUS, source))
        try:
            record = self._key_ring.authenticate(_bearer(authorization))
        except Unauthenticated:
            self._on_refused()
            raise
        return AdmittedCaller(self._layers, Caller(record.key_id, record.name, source))


def _bearer(authorization: str | None) -> str:
    if not authorization:
        raise Unauthenticated("the call brought none")
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer":
        raise Unauthenticated("the header begins with something else than Bearer")
    return token.strip()
