"""The slots of a worker: how many, which may be used, which are late, and what becomes of them when the
pipeline changes.
"""

from __future__ import annotations

import logging
import os
import selectors
import time
from collections.abc import Callable, Iterable

from fairlead.errors import StepNotLoaded
from fairlead.model.failure import FailureReason
from fairlead.worker.batches import Work
from fairlead.worker.items import WorkItem
from fairlead.worker.job import Job
from fairlead.worker.process_slot import ProcessSlot
from fairlead.worker.slots import Slot, SlotDied, SlotEvent, ThreadSlot
from fairlead.worker.step_runner import StepRunner

_log = logging.getLogger("fairlead.worker")

#: What a slot may have in hand of quick calls, in expected microseconds.
BUDGET_US = 10_000
#: After so long a call that was thought to be quick counts as slow.
LATE_S = 0.02
#: A command's own time limit comes first, so that its output is in the failure record.
_COMMAND_GRACE_S = 2.0
_MAX_FAILED_STARTS = 3
_PLENTY = 64


class SlotPool:
    """Used by the thread of the worker's loop alone. `put_back` gets what was handed out and not begun."""

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
        """Raises `StepNotLoaded` for threads; a process says so later."""
        job = self._job
        if job.spec.isolate == "thread":
            if self._runner is None:
                self._runner = StepRunner(job.setup)
            self.slots.append(ThreadSlot(job.plan, self._post, self._runner))
        else:
            self.slots.append(ProcessSlot(job.plan, job.setup, self._post, self._selector))

    def grow(self, waiting: int) -> None:
        """There is work that waits for a slot. Processes take a while to start, so not all at once."""
        active = [slot for slot in self.slots if not slot.retiring]
        starting = sum(not slot.ready for slot in active)
        for _ in range(
            min(self.size - len(active), waiting - starting, max(1, (os.cpu_count() or 1) - starting))
        ):
            try:
                self.add()
            except OSError as error:
                if not self.slots:
                    raise
                # It goes on with those it has, and tries again when there is work for more.
                _log.warning(
                    "no further step process can be started",
                    extra={"fields": {"error": str(error), "there are": len(active)}},
                )
                return

    def resize(self, size: int) -> None:
        self.size = size
        active = sorted(
            (slot for slot in self.slots if not slot.retiring), key=lambda slot: bool(slot.pending)
        )
        self._retire(active[: max(0, len(active) - size)])

    def change(self, job: Job) -> None:
        """Other steps from now on, if they are others; calls under way end as they began."""
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
        """Raises `StepNotLoaded` when none of them lives long enough to take a call."""
        if event.slot not in self.slots:
            return
        self.slots.remove(event.slot)
        if not event.slot.ready:
            self._failed_starts += 1
            if self._failed_starts >= _MAX_FAILED_STARTS:
                first = self._job.plan.steps[0]
                raise StepNotLoaded(first.name, first.run or "", f"{event.how}, before its steps were loaded")

    def watch(self) -> list[WorkItem]:
        """Kill what has taken too long. Gives the items whose calls have become slow; who waits behind them
        goes elsewhere, if there is room.

        Not those of a batch, of which nobody could say which one it is that takes long.
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
                    slot.since = now  # it had no turn on the processor yet
                    continue
                slot.load_us = BUDGET_US
                if len(work.items) == 1:
                    late.extend(work.items)
                if unbegun and self._has_room():
                    self._recall(slot)
        return late

    def has_plenty(self) -> bool:
        """Each slot that may be used has calls waiting behind the one under way, more than it will do in a
        moment.
        """
        ready = [slot for slot in self.slots if slot.ready]
        return bool(ready) and all(len(slot.pending) >= _PLENTY for slot in ready)

    def is_busy(self) -> bool:
        """Each slot that may be used has a call waiting behind the one under way."""
        return all(len(slot.pending) > 1 for slot in self.slots if slot.ready)

    def _has_room(self) -> bool:
        """Could another slot take what waits behind a slow call?"""
        active = [slot for slot in self.slots if not slot.retiring]
        return len(active) < self.size or any(slot.ready and slot.load_us < BUDGET_US for slot in active)

    def until_next(self, max_s: float) -> float:
        """Until some call is late or over its time."""
        now, least = time.monotonic(), max_s
        for slot in self.slots:
            if slot.pending:
                age, limit = now - slot.since, _limit_s(slot)
                if age < LATE_S:
                    least = min(least, LATE_S - age)
                if limit is not None:
                    least = min(least, limit - age)
        return max(0.0, least)

    def recall_all(self) -> None:
        for slot in self.slots:
            self._recall(slot)

    def kill_busy(self, how: str) -> None:
        for slot in list(self.slots):
            if slot.pending:
                slot.kill(how)

    def kill_under(self, item: WorkItem) -> bool:
        """End the call of this item. False when none is under way, or one that others are in too, whose work
        is not lost.

        One that has not begun is taken back, with those that wait beside it, so that it does not begin.
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
            # Only an answer lowers the load, and this slot has none to give: it would never get a call again.
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
