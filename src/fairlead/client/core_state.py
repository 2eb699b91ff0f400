"""The common part of the blocking and the asyncio core, without I/O: the held leases, the time limits of
calls, and which calls may be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairlead.client.attempts import Attempts
from fairlead.client.calls import PreparedSettle, Tokens, repeatable
from fairlead.client.heartbeat import Heartbeat
from fairlead.client.identity import Identity
from fairlead.client.options import Options
from fairlead.client.outage import Outage
from fairlead.client.patience import Patience, Pauses
from fairlead.client.prefetch import HandedOut
from fairlead.client.session import Sessions
from fairlead.client.traces import Traces
from fairlead.clock import Clock
from fairlead.errors import ClientClosed, ClientForked
from fairlead.model.delivery import Delivery
from fairlead.model.settle import Release
from fairlead.request import Request
from fairlead.verbs.claim import Claim
from fairlead.verbs.settle import Settle

#: How long a close may wait for the server, so that a dead server does not keep a program from ending.
CLOSING_MS = 2000


class CoreState:
    heartbeat: Heartbeat

    def __init__(self, options: Options, identity: Identity, traces: Traces, clock: Clock) -> None:
        self.options = options
        self.clock = clock
        self.traces = traces
        self.handed_out = HandedOut()
        self.tokens = Tokens()
        self._sessions = Sessions()
        self._pauses = Pauses(clock)
        self._outage = Outage(str(identity.endpoint), clock)
        self._unusable: type[ClientClosed | ClientForked] | None = None
        #: Set by `begin_close`: no call may take longer than until this time.
        self._closing_ends_ms: int | None = None

    @property
    def is_closed(self) -> bool:
        return self._unusable is not None

    def check(self) -> None:
        if self._unusable is not None:
            raise self._unusable()

    def begin_close(self) -> bool:
        """Begin to close. False if the client is closed or is being closed."""
        if self._unusable is not None or self._closing_ends_ms is not None:
            return False
        self._closing_ends_ms = self.clock.monotonic_ms() + self._closing_ms()
        return True

    # Held leases

    def hold(self, deliveries: Sequence[Delivery], server_now_ms: int) -> None:
        """Extend the leases of these deliveries from now on."""
        if deliveries:
            self.heartbeat.hold(deliveries, server_now_ms)

    def letting_go(self, items: Sequence[Release]) -> Settle:
        """The request that releases the deliveries that a loop received on a lost connection."""
        return PreparedSettle(items, self.heartbeat).request()

    # Attempts and their time limits

    def attempts(
        self,
        request: Request[Any],
        wait_ms: int = 0,
        *,
        is_numbered: bool = False,
        ends_ms: int | None = None,
    ) -> Attempts:
        return Attempts(
            request.verb_name,
            self._patience(wait_ms, ends_ms),
            self._outage,
            repeatable=repeatable(request) and not (is_numbered and isinstance(request, Claim)),
            is_numbered=is_numbered,
        )

    def attempts_to_greet(self) -> Attempts:
        return Attempts("connect", self._patience(), self._outage, repeatable=True)

    def attempts_to_give_back(self) -> Attempts:
        return Attempts("settle", self._closing_patience(), self._outage, repeatable=True)

    def closing_s(self) -> float:
        """How long the end of a loop may wait for the server."""
        return self._closing_patience().left_ms() / 1000

    def outage_is_over(self) -> None:
        self._outage.over()

    def _patience(self, wait_ms: int = 0, ends_ms: int | None = None) -> Patience:
        if self._closing_ends_ms is not None:
            return self._closing_patience()
        return Patience(
            self._pauses, self.options.retry_for_ms, self._ends_ms(wait_ms) if ends_ms is None else ends_ms
        )

    def _ends_ms(self, wait_ms: int = 0) -> int:
        """The latest end of a call that begins now."""
        options = self.options
        return self.clock.monotonic_ms() + wait_ms + options.timeout_ms + options.retry_for_ms

    def _closing_patience(self) -> Patience:
        ends_ms = self._closing_ends_ms or self.clock.monotonic_ms() + self._closing_ms()
        return Patience(self._pauses, 0, ends_ms)

    def _closing_ms(self) -> int:
        return min(CLOSING_MS, self.options.timeout_ms + self.options.retry_for_ms)
