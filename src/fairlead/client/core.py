"""The blocking core: one request with all its attempts, the held leases, and the close. Thread-safe."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from fairlead.client.attempts import TROUBLES, Attempts
from fairlead.client.bulk import BULK, FlightSide
from fairlead.client.calls import (
    POLL_MS,
    SHORT_POLL_MS,
    PreparedExchange,
    PreparedSettle,
    check_bulk_once,
    is_empty,
    is_waiting,
    named,
    repeatable,
    traced,
    travels_alone,
    with_wait,
)
from fairlead.client.commands import PING, answer_of, command_of
from fairlead.client.connections import BlockingConnections
from fairlead.client.core_state import CoreState
from fairlead.client.heartbeat import Answers, Heartbeat
from fairlead.client.identity import Identity
from fairlead.client.lifetimes import watch
from fairlead.client.options import Options
from fairlead.client.outage import ConnectionBroken
from fairlead.client.prefetch import finish_starts, items_of, undo_starts
from fairlead.client.session import ClientSession
from fairlead.client.traces import Traces
from fairlead.clock import Clock, SystemClock
from fairlead.errors import (
    ClientClosed,
    ClientForked,
    FairleadError,
    RequestExpired,
    ServerUnreachable,
    SessionExpired,
    StoreFull,
)
from fairlead.model.delivery import Delivery
from fairlead.model.settle import Extend, Release, SettleResult
from fairlead.request import Answer, Request
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.sessions import CloseSession, OpenSession
from fairlead.verbs.settle import Goodbye, Settle
from fairlead.wire.numbered import Numbered

if TYPE_CHECKING:
    from fairlead.client.consume import Consumption


class Core(CoreState):
    """The state that the client and its loops share: connections, the heartbeat, and the requests with all
    their attempts.
    """

    def __init__(
        self, options: Options, identity: Identity, traces: Traces, clock: Clock | None = None
    ) -> None:
        super().__init__(options, identity, traces, clock or SystemClock())
        self.connections = BlockingConnections(identity, options.timeout_ms / 1000)
        self._opening = threading.Lock()
        self.loops: weakref.WeakSet[Consumption] = weakref.WeakSet()
        self.heartbeat = Heartbeat(self._send_extends, self.clock, options.heartbeat_cap_ms)
        self.flight = FlightSide(options, identity, self.connections, traces)
        self._close_lock = threading.Lock()
        self._senders: dict[type[Request[Any]], Callable[[Any, Numbered | None], Any]] = {
            Enqueue: self._enqueue,
            EnqueueMany: self._enqueue,
            Settle: self._settle,
            Claim: self._claim,
            Exchange: self._exchange,
        }
        watch(self)

    def do(self, request: Request[Answer], place: Numbered | None = None) -> Answer:
        """Carry out the request. `place`: in a session that the caller manages."""
        self.check()
        if type(request) in BULK:
            if place is not None:
                check_bulk_once(request)
            return cast(Answer, self.flight.do(request))
        send = self._senders.get(type(request))
        if send is not None:
            return cast(Answer, send(request, place))
        if is_waiting(request):
            return cast(Answer, self._ask_waiting(request, place)[0])
        return self.ask(request, place=place)[0]

    def close(self, *, goodbye: bool = False) -> None:
        with self._close_lock:
            if not self.begin_close():
                return
        try:
            for loop in list(self.loops):
                loop.close()
            if goodbye:
                self.do(Goodbye(self.options.consumer))
            self._close_sessions()
        finally:
            self._unusable = ClientClosed
            self._pauses.close()
            self.heartbeat.close()
            self.connections.close()
            self.flight.close()

    def _close_sessions(self) -> None:
        """Close the sessions if the server answers. The others expire."""
        shared = self.connections.shared
        commands = [command_of(CloseSession(name)) for name in self._sessions.end()]
        for pending in [shared.queue(command, self.closing_s()) for command in commands]:
            with suppress(ConnectionBroken, FairleadError):
                shared.wait(pending)

    def join(self) -> None:
        """Nothing remains to wait for after `close`."""

    def disown(self) -> None:
        """Make the core unusable in a forked child: the connections belong to the parent, and its locks may
        never be released.
        """
        self._unusable = ClientForked

    # Verbs with preparation

    def _settle(self, request: Settle, place: Numbered | None) -> list[SettleResult]:
        settling = PreparedSettle(request.items, self.heartbeat)
        # The caller may repeat a numbered settle, and the repeat must be the same request: so no starts
        # travel with it.
        starts = self.handed_out.starts_for(settling.rows) if place is None else []
        settling.take_along(items_of(starts))
        if not settling.rows:
            return settling.finish([], 0)[0]
        try:
            results, now_ms = self._ask_once(settling.request(), place)
        except BaseException:
            settling.undo()
            undo_starts(starts)
            raise
        settled, started = settling.finish(results, now_ms)
        finish_starts(starts, started)
        return settled

    def _claim(self, request: Claim, place: Numbered | None) -> list[Delivery]:
        """The claimed deliveries. A repeat after a lost answer returns the same ones, because the claim has a
        token or a number.
        """
        claim = named(request, self.options.consumer, self.tokens, place)
        found, now_ms = self._ask_waiting(claim, place) if is_waiting(claim) else self.ask(claim, place=place)
        self.hold(found, now_ms)
        return found

    def _exchange(self, request: Exchange, place: Numbered | None) -> list[Any]:
        exchange = PreparedExchange(request, self.heartbeat, self.traces, self.options.consumer)
        try:
            answers, now_ms = self._ask_once(exchange.request, place)
        except BaseException:
            exchange.undo()
            raise
        return exchange.finish(answers, now_ms)

    def _enqueue(self, request: Enqueue | EnqueueMany, place: Numbered | None) -> Any:
        if not self.traces.are_on:
            return self._ask_once(request, place)[0]
        messages = [request.message()] if isinstance(request, Enqueue) else request.messages
        with self.traces.enqueuing(request.queue, messages) as carried:
            return self._ask_once(traced(request, carried), place)[0]

    def _send_extends(self, extends: Sequence[Extend]) -> Answers:
        """One attempt. The heartbeat itself tries again."""
        request = Settle(extends)
        shared = self.connections.shared
        pending = shared.queue(command_of(request), self.options.timeout_ms / 1000)

        def answers() -> tuple[Sequence[SettleResult], int]:
            try:
                return answer_of(request, shared.wait(pending))
            except ConnectionBroken as broken:
                self.connections.check(broken)
                raise ServerUnreachable(self._outage.address, str(broken)) from None

        return answers

    # One request

    def greet(self) -> None:
        self._call(PING, self.attempts_to_greet())

    def _ask_once(self, request: Request[Any], place: Numbered | None) -> tuple[Any, int]:
        """Ask in a session of this client, unless the caller has one, so that the request may be repeated
        after a lost answer.

        If the disk has no room for a session, the request is sent without a number, so that requests that
        free space still work.
        """
        if place is not None or repeatable(request):
            return self.ask(request, place=place)
        ends_ms = self._ends_ms()
        own = self._sessions.take() or self._find_session(ends_ms)
        try:
            try:
                return self.ask(request, place=own, ends_ms=ends_ms)
            except SessionExpired:
                # The only copy that was sent met the expired session, so nothing was carried out.
                if own is None:
                    raise
                self._sessions.forget(own)
            own = self._open_session(ends_ms)
            return self.ask(request, place=own, ends_ms=ends_ms)
        finally:
            self._sessions.give_back(own)

    def _find_session(self, ends_ms: int) -> Numbered | None:
        """A place in another session. One call at a time opens a session; the others share open ones, or wait
        for the new one.
        """
        if self._opening.locked() and (place := self._sessions.take(is_opening=True)):
            return place
        left_s = max(0, ends_ms - self.clock.monotonic_ms()) / 1000
        if not self._opening.acquire(timeout=min(left_s, threading.TIMEOUT_MAX)):
            return self._open_session(ends_ms)
        try:
            return self._sessions.take(is_opening=True) or self._open_session(ends_ms)
        finally:
            self._opening.release()

    def _open_session(self, ends_ms: int) -> Numbered | None:
        session = ClientSession()
        try:
            self.ask(OpenSession(session.name), ends_ms=ends_ms)
        except StoreFull:
            return None
        return self._sessions.add(session)

    def ask(
        self,
        request: Request[Answer],
        wait_ms: int = 0,
        *,
        place: Numbered | None = None,
        ends_ms: int | None = None,
    ) -> tuple[Answer, int]:
        """The answer, and the server's clock if the answer has leases."""
        command = command_of(request, place)
        attempts = self.attempts(request, wait_ms, is_numbered=place is not None, ends_ms=ends_ms)
        alone = travels_alone(request, command)
        while True:
            reply = self._call(command, attempts, wait_ms=wait_ms, alone=alone)
            try:
                return answer_of(request, reply)
            except (SessionExpired, RequestExpired) as expired:
                attempts.check_forgotten(expired)
                raise
            except TROUBLES as trouble:
                self.pause(attempts, trouble)

    def _ask_waiting(self, request: Request[Any], place: Numbered | None) -> tuple[Any, int]:
        """Split a long wait into several requests. Returns the first answer with deliveries, or the last."""
        until_ms = self.clock.monotonic_ms() + (request.patience_ms() or 0)
        while True:
            began_ms = self.clock.monotonic_ms()
            left_ms = min(max(0, until_ms - began_ms), POLL_MS)
            answer, now_ms = self.ask(with_wait(request, left_ms), left_ms, place=place)
            ended_ms = self.clock.monotonic_ms()
            if not is_empty(answer) or ended_ms >= until_ms:
                return answer, now_ms
            if ended_ms - began_ms < SHORT_POLL_MS:
                self._pauses.wait(SHORT_POLL_MS)

    def _call(self, command: bytes, attempts: Attempts, *, wait_ms: int = 0, alone: bool = False) -> Any:
        """The reply, after as many attempts as needed."""
        send = self.connections.call_alone if alone else self.connections.shared.call
        most_ms = wait_ms + self.options.timeout_ms
        while True:
            self.check()
            try:
                reply = send(command, attempts.within_ms(most_ms) / 1000)
            except ConnectionBroken as broken:
                self._sessions.has_copies |= broken.sent
                self.connections.check(broken)
                self.pause(attempts, broken)
            else:
                self._outage.over()
                return reply

    def pause(self, attempts: Attempts, trouble: Exception) -> None:
        self._pauses.wait(attempts.pause_ms(trouble))

    def give_back(self, items: Sequence[Release]) -> None:
        """Release deliveries of a closed loop. If the release fails, their leases expire, which has the same
        effect for deliveries that were never started.
        """
        settling = PreparedSettle(items, self.heartbeat)
        with suppress(FairleadError):
            self._call(command_of(settling.request()), self.attempts_to_give_back())
