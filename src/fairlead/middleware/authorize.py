"""Refuses requests that the caller has no right to make, and hides the parts of answers that it may not see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.middleware.rights import Rights
from fairlead.request import Answer, Caller, Handler, Request

if TYPE_CHECKING:
    from fairlead.engine.broker import Broker


class Authorize:
    """The layer for verbs of one kind."""

    def __init__(self, inner: Handler, broker: Broker, kind: type[Request[Any]]) -> None:
        self._inner = inner
        self._broker = broker
        #: The only right that the verb needs, on the queue in its field; None: the verb checks by itself.
        self._right = kind.right if _asks_for_one_right(kind) else None

    def __call__(self, request: Request[Answer], caller: Caller) -> Answer:
        if caller.key_id is None and not request.audited:
            return self._inner(request, caller)
        if self._right is not None and caller.key_id is not None:
            # The usual case: the key ring caches its answers, and nothing else is read.
            queue: object = getattr(request, request.queue_field)
            if type(queue) is str and self._broker.key_ring.allows(caller.key_id, self._right, queue):
                return self._inner(request, caller)
        rights = Rights(self._broker, caller)
        allowed = request.authorize(rights)
        return request.visible(self._inner(allowed, caller), rights)


def _asks_for_one_right(kind: type[Request[Any]]) -> bool:
    is_usual = kind.authorize is Request.authorize and kind.visible is Request.visible
    return is_usual and kind.queues is Request.queues and bool(kind.queue_field) and kind.also_right is None
