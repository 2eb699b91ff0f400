"""The stack of layers around a broker, built in one place.

A server adds three more outside of it, at its doors: limits (how much is in hand), authentication (who
calls) and the counting of errors, because these also concern bytes that never become a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from fairlead.clock import Clock
from fairlead.decide.redact import Redaction
from fairlead.middleware.audit import Audit
from fairlead.middleware.authorize import Authorize
from fairlead.middleware.once import Once
from fairlead.middleware.redact import Redact
from fairlead.middleware.rights import Rights
from fairlead.model.delivery import Delivery
from fairlead.model.views import MessageInfo
from fairlead.request import Answer, Caller, Handler, Request
from fairlead.surface import Surface
from fairlead.verbs.browse import Browse

if TYPE_CHECKING:
    from fairlead.broker.broker import Broker

_PAGE = 10_000


class Layers:
    """Authorize, once, audit and redact around the broker, the first outermost.

    Each verb gets the layers that concern it, so that an enqueue passes no audit.
    """

    def __init__(self, broker: Broker, redaction: Redaction | None = None) -> None:
        self.broker = broker
        self._redaction = redaction
        self._stacks: dict[type[Request[Any]], Handler] = {}

    def handle(self, request: Request[Answer], caller: Caller) -> Answer:
        kind = type(request)
        stack = self._stacks.get(kind)
        if stack is None:
            stack = self._stacks[kind] = self.stack(kind)
        return stack(request, caller)

    def stack(self, kind: type[Request[Any]], *, audited: bool = True) -> Handler:
        """`audited=False` is for the later pages of one look."""
        handler: Handler = self.broker.do
        if self._redaction is not None and Redact.concerns(kind):
            handler = Redact(handler, self.broker, self._redaction)
        if audited and Audit.concerns(kind):
            handler = Audit(handler, self.broker)
        if Once.concerns(kind):
            handler = Once(handler)
        return Authorize(handler, self.broker)


class AdmittedCaller(Surface):
    """The broker as one caller may use it: the same verbs, through the layers."""

    def __init__(self, layers: Layers, caller: Caller) -> None:
        self._layers = layers
        self._broker = layers.broker
        self.caller = caller
        self.rights = Rights(layers.broker, caller)

    def do(self, request: Request[Answer]) -> Answer:
        return self._layers.handle(request, self.caller)

    @property
    def clock(self) -> Clock:
        return self._broker.clock

    def now_ms(self) -> int:
        return self._broker.now_ms()

    def answering(self) -> AbstractContextManager[None]:
        """See `Broker.answering`."""
        return self._broker.answering()

    def put_back(self, deliveries: Sequence[Delivery]) -> None:
        """Return deliveries that were claimed here and could not be handed over."""
        self.rights.release(deliveries)

    def browse_pages(
        self, queue: str, view: Any, low: Any, high: Any, after: Any
    ) -> Iterator[list[MessageInfo]]:
        """All pages from there on. The audit records the first page."""
        handle: Handler = self._layers.handle
        while infos := handle(Browse(queue, view, low, high, _PAGE, after), self.caller):
            yield infos
            handle, after = self._layers.stack(Browse, audited=False), infos[-1].id
