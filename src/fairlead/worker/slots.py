"""A slot runs steps, one call at a time, of a single item or of a batch. It is given several calls and
answers each.

Calls that a slot was given and has not begun can be taken back at any time. So a worker may give out more
than one call at a time without knowing how long they take.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NamedTuple, Protocol

from fairlead.model.failure import FailureReason
from fairlead.worker.items import Work
from fairlead.worker.plan import PipelinePlan
from fairlead.worker.protocol import BatchCall, BatchDone, CallDone, CallFailed, StepCall
from fairlead.worker.step_runner import StepRunner


class CallAnswered(NamedTuple):
    slot: Slot
    work: Work
    result: CallDone | CallFailed | BatchDone


class SlotDied(NamedTuple):
    """`begun`: the call under way when the slot died, or None. `others`: pending calls that had not begun."""

    slot: Slot
    begun: Work | None
    others: list[Work]
    how: str


class StepsNotLoaded(NamedTuple):
    """A slot could not load `step`; `what` says why."""

    slot: Slot
    step: str
    what: str


SlotEvent = CallAnswered | SlotDied | StepsNotLoaded


class Slot(Protocol):
    plan: PipelinePlan
    ready: bool
    #: Whether the slot gets no more calls and is closed once its calls are answered.
    retiring: bool
    #: Calls given and not answered, in order; the first may be under way.
    pending: deque[Work]
    #: When the first pending call may have begun, by the monotonic clock.
    since: float
    #: The expected duration of the pending calls.
    load_us: int
    #: The failure reason of a message in whose call the slot dies.
    reason: FailureReason

    def give(self, works: Sequence[Work]) -> None: ...

    def accept(self, work: Work) -> bool:
        """Take in the answer of a call. Returns False if the slot was given up and its answers no longer
        count.
        """
        ...

    def unbegun(self) -> int:
        """How many pending calls have not begun."""
        ...

    def recall(self) -> list[Work]:
        """Take back the calls that have not begun, in order."""
        ...

    def kill(self, how: str, reason: FailureReason = ...) -> None:
        """End the slot and its call at once. Posts `SlotDied` with the pending calls."""
        ...

    def check(self) -> None:
        """Notice a death that no pipe has shown."""
        ...

    def close(self) -> None:
        """End a slot without pending calls."""
        ...


class ThreadSlot:
    """A thread of the worker's process. A kill cannot end its call, which goes on; the answer is ignored."""

    def __init__(self, plan: PipelinePlan, post: Callable[[SlotEvent], None], runner: StepRunner) -> None:
        self.plan = plan
        self.ready = True
        self.retiring = False
        self.pending: deque[Work] = deque()
        self.since = 0.0
        self.load_us = 0
        self.reason = FailureReason.TIMEOUT_EXCEEDED
        self._post = post
        self._runner = runner
        self._calls: SimpleQueue[tuple[Work, StepCall | BatchCall] | None] = SimpleQueue()
        self._has_ended = False
        self._next_ticket = 0
        Thread(target=self._run, name="fairlead-step", daemon=True).start()

    def give(self, works: Sequence[Work]) -> None:
        if not self.pending:
            self.since = time.monotonic()
        self.pending.extend(works)
        for work in works:
            self._next_ticket += 1
            self._calls.put((work, work.call(self._next_ticket)))

    def accept(self, work: Work) -> bool:
        if self._has_ended:
            return False
        self.pending.popleft()
        self.since = time.monotonic()
        return True

    def unbegun(self) -> int:
        return min(len(self.pending), self._calls.qsize())

    def recall(self) -> list[Work]:
        found: list[Work] = []
        while True:
            try:
                taken = self._calls.get_nowait()
            except Empty:
                break
            if taken is not None:
                found.append(taken[0])
        for _ in found:
            self.pending.pop()
        return found

    def kill(self, how: str, reason: FailureReason = FailureReason.TIMEOUT_EXCEEDED) -> None:
        self.reason = reason
        self._has_ended = True
        others = self.recall()
        begun = self.pending[0] if self.pending else None
        self.pending.clear()
        self._calls.put(None)
        self._post(SlotDied(self, begun, others, how))

    def check(self) -> None: ...

    def close(self) -> None:
        self._has_ended = True
        self._calls.put(None)

    def _run(self) -> None:
        while (taken := self._calls.get()) is not None:
            work, call = taken
            result = self._runner(call)
            if self._has_ended:
                return
            self._post(CallAnswered(self, work, result))
