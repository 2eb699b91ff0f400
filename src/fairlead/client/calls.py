"""The preparation of requests and the completion of answers, for both clients. Without I/O."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from fairlead.client.heartbeat import Heartbeat
from fairlead.client.settling import SettleCall
from fairlead.client.traces import Traces
from fairlead.model.delivery import Delivery
from fairlead.model.settle import SettleResult, Start
from fairlead.request import Request
from fairlead.verbs.claim import Claim
from fairlead.verbs.consumers import ConsumersClaim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.exchange import Exchange, check_requests
from fairlead.verbs.sessions import check_accepted, session_rule
from fairlead.verbs.settle import Settle
from fairlead.wire.numbered import Numbered
from fairlead.wire.settlement_rows import EXTEND

#: The longest wait of one request. A long wait is several requests, so that a silently dead connection is
#: noticed after one of them.
POLL_MS = 20_000
#: The pause after a wait that ended too early: a server that is about to stop ends all waits at once.
SHORT_POLL_MS = 25
#: A larger command has a connection of its own, because on a shared one it would delay other commands.
MAX_SHARED_BYTES = 1024 * 1024


class Tokens:
    """Tokens for claims: a claim that is repeated after a lost answer returns the same deliveries.
    Thread-safe.
    """

    def __init__(self) -> None:
        self._client = secrets.token_hex(8)
        self._numbers = itertools.count(1)

    def next(self) -> str:
        return f"{self._client}{next(self._numbers):x}"


def travels_alone(request: Request[Any], command: bytes) -> bool:
    """Whether the request needs a connection of its own: it waits, or takes so long that requests behind it
    would wait.
    """
    kind = type(request)
    is_long = kind.slow or kind.audited or kind.shows_messages
    return is_long or len(command) > MAX_SHARED_BYTES or (kind.waits and bool(request.patience_ms()))


def repeatable(request: Request[Any]) -> bool:
    """Whether the request may be repeated. A claim of this client has a token. Extensions and starts have the
    same result however often they are carried out.
    """
    kind = type(request)
    if kind is Settle:
        actions = [getattr(item, "action", EXTEND) for item in request.items]  # type: ignore[attr-defined]
        return min(actions, default=EXTEND) >= EXTEND
    return kind is Claim or request.is_repeatable()


def named(request: Claim, consumer: str, tokens: Tokens, place: Numbered | None) -> Claim:
    """The claim with its consumer, and with a token. In a session the claim needs no token, because its
    number identifies it.
    """
    return replace(
        request,
        consumer=consumer if request.consumer == "" else request.consumer,
        token=tokens.next() if request.token is None and place is None else request.token,
    )


def check_bulk_once(request: Request[Any]) -> None:
    """Check that a session accepts this bulk verb. Bulk verbs have many steps; repeatable ones run without a
    number.
    """
    check_accepted(request, session_rule(type(request), is_one_transaction=False))


def with_wait(request: Request[Any], left_ms: int) -> Request[Any]:
    return replace(request, wait=f"{left_ms}ms" if left_ms > 0 else None)


def is_empty(answer: Any) -> bool:
    return not (answer if isinstance(answer, list) else answer.count)


def is_waiting(request: Request[Any]) -> bool:
    return isinstance(request, (Claim, ConsumersClaim)) and bool(request.patience_ms())


def traced(request: Request[Any], messages: Sequence[Any]) -> Request[Any]:
    """The enqueue with messages that have the current span in their headers."""
    if isinstance(request, Enqueue):
        (message,) = messages
        return replace(request, headers=message.headers)
    return replace(request, messages=messages)


class PreparedExchange:
    """An exchange and its effects on the held leases."""

    def __init__(self, request: Exchange, heartbeat: Heartbeat, traces: Traces, consumer: str) -> None:
        requests = check_requests(request.requests)
        self._heartbeat = heartbeat
        self._settlings: dict[int, SettleCall] = {}
        parts: list[Any] = []
        for at, one in enumerate(requests):
            if isinstance(one, Settle):
                settling = self._settlings[at] = SettleCall(heartbeat, one.items)
                parts.append(Settle(settling.rows))  # type: ignore[arg-type]  # rows encode as what they are of
            elif isinstance(one, Claim):
                parts.append(replace(one, consumer=consumer if one.consumer == "" else one.consumer))
            elif isinstance(one, (Enqueue, EnqueueMany)):
                messages = [one.message()] if isinstance(one, Enqueue) else one.messages
                ((_, carried),) = traces.carried([(one.queue, messages)])
                parts.append(one if carried is messages else traced(one, carried))
        self.request = Exchange(parts)

    def undo(self) -> None:
        for settling in self._settlings.values():
            settling.undo()

    def finish(self, answers: list[Any], server_now_ms: int) -> list[Any]:
        parts: list[Any] = []
        for at, answer in enumerate(answers):
            settling = self._settlings.get(at)
            if settling is not None:
                answer = settling.finish((answer, server_now_ms))
            elif isinstance(answer, list) and answer and isinstance(answer[0], Delivery):
                self._heartbeat.hold(answer, server_now_ms)
            parts.append(answer)
        return parts


class PreparedSettle:
    """A settle, and the starts of loops that travel with it; see `prefetch`."""

    def __init__(self, items: Sequence[Any], heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        self._settling = SettleCall(heartbeat, items)
        self._starting: SettleCall | None = None
        self.rows = self._settling.rows

    def take_along(self, starts: Sequence[Start]) -> None:
        if starts:
            self._starting = SettleCall(self._heartbeat, starts)

    def request(self) -> Settle:
        rows = self.rows if self._starting is None else [*self.rows, *self._starting.rows]
        return Settle(rows)  # type: ignore[arg-type]  # rows encode as what they are of

    def undo(self) -> None:
        self._settling.undo()

    def finish(
        self, results: Sequence[SettleResult], server_now_ms: int
    ) -> tuple[list[SettleResult], list[SettleResult]]:
        """The results of the items, and those of the starts."""
        if self._starting is None:
            return self._settling.finish((results, server_now_ms)), []
        own = len(self.rows)
        started = self._starting.finish((results[own:], server_now_ms))
        return self._settling.finish((results[:own], server_now_ms)), started
