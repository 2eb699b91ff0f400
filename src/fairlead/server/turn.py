"""Turns: the requests that arrived at a door since the last look, carried out as one transaction with one
write.

`Turns` knows no socket, thread or loop. A door adds calls and runs turns:

    turns.add(call)
    done = turns.run()           # one turn: some calls end, some wait, some stay for the next turn
    engine.confirm(done.commit)  # before durable answers are sent; None: nothing to confirm

In a turn each request passes the layers and is refused alone if it fails its check. Then waiting claims are
tried, in the order of their arrival, in the same transaction: an enqueue and the delivery that it leads to
are one write. If the transaction is lost, every call that joined it gets `Unavailable`, and claims that
waited before continue to wait. Waiting claims listen in the engine, so that commits of other doors, timers
and tokens wake them too. The same calls at the same times on the same store lead to the same answers, so a
test or a simulation can drive turns without a socket.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from fairlead.engine.broker import Broker
from fairlead.engine.transaction import Transaction
from fairlead.engine.turns import runs_alone
from fairlead.errors import FairleadError
from fairlead.middleware.stack import Layers
from fairlead.model.consumer import NumberedClaim
from fairlead.request import Caller, Handler, Request
from fairlead.server.waiting_calls import WaitingCall, WaitingCalls
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.settle import Nack, Settle

_log = logging.getLogger("fairlead.turn")

#: Requests for which the hook of a queue may be called.
_ASKS_HOOKS = (Enqueue, EnqueueMany, Exchange, Nack, Settle)


class Call:
    """A request and, once the call has ended, its answer or its error. `joins`: it may join a turn; the
    others are for threads of a pool, see `run_alone`.
    """

    __slots__ = ("answer", "caller", "error", "joins", "may_wait", "request", "waits")

    #: Whether a waiting claim never times out.
    waits_for_ever = False

    def __init__(self, request: Request[Any], caller: Caller) -> None:
        self.request = request
        self.caller = caller
        self.joins = True
        #: Whether its caller is still there, so that a claim may wait.
        self.may_wait = True
        self.answer: Any = None
        self.error: BaseException | None = None
        #: Set while it is a claim that waits for messages.
        self.waits: WaitingCall | None = None

    def carry_out(self, handle: Handler) -> Any:
        """In a turn; its result is the answer."""
        return handle(self.request, self.caller)

    @property
    def is_audited(self) -> bool:
        """Whether the call is recorded, if its verb is; for calls that run alone."""
        return True

    def take_read(self, answer: Any) -> None:
        """Set the answer with all payloads, without deliveries that other callers have ended meanwhile."""
        self.answer = answer

    @property
    def is_durable(self) -> bool:
        """Whether its answer must not be sent before it is confirmed."""
        return self.error is None and self.request.durable


class Turned(NamedTuple):
    #: Calls that have ended, in the order in which they must be answered: first claims that waited, whose
    #: consumers are idle, then the others, in the order in which they were carried out.
    over: list[Call]
    #: Woken claims that must run alone once more.
    again: list[Call]
    #: The commit that durable answers wait for.
    commit: int | None


class Turns:
    """Used by one thread, except for `run_alone`. The thread that wakes a waiting claim calls `on_work`,
    under the engine's lock.
    """

    def __init__(self, broker: Broker, layers: Layers, on_work: Callable[[], None] = lambda: None) -> None:
        self._engine = broker.engine
        self._layers = layers.around(partial(broker.do, gathered=True))
        self._alone = layers
        self._calls: deque[Call] = deque()
        self.add = self._calls.append
        self.waiting = WaitingCalls(broker, on_work)

    @property
    def has_work(self) -> bool:
        return bool(self._calls) or (self.waiting.count > 0 and self.waiting.has_woken())

    def next_ms(self) -> int | None:
        """When a turn must run although nothing has arrived, in steady time; None: never."""
        return self.waiting.next_ms() if self.waiting.count else None

    def run(self) -> Turned:
        """One turn. Calls that did not fit stay for the next one."""
        over: list[Call] = []
        again: list[Call] = []
        woken: list[WaitingCall] = []
        if self.waiting.count:
            for call in self.waiting.take_late():
                self.drop(call)
                over.append(call)
            woken = self._without_alone(self.waiting.take_woken(), over, again)
        if len(self._calls) == 1 and not woken and not self.waiting.count:
            self._carry_out(self._calls.popleft(), over)
        elif self._calls or woken:
            over += self._run_together(woken)
        return Turned(over, again, self._engine.unconfirmed())

    def stand(self, call: Call) -> None:
        """Add a waiting claim behind the others, without trying it. The next turn tries it if it may find
        something by then.
        """
        with self._engine.lock:
            waits = self.waiting.begin(call)
            if self.waiting.must_end or self.has_ready(waits.call.request.queues()):
                self.waiting.try_soon(waits)

    def has_ready(self, queues: Sequence[str]) -> bool:
        """Whether a claim may find something in these queues, or must learn that one does not exist."""
        found = [self._engine.memory.by_name.get(name) for name in queues]
        return any(queue is None or queue.counts.ready for queue in found)

    def drop(self, call: Call) -> None:
        """The call no longer waits: its time is over, or its caller is gone."""
        if call.waits is not None:
            with self._engine.lock:
                self.waiting.end(call)

    # One transaction

    def _run_together(self, woken: list[WaitingCall]) -> list[Call]:
        """The calls that have ended."""
        over: list[Call] = []
        handed_over: list[Call] = []
        arrived: list[Call] = []
        tried: list[WaitingCall] = []
        try:
            with self._engine.transaction() as tx:
                while self._calls and not tx.is_full:
                    call = self._calls.popleft()
                    arrived.append(call)
                    self._carry_out(call, over)
                self._hand_over(tx, woken, tried, handed_over)
        except FairleadError as lost:
            if not arrived and not tried:
                # The transaction has not even begun: the engine is closed, or has another owner.
                arrived, tried, woken = [*self._calls], woken, []
                self._calls.clear()
                return self._undo(lost, arrived, tried, goes_on=False)
            untried = [waits for waits in woken if waits not in tried]
            return self._undo(lost, arrived, [*tried, *untried], goes_on=bool(arrived))
        return [*handed_over, *over]

    def _undo(
        self, lost: FairleadError, arrived: list[Call], waiting: list[WaitingCall], *, goes_on: bool
    ) -> list[Call]:
        """Nothing of the transaction was written. `goes_on`: claims that waited before did not cause it."""
        with self._engine.lock:
            for waits in waiting:
                waits.call.answer, waits.call.error = waits.nothing, None
                if goes_on:
                    self.waiting.resume(waits)
                else:
                    arrived.append(waits.call)
            for call in arrived:
                self.waiting.end(call)
                call.answer, call.error = None, lost
            for waits in () if goes_on else waiting:
                self.waiting.wake_next(waits)
        return arrived

    def _carry_out(self, call: Call, over: list[Call]) -> None:
        try:
            call.answer = call.carry_out(self._layers.handle)
        except FairleadError as refused:
            call.error = refused
        except Exception as unexpected:
            if self._engine.lock.is_owned:
                # The error ends the transaction.
                raise
            call.error = _noted(unexpected, call)
        if not (call.request.waits and self._stands(call)):
            over.append(call)

    def _stands(self, call: Call) -> bool:
        """Whether a claim that was carried out waits for messages. If it got some, its copies get them too."""
        if call.error is None and not call.answer and call.request.patience_ms():
            with self._engine.lock:
                must_end = self.waiting.must_end or self._engine.was_carried_out(call.caller)
                if call.may_wait and not must_end:
                    self.waiting.begin(call)
                    return True
        elif call.answer and self.waiting.count:
            self.waiting.wake_copies(call)
        return False

    def _hand_over(
        self, tx: Transaction, woken: list[WaitingCall], tried: list[WaitingCall], over: list[Call]
    ) -> None:
        """Try the woken claims, then those that wait for queues which this turn changed. `tried` receives
        those that end.
        """
        tx.add_gathered()
        for waits in woken:
            if tx.is_full:
                self.waiting.try_soon(waits)
            elif not waits.is_over:
                self._try(waits, tried, over)
        if not self.waiting.count:
            return
        for queue_id in list(tx.memory.changes.counts):
            queue = tx.memory.by_id.get(queue_id)
            while queue is not None and queue.counts.ready and not tx.is_full:
                # Claims that wait longer elsewhere are woken after the write, and go first.
                first = self.waiting.find_first(queue_id)
                if first is None or not self._try(first, tried, over):
                    break

    def _try(self, waits: WaitingCall, tried: list[WaitingCall], over: list[Call]) -> bool:
        """Whether the claim has ended."""
        call = waits.call
        if not self.waiting.must_end:
            try:
                call.answer = call.carry_out(self._layers.handle_again)
            except FairleadError as refused:
                call.error = refused
            if call.error is None and not call.answer and not self._engine.was_carried_out(call.caller):
                self.waiting.listen(waits)
                return False
        self.waiting.end(call)
        if call.answer:
            self.waiting.wake_copies(call)
        tried.append(waits)
        over.append(call)
        return True

    # Calls that join no turn

    def joins(self, request: Request[Any]) -> bool:
        """Whether a request may join a turn. The others scan, call a hook, write to the audit, work in steps
        or are as large as a turn: a thread of their door carries them out.
        """
        kind = type(request)
        if kind.slow or kind.paged or kind.audited or kind.shows_messages:
            return False
        if self._engine.hooking.is_used and kind in _ASKS_HOOKS:
            return False
        return not runs_alone(request)

    def run_alone(self, call: Call) -> bool:
        """In any thread. False: a claim found nothing, and `wait_after` must be called."""
        request: Any = call.request
        patience_ms = request.patience_ms()
        try:
            handle = self._alone.handle if call.waits is None else self._alone.handle_again
            if not call.is_audited:
                handle = self._alone.handle_unaudited
            call.answer = handle(replace(request, wait=None) if patience_ms else request, call.caller)
        except FairleadError as refused:
            call.error = refused
        except Exception as unexpected:
            call.error = _noted(unexpected, call)
        return call.error is not None or not patience_ms or not _is_empty(call.answer)

    def wait_after(self, call: Call) -> bool:
        """A claim that ran alone has found nothing, and waits. False: it must not wait any longer, and has
        ended.
        """
        with self._engine.lock:
            waits = call.waits
            if self.waiting.must_end or not call.may_wait or self._engine.was_carried_out(call.caller):
                self.waiting.end(call)
            elif waits is None:
                # Messages may have arrived since it looked.
                self.waiting.try_soon(self.waiting.begin(call))
            elif waits.deadline_ms <= self._engine.clock.monotonic_ms():
                self.waiting.end(call)
            else:
                waits.is_running = False
                if waits.woken:
                    self.waiting.try_soon(waits)
                else:
                    self.waiting.listen(waits)
            return call.waits is not None

    def _without_alone(
        self, woken: list[WaitingCall], over: list[Call], again: list[Call]
    ) -> list[WaitingCall]:
        """The claims that may join this turn."""
        for waits in woken:
            if waits.call.joins:
                continue
            if self.waiting.must_end:
                self.drop(waits.call)
                over.append(waits.call)
            else:
                # If it is woken from here on, it runs once more.
                waits.is_running, waits.woken = True, False
                again.append(waits.call)
        return [waits for waits in woken if waits.call.joins]


def _noted(unexpected: Exception, call: Call) -> Exception:
    _log.error(
        "a call failed in a way it should not",
        exc_info=unexpected,
        extra={"fields": {"verb": call.request.verb_name}},
    )
    return unexpected


def _is_empty(answer: Any) -> bool:
    return answer.count == 0 if isinstance(answer, NumberedClaim) else not answer
