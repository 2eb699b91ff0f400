"""The stack of layers around a broker, built in one place.

A door itself refuses and counts what comes before a request exists: too many connections, malformed bytes, an
unknown key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.clock import Clock
from fairlead.decide.redact import Redaction
from fairlead.middleware.audit import Audit
from fairlead.middleware.authenticate import Authenticate, Credentials
from fairlead.middleware.authorize import Authorize
from fairlead.middleware.limits import LimitsLayer, Places
from fairlead.middleware.metrics import MetricsLayer, RequestCounts
from fairlead.middleware.redact import Redact
from fairlead.middleware.rights import Rights
from fairlead.middleware.trace import Trace
from fairlead.model.delivery import Delivery
from fairlead.model.views import MessageInfo
from fairlead.request import Answer, Caller, Handler, Request
from fairlead.surface import Surface
from fairlead.verbs.browse import Browse

if TYPE_CHECKING:
    from fairlead.engine.broker import Broker
    from fairlead.wire.tracing import Tracing

_PAGE = 10_000


class Layers:
    """Limits, authenticate, authorize, audit, redact, trace and metrics around the broker, the first
    outermost. One for a server, shared by its doors.

    Each verb gets the layers that concern it, so that an enqueue passes no audit. With `keys` off every
    caller may do everything, and calls are still audited. `on_refused` is called for refused credentials.
    """

    def __init__(
        self,
        broker: Broker,
        redaction: Redaction | None = None,
        *,
        keys: bool = False,
        limits: Places | None = None,
        tracing: Tracing | None = None,
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        self.broker = broker
        #: Requests that reached the engine, by verb.
        self.requests: dict[str, RequestCounts] = {}
        self._has_keys = keys
        self._credentials = Credentials(broker.key_ring if keys else None, on_refused)
        self._limits = limits
        self._redaction = redaction
        self._tracing = tracing
        self._engine: Handler = broker.do
        self._stacks: dict[type[Request[Any]], Handler] = {}
        self._stacks_again: dict[type[Request[Any]], Handler] = {}
        self._stacks_unaudited: dict[type[Request[Any]], Handler] = {}

    def around(self, engine: Handler) -> Layers:
        """The same layers around a handler that stands in for the broker, for example one that gathers
        requests of several callers into one.
        """
        changed = copy(self)
        changed._engine = engine
        changed._stacks, changed._stacks_again, changed._stacks_unaudited = {}, {}, {}
        return changed

    def admit(self, authorization: str | None, source: str, size: int = 0) -> AdmittedCaller:
        """The caller for credentials. `authorization` is the header of that name. Raises `Unauthenticated`
        before anything else is read.
        """
        return AdmittedCaller(self, self._credentials.caller(authorization, source, size))

    def handle(self, request: Request[Answer], caller: Caller) -> Answer:
        kind = type(request)
        stack = self._stacks.get(kind)
        if stack is None:
            stack = self._stacks[kind] = self.stack(kind)
        return stack(request, caller)

    def handle_again(self, request: Request[Answer], caller: Caller) -> Answer:
        """Handle a waiting request that was handled before: the metrics count it once."""
        kind = type(request)
        stack = self._stacks_again.get(kind)
        if stack is None:
            stack = self._stacks_again[kind] = self.stack(kind, counted=False)
        return stack(request, caller)

    def handle_unaudited(self, request: Request[Answer], caller: Caller) -> Answer:
        """Handle a door's own view, which shows its caller only messages that were delivered to it."""
        kind = type(request)
        stack = self._stacks_unaudited.get(kind)
        if stack is None:
            stack = self._stacks_unaudited[kind] = self.stack(kind, audited=False)
        return stack(request, caller)

    def stack(self, kind: type[Request[Any]], *, audited: bool = True, counted: bool = True) -> Handler:
        """The layers for a verb. `audited=False` is for the later pages of one view."""
        handler: Handler = self._engine
        if counted:
            handler = MetricsLayer(handler, self.requests.setdefault(kind.verb_name, RequestCounts()))
        if self._tracing is not None and Trace.concerns(kind):
            handler = Trace(handler, self._tracing)
        if self._redaction is not None and Redact.concerns(kind):
            handler = Redact(handler, self.broker, self._redaction)
        if audited and Audit.concerns(kind):
            handler = Audit(handler, self.broker)
        if self._has_keys or kind.audited:
            handler = Authorize(handler, self.broker, kind)
        if self._has_keys:
            handler = Authenticate(handler, self.broker.key_ring)
        return handler if self._limits is None else LimitsLayer(handler, self._limits)


class AdmittedCaller(Surface):
    """The broker as one caller may use it: the same verbs, through the layers."""

    def __init__(self, layers: Layers, caller: Caller) -> None:
        self._layers = layers
        self._broker = layers.broker
        self.caller = caller
        self.rights = Rights(layers.broker, caller)

    def do(self, request: Request[Answer]) -> Answer:
        return self._layers.handle(request, self.caller)

    def once(self, request: Request[Answer], *, session: str, number: int, arrived: int = 0) -> Answer:
        caller = self.caller._replace(session=session, number=number, arrived=arrived)
        return self._layers.handle(request, caller)

    @property
    def clock(self) -> Clock:
        return self._broker.clock

    def now_ms(self) -> int:
        return self._broker.now_ms()

    def put_back(self, deliveries: Sequence[Delivery]) -> None:
        """Return deliveries that were claimed here and could not be sent."""
        self.rights.release(deliveries)

    def browse_pages(self, request: Browse) -> Iterator[list[MessageInfo]]:
        """All pages from there on, whatever the limit of the request. The audit records the first page."""
        handle: Handler = self._layers.handle
        request = msgspec.structs.replace(request, limit=_PAGE)
        while infos := handle(request, self.caller):
            yield infos
            handle = self._layers.stack(Browse, audited=False)
            request = msgspec.structs.replace(request, after=infos[-1].id)
