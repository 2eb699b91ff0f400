"""A slot is where steps run, one call at a time, of an item or of a batch. Calls are handed over several at a
time, and answered one by one.

What was handed over and not begun can be taken back at any time; who takes a ticket, has the call. So a
worker may hand out more than one call at a time without knowing how long they take.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NamedTuple, Protocol

from fairlead.model.failure import FailureReason
from fairlead.worker.batches import Work
from fairlead.worker.plan import PipelinePlan
from fairlead.worker.protocol import BatchCall, BatchDone, CallDone, CallFailed, StepCall
from fairlead.worker.step_runner import StepRunner


class CallAnswered(NamedTuple):
    """How a call ended."""

    slot: Slot
    work: Work
    result: CallDone | CallFailed | BatchDone


class SlotDied(NamedTuple):
    """A slot is gone. `begun` is that whose call it died in, None when it died in none; the others were not
    begun.
    """

    slot: Slot
    begun: Work | None
    others: list[Work]
    how: str


class StepsNotLoaded(NamedTuple):
    """A slot could not load its steps."""

    slot: Slot
    step: str
    what: str


SlotEvent = CallAnswered | SlotDied | StepsNotLoaded


class Slot(Protocol):
    plan: PipelinePlan
    ready: bool
    #: It gets no more calls, and is closed when it has answered those it has.
    retiring: bool
    #: Handed over and not answered, in order; the first may be under way.
    pending: deque[Work]
    #: Since when the first may be under way, by the monotonic clock.
    since: float
    #: What the pending calls are expected to take.
    load_us: int
    #: What it means for a message when the slot dies in its step.
    reason: FailureReason

    def hand(self, works: Sequence[Work]) -> None: ...

    def accept(self, work: Work) -> bool:
        """Its answer is being taken in. False when the slot was given up, and what it answers no longer
        counts.
        """
        ...

    def unbegun(self) -> int:
        """How many of the pending have not begun."""
        ...

    def recall(self) -> list[Work]:
        """Take back those that have not begun, in order."""
        ...

    def kill(self, how: str, reason: FailureReason = ...) -> None:
        """End it at once, with what it does; what that leaves behind comes as `Died`."""
        ...

    def check(self) -> None:
        """Look whether it has died with no sign."""
        ...

    def close(self) -> None:
        """When nothing is pending."""
        ...


class ThreadSlot:
    """A thread of the worker's own process. It cannot be killed: a call that takes too long goes on, and its
    answer is ignored.
    """

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
        self._line: SimpleQueue[tuple[Work, StepCall | BatchCall] | None] = SimpleQueue()
        self._ended = False
        self._tickets = 0
        Thread(target=self._run, name="fairlead-step", daemon=True).start()

    def hand(self, works: Sequence[Work]) -> None:
        if not self.pending:
            self.since = time.monotonic()
        self.pending.extend(works)
        for work in works:
            self._tickets += 1
            self._line.put((work, work.call(self._tickets)))

    def accept(self, work: Work) -> bool:
        if self._ended:
            return False
        self.pending.popleft()
        self.since = time.monotonic()
        return True

    def unbegun(self) -> int:
        return min(len(self.pending), self._line.qsize())

    def recall(self) -> list[Work]:
        found: list[Work] = []
        while True:
            try:
                taken = self._line.get_nowait()
            except Empty:
                break
            if taken is not None:
                found.append(taken[0])
        for _ in found:
            self.pending.pop()
        return found

    def kill(self, how: str, reason: FailureReason = FailureReason.TIMEOUT_EXCEEDED) -> None:
        self.reason = reason
        self._ended = True
        others = self.recall()
        begun = self.pending[0] if self.pending else None
        self.pending.clear()
        self._line.put(None)
        self._post(SlotDied(self, begun, others, how))

    def check(self) -> None: ...

    def close(self) -> None:
        self._ended = True
        self._line.put(None)

    def _run(self) -> None:
        while (taken := self._line.get()) is not None:
            work, call = taken
            result = self._runner(call)
            if self._ended:
                return
            self._post(CallAnswered(self, work, result))
