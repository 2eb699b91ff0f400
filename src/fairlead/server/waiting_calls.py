"""Claims of a door that wait for messages without a thread: entries that listen in the engine."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fairlead.engine.broker import Broker
from fairlead.engine.waiting import Listening, Waiter
from fairlead.middleware.rights import Rights
from fairlead.verbs.consumers import ConsumersClaim

if TYPE_CHECKING:
    from fairlead.server.turn import Call


#: The due time of an entry that is tried only when it is woken.
NEVER_MS = 1 << 62


class WaitingCall(Waiter):
    """One waiting claim."""

    __slots__ = ("call", "deadline_ms", "due_ms", "is_running", "listening", "nothing", "number", "owner")

    def __init__(self, owner: WaitingCalls, call: Call, consumer: str, deadline_ms: int, number: int) -> None:
        super().__init__(consumer)
        self.owner = owner
        self.call = call
        #: Its answer while it has found nothing.
        self.nothing = call.answer
        self.deadline_ms = deadline_ms
        #: When to try it although it was not woken.
        self.due_ms = -1
        #: Its position in the order of arrival.
        self.number = number
        #: Whether a thread of the pool tries it now.
        self.is_running = False
        self.listening: Listening

    @property
    def is_over(self) -> bool:
        return self.call.waits is not self

    def wake(self) -> None:
        if not self.woken:
            self.woken = True
            if not self.is_running:
                self.owner.tell(self)


class WaitingCalls:
    """Used by one thread and under the engine's lock, unless a method says otherwise. The thread that wakes a
    claim calls `on_woken`.
    """

    def __init__(self, broker: Broker, on_woken: Callable[[], None]) -> None:
        self._broker = broker
        self._engine = broker.engine
        self._on_woken = on_woken
        self._number = 0
        self._woken: deque[WaitingCall] = deque()
        self._times: list[tuple[int, int, WaitingCall]] = []
        #: Claims that may be sent again, by an identity that is the same for all copies.
        self._copies: dict[object, list[WaitingCall]] = {}
        self.count = 0

    def has_woken(self) -> bool:
        """Needs no lock."""
        return bool(self.count and self._woken)

    def next_ms(self) -> int | None:
        """When to try a claim that was not woken, in steady time. Needs no lock."""
        while self._times and not _is_current(*self._times[0]):
            heapq.heappop(self._times)
        return self._times[0][0] if self._times else None

    @property
    def must_end(self) -> bool:
        """Whether the server is stopping: later messages stay for others."""
        return self._engine.waits_over or self._engine.closed

    def begin(self, call: Call) -> WaitingCall:
        request: Any = call.request
        if call.waits_for_ever:
            deadline_ms = NEVER_MS
        else:
            deadline_ms = self._engine.clock.monotonic_ms() + (request.patience_ms() or 0)
        self._number += 1
        waits = WaitingCall(self, call, self._consumer_of(call), deadline_ms, self._number)
        waits.listening = Listening(self._engine, request.queues(), waits)
        self._keep(waits)
        return waits

    def listen(self, waits: WaitingCall) -> None:
        """The claim has found nothing: let it sleep until it is woken."""
        token_ms = waits.listening.listen()
        due_ms = waits.deadline_ms
        if token_ms is not None:
            due_ms = min(due_ms, self._engine.clock.monotonic_ms() + token_ms)
        if due_ms != waits.due_ms:
            waits.due_ms = due_ms
            if due_ms < NEVER_MS:
                heapq.heappush(self._times, (due_ms, waits.number, waits))

    def end(self, call: Call) -> None:
        """Calling it twice is allowed."""
        waits = call.waits
        if waits is not None:
            waits.listening.leave()
            call.waits = None
            self.count -= 1
            identity = _identity_of(call)
            if identity is not None:
                copies = self._copies[identity]
                copies.remove(waits)
                if not copies:
                    del self._copies[identity]

    def wake_copies(self, call: Call) -> None:
        """The claim has got messages. If it was sent twice because a connection broke, the copies get the
        same messages: it is unknown which connection is dead.
        """
        for waits in self._copies.get(_identity_of(call), ()) if self._copies else ():
            if waits.call is not call and not waits.is_running:
                self.try_soon(waits)

    def wake_next(self, waits: WaitingCall) -> None:
        """It is over, and what it took is there again: the next claim must not sleep beside a message."""
        memory = self._engine.memory
        for name in waits.call.request.queues():
            if name in memory.by_name:
                self._engine.waiters.wake(memory.by_name[name].record.queue_id, 1)

    def resume(self, waits: WaitingCall) -> None:
        """The result of the claim was undone: it continues to wait, and is tried once more."""
        if waits.is_over:
            self._keep(waits)
        else:
            waits.listening.listen()
        self.try_soon(waits)

    def try_soon(self, waits: WaitingCall) -> None:
        waits.woken = True
        self._woken.append(waits)

    def tell(self, waits: WaitingCall) -> None:
        """In any thread."""
        self._woken.append(waits)
        self._on_woken()

    def take_woken(self) -> list[WaitingCall]:
        """In the order of their arrival. Needs no lock."""
        woken: dict[int, WaitingCall] = {}
        while self._woken:
            waits = self._woken.popleft()
            if not waits.is_over and not waits.is_running:
                woken[waits.number] = waits
        return [woken[number] for number in sorted(woken)]

    def take_late(self) -> list[Call]:
        """Claims whose time is over; others that must be tried count as woken. Needs no lock."""
        late: list[Call] = []
        now_ms = self._engine.clock.monotonic_ms() if self._times else 0
        while self._times and self._times[0][0] <= now_ms:
            waits = self._times[0][2]
            if not _is_current(*heapq.heappop(self._times)):
                continue
            # A claim that was resumed may be in it twice.
            waits.due_ms = -1
            if waits.deadline_ms <= now_ms and not waits.is_running and not waits.woken:
                late.append(waits.call)
            else:
                self.try_soon(waits)
        return late

    def find_first(self, queue_id: int) -> WaitingCall | None:
        """The longest waiting claim for a queue, if it is one of these and may join a turn."""
        first = next(iter(self._engine.waiters.of(queue_id)), None)
        is_ours = isinstance(first, WaitingCall) and first.owner is self and first.call.joins
        return first if is_ours else None  # type: ignore[return-value]

    def _keep(self, waits: WaitingCall) -> None:
        waits.call.waits = waits
        identity = _identity_of(waits.call)
        if identity is not None:
            self._copies.setdefault(identity, []).append(waits)
        waits.due_ms = -1
        self.count += 1
        self.listen(waits)

    def _consumer_of(self, call: Call) -> str:
        """The consumer's name in the engine."""
        request: Any = call.request
        if isinstance(request, ConsumersClaim):
            return request.name
        return Rights(self._broker, call.caller).scoped_consumer(request.consumer)


def _identity_of(call: Call) -> object:
    """Equal for a claim that is sent again; None: it will not be sent again."""
    if call.caller.session is not None:
        return call.caller.claim_token
    token = getattr(call.request, "token", None)
    return None if token is None else (call.caller.key_id, token)


def _is_current(due_ms: int, number: int, waits: WaitingCall) -> bool:
    return not waits.is_over and waits.due_ms == due_ms
