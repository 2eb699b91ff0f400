"""Refuses requests that the caller has no right to make, and hides the parts of answers it may not see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.middleware.rights import Rights
from fairlead.request import Answer, Caller, Handler, Request

if TYPE_CHECKING:
    from fairlead.engine.broker import Broker


class Authorize:
    def __init__(self, inner: Handler, broker: Broker) -> None:
        self._inner = inner
        self._broker = broker

    def __call__(self, request: Request[Answer], caller: Caller) -> Answer:
        if caller.key_id is None and not request.audited:
            return self._inner(request, caller)
        rights = Rights(self._broker, caller)
        allowed = request.authorize(rights)
        return request.visible(self._inner(allowed, caller), rights)
