"""Many small calls, few requests: what comes while a request is under way goes together in the next one.

There is no timer and no thread in between. A caller that finds nothing under way sends its own at once, on
its own thread; the others queue, and when the answer is there the first of them takes everything that is
queued. So a lone caller pays nothing, and a crowd pays a fraction. What is queued needs no bound of its own:
whoever queued it waits for its answer.

Every call has its own deadline from the moment it is made. A request gets the deadline of the caller whose
thread sends it. A caller that has queued for a while has little time left, and calls that came later would
share that: so a thread of the crew sends the request instead, with the latest deadline of all its calls, and
each caller waits until its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

from fairlead.client.crew import Crew
from fairlead.clock import Clock
from fairlead.errors import (
    AnswerLost,
    ClientClosed,
    ClientForked,
    QueueFull,
    Rejected,
    ServerUnreachable,
    TooManyLanes,
    UserCodeError,
)

MOST_ITEMS = 10_000
MOST_BYTES = 16 * 1024 * 1024

#: A caller that has queued for longer does not send the next request itself.
_LONG_QUEUED_MS = 100
#: How much later than its deadline a caller leaves a request under way: the request itself knows better why
#: it failed.
_GRACE_MS = 100

#: One call's own fault, and nothing was carried out. Anything else, such as a full disk, is everybody's.
_ONES_OWN = (Rejected, UserCodeError, QueueFull, TooManyLanes)
_EVERYBODYS = (ClientClosed, ClientForked)


class Work(Protocol):
    """One call: its items stay together and in order."""

    @property
    def items(self) -> int: ...

    @property
    def bytes(self) -> int: ...


class Deadlines(Protocol):
    """The part of `Core` that is needed here."""

    clock: Clock

    def deadline_ms(self) -> int:
        """When a call that begins now must be over."""
        ...

    def unreachable(self, what: str) -> ServerUnreachable: ...


W = TypeVar("W", bound=Work)
R = TypeVar("R")


class Gatherer(Generic[W, R]):
    """`send` carries out several calls in one request, all or none, until a deadline, and gives a result for
    each.

    One request at a time, so calls take effect in the order they were made. When a request is refused, it is
    halved until the guilty call is alone: only that one gets the error.
    """

    def __init__(
        self, send: Callable[[Sequence[W], int], Sequence[R]], crew: Crew, name: str, deadlines: Deadlines
    ) -> None:
        self._send = send
        self._crew = crew
        self._name = name
        self._deadlines = deadlines
        self._lock = threading.Lock()
        self._queue: deque[_Call[W, R]] = deque()
        self._under_way = False

    def call(self, work: W) -> R:
        """Returns when the call was answered; raises its own error only."""
        began_ms = self._deadlines.clock.monotonic_ms()
        call: _Call[W, R] = _Call(work, self._deadlines.deadline_ms())
        if self._join(call):
            self._lead(min)
        elif self._wait_for_turn(call):
            if self._deadlines.clock.monotonic_ms() - began_ms < _LONG_QUEUED_MS:
                self._lead(min)
            else:
                call.leads = False
                self._lead_elsewhere()
                self._wait_for_turn(call)
        return call.outcome()

    def submit(self, work: W) -> Future[R]:
        """For callers that have no thread to wait with. Cancelled before its request is made, it is not sent.

        The caller waits for `left_s` at most, and then raises `late`.
        """
        future: Future[R] = Future()
        if self._join(_Call(work, self._deadlines.deadline_ms(), future)):
            self._lead_elsewhere()
        return future

    def _join(self, call: _Call[W, R]) -> bool:
        """True: nothing is under way, so the caller leads."""
        with self._lock:
            self._queue.append(call)
            lead = not self._under_way
            self._under_way = True
        return lead

    def _wait_for_turn(self, call: _Call[W, R]) -> bool:
        """Until it is finished (False), or must lead (True)."""
        try:
            while not call.wait(self.left_s(call.ends_ms)):
                if self.left_s(call.ends_ms) == 0:
                    raise _TimeIsUp
            return call.leads
        except BaseException as left:
            # Whoever hands over to this call would hand over to nobody.
            with self._lock:
                queued = call in self._queue
                if queued:
                    self._queue.remove(call)
            if call.leads:
                self._hand_over()
            if isinstance(left, _TimeIsUp):
                raise self.late(sent=not queued) from None
            raise

    def left_s(self, ends_ms: int | None = None) -> float:
        """How long a call waits from now on, by default one that begins now."""
        if ends_ms is None:
            ends_ms = self._deadlines.deadline_ms()
        return max(0, ends_ms + _GRACE_MS - self._deadlines.clock.monotonic_ms()) / 1000

    def late(self, *, sent: bool) -> Exception:
        return (
            AnswerLost(self._name)
            if sent
            else self._deadlines.unreachable("no answer in time to what was sent before")
        )

    def _lead(self, choose: Callable[[list[int]], int]) -> None:
        """`choose` takes the deadline of the request from those of its calls."""
        calls: list[_Call[W, R]] = []
        try:
            calls = self._take()
            if calls:
                self._carry_out(calls, choose([call.ends_ms for call in calls]))
        finally:
            # First the next request, then the news: the network must not wait for threads to wake up.
            self._hand_over()
            for call in calls:
                call.finish(self._name)

    def _take(self) -> list[_Call[W, R]]:
        taken: list[_Call[W, R]] = []
        items = size = 0
        with self._lock:
            while self._queue:
                work = self._queue[0].work
                items, size = items + work.items, size + work.bytes
                if taken and (items > MOST_ITEMS or size > MOST_BYTES):
                    break
                call = self._queue.popleft()
                if call.is_wanted():
                    taken.append(call)
        return taken

    def _hand_over(self) -> None:
        with self._lock:
            if not self._queue:
                self._under_way = False
                return
            following = self._queue[0]
            if following.future is None:
                following.lead()
                return
        self._lead_elsewhere()

    def _lead_elsewhere(self) -> None:
        try:
            self._crew.submit(self._lead, max)
        except ClientClosed:
            # Here then: it tells every call that is queued that the client is closed.
            self._lead(max)

    def _carry_out(self, calls: list[_Call[W, R]], ends_ms: int) -> None:
        try:
            results = self._send([call.work for call in calls], ends_ms)
        except Exception as error:
            if len(calls) > 1 and isinstance(error, _ONES_OWN) and not isinstance(error, _EVERYBODYS):
                middle = len(calls) // 2
                self._carry_out(calls[:middle], ends_ms)
                self._carry_out(calls[middle:], ends_ms)
                return
            for call in calls:
                call.error = error
        else:
            for call, result in zip(calls, results, strict=True):
                call.result = result
                call.answered = True


class _TimeIsUp(Exception):
    """The deadline of a call came before its answer."""


class _Call(Generic[W, R]):
    __slots__ = ("_gate", "answered", "ends_ms", "error", "future", "leads", "result", "work")

    def __init__(self, work: W, ends_ms: int, future: Future[R] | None = None) -> None:
        self.work = work
        self.ends_ms = ends_ms
        self.future = future
        self.result: Any = None
        self.error: Exception | None = None
        self.answered = False
        self.leads = False
        # A bare lock wakes a thread several times faster than an Event.
        self._gate = threading.Lock()
        self._gate.acquire()

    def wait(self, timeout_s: float) -> bool:
        """True when it is finished, or must lead; False when the time was over before."""
        return self._gate.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))

    def lead(self) -> None:
        self.leads = True
        self._gate.release()

    def is_wanted(self) -> bool:
        return self.future is None or self.future.set_running_or_notify_cancel()

    def finish(self, name: str) -> None:
        if not self.answered and self.error is None:
            # The thread that carried it was interrupted on the way.
            self.error = AnswerLost(name)
        if self.future is None:
            if not self.leads:
                self._gate.release()
        elif self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)

    def outcome(self) -> R:
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[no-any-return]
