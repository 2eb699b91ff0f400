"""The slots of a worker: how many there are, which take calls, which are late, and how they change with the
pipeline.
"""

from __future__ import annotations

import logging
import os
import selectors
import time
from collections.abc import Callable, Iterable

from fairlead.errors import StepNotLoaded
from fairlead.model.failure import FailureReason
from fairlead.worker.items import Work, WorkItem
from fairlead.worker.job import Job
from fairlead.worker.process_slot import ProcessSlot
from fairlead.worker.slots import Slot, SlotDied, SlotEvent, ThreadSlot
from fairlead.worker.step_runner import StepRunner

_log = logging.getLogger("fairlead.worker")

#: The most expected work of quick calls that a slot is given ahead.
BUDGET_US = 10_000
#: A call that takes longer was not quick.
LATE_S = 0.02
#: A command's own time limit must end it first, so that its output is in the failure record.
_COMMAND_GRACE_S = 2.0
_MAX_FAILED_STARTS = 3
#: A slot with this many calls has enough to do while answers gather.
_PLENTY = 64


class SlotPool:
    """For the thread of the worker's loop only. `put_back` is called with calls that were taken back from a
    slot.
    """

    def __init__(
        self,
        job: Job,
        size: int,
        post: Callable[[SlotEvent], None],
        put_back: Callable[[list[Work]], None],
        selector: selectors.BaseSelector,
    ) -> None:
        self.slots: list[Slot] = []
        self.size = size
        self._job = job
        self._post = post
        self._put_back = put_back
        self._selector = selector
        self._runner: StepRunner | None = None
        self._failed_starts = 0

    def open_slots(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.ready and not slot.retiring]

    def add(self) -> None:
        """Raises `StepNotLoaded` for a thread; a process posts `StepsNotLoaded` later."""
        job = self._job
        if job.spec.isolate == "thread":
            if self._runner is None:
                self._runner = StepRunner(job.setup)
            self.slots.append(ThreadSlot(job.plan, self._post, self._runner))
        else:
            self.slots.append(ProcessSlot(job.plan, job.setup, self._post, self._selector))

    def grow(self, waiting: int) -> None:
        """Add slots for work that waits. Processes take a while to start, so at most one for each processor
        at a time.
        """
        active = [slot for slot in self.slots if not slot.retiring]
        starting = sum(not slot.ready for slot in active)
        at_once = max(1, (os.cpu_count() or 1) - starting)
        for _ in range(min(self.size - len(active), waiting - starting, at_once)):
            try:
                self.add()
            except OSError as error:
                if not self.slots:
                    raise
                # The next round with work for more slots tries again.
                fields = {"error": str(error), "there are": len(active)}
                _log.warning("no further step process can be started", extra={"fields": fields})
                return

    def resize(self, size: int) -> None:
        self.size = size
        active = sorted(
            (slot for slot in self.slots if not slot.retiring), key=lambda slot: bool(slot.pending)
        )
        self._retire(active[: max(0, len(active) - size)])

    def change(self, job: Job) -> None:
        """Replace the slots if the steps have changed; calls under way end as they began. Raises
        `StepNotLoaded`.
        """
        before, self._job = self._job, job
        if job.plan == before.plan and job.setup == before.setup and job.spec.isolate == before.spec.isolate:
            return
        self._runner = None
        self._retire(list(self.slots))
        self.add()

    def answered(self, slot: Slot) -> None:
        self._failed_starts = 0
        left = len(slot.pending)
        slot.load_us = slot.load_us * left // (left + 1)
        if slot.retiring and not left and slot in self.slots:
            self._close(slot)

    def died(self, event: SlotDied) -> None:
        """Raises `StepNotLoaded` if slots keep dying before they take a call."""
        if event.slot not in self.slots:
            return
        self.slots.remove(event.slot)
        if not event.slot.ready:
            self._failed_starts += 1
            if self._failed_starts >= _MAX_FAILED_STARTS:
                first = self._job.plan.steps[0]
                raise StepNotLoaded(first.name, first.run or "", f"{event.how}, before its steps were loaded")

    def watch(self) -> list[WorkItem]:
        """Kill slots whose call exceeds its time limit, and return the items whose calls have become slow.

        Calls behind a slow one are taken back if another slot has room. Items of a batch are not returned:
        which of them takes long is unknown.
        """
        late: list[WorkItem] = []
        now = time.monotonic()
        for slot in list(self.slots):
            slot.check()
            if not slot.pending:
                continue
            work, age, limit = slot.pending[0], now - slot.since, _limit_s(slot)
            if limit is not None and age > limit:
                slot.kill(
                    f"it took longer than {slot.plan.steps[work.step].timeout_ms} ms",
                    FailureReason.TIMEOUT_EXCEEDED,
                )
            elif age > LATE_S:
                unbegun = slot.unbegun()
                if unbegun == len(slot.pending):
                    slot.since = now  # the slot has not had the processor yet
                    continue
                slot.load_us = BUDGET_US
                if len(work.items) == 1:
                    late.extend(work.items)
                if unbegun and self._has_room():
                    self._recall(slot)
        return late

    def has_plenty(self) -> bool:
        """Whether every ready slot has more calls waiting than it answers in a millisecond."""
        ready = [slot for slot in self.slots if slot.ready]
        return bool(ready) and all(len(slot.pending) >= _PLENTY for slot in ready)

    def is_busy(self) -> bool:
        """Whether every ready slot has a call waiting behind the one under way."""
        return all(len(slot.pending) > 1 for slot in self.slots if slot.ready)

    def _has_room(self) -> bool:
        """Whether another slot could take the calls behind a slow one."""
        active = [slot for slot in self.slots if not slot.retiring]
        return len(active) < self.size or any(slot.ready and slot.load_us < BUDGET_US for slot in active)

    def until_next(self, max_s: float) -> float:
        """Seconds until a call becomes late or exceeds its time limit, at most `max_s`."""
        now, soonest = time.monotonic(), max_s
        for slot in self.slots:
            if slot.pending:
                age, limit = now - slot.since, _limit_s(slot)
                if age < LATE_S:
                    soonest = min(soonest, LATE_S - age)
                if limit is not None:
                    soonest = min(soonest, limit - age)
        return max(0.0, soonest)

    def recall_all(self) -> None:
        for slot in self.slots:
            self._recall(slot)

    def kill_busy(self, how: str) -> None:
        for slot in list(self.slots):
            if slot.pending:
                slot.kill(how)

    def kill_under(self, item: WorkItem) -> bool:
        """Kill the slot that is calling this item. A call that has not begun is taken back instead.

        Returns False if no such call is under way, or if it has other items that are not lost.
        """
        for slot in self.slots:
            for place, work in enumerate(slot.pending):
                if item not in work.items:
                    continue
                if place:
                    self._recall(slot)
                elif all(one.lost for one in work.items):
                    slot.kill("its lease is over")
                    return True
                return False
        return False

    def close(self) -> None:
        self.kill_busy("the worker ended")
        for slot in list(self.slots):
            if not slot.pending:
                slot.close()

    def _recall(self, slot: Slot) -> None:
        self._put_back(slot.recall())
        if not slot.pending:
            # Only an answer lowers the load, and this slot has no call to answer: it would never get one
            # again.
            slot.load_us = 0

    def _retire(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            slot.retiring = True
            self._recall(slot)
            if not slot.pending:
                self._close(slot)

    def _close(self, slot: Slot) -> None:
        self.slots.remove(slot)
        slot.close()


def _limit_s(slot: Slot) -> float | None:
    step = slot.plan.steps[slot.pending[0].step]
    if step.timeout_ms is None:
        return None
    return step.timeout_ms / 1000 + (_COMMAND_GRACE_S if step.command is not None else 0)
