"""Which item goes to which slot, alone or in a batch, and which must be started first."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from fairlead.model.settle import Start
from fairlead.worker.batches import MAX_BATCH_BYTES, StepBatch, Work, max_rows_with
from fairlead.worker.estimates import SLOW_US, Estimates
from fairlead.worker.in_flight import Gathered, InFlight
from fairlead.worker.items import WorkItem
from fairlead.worker.outbox import Outbox
from fairlead.worker.plan import PipelinePlan
from fairlead.worker.pool import BUDGET_US, LATE_S, SlotPool
from fairlead.worker.slots import Slot

_MAX_BUSY = 4000
#: So long a batch that is not full waits for those on their way to it, or as long as a call of its step
#: takes: then the time of the calls is at least half of all. No longer than the last.
_GATHER_S = 0.1
_MAX_GATHER_S = 10.0
#: Of batches that take less, one may lie behind the one under way.
_LONG_BATCH_US = 50_000


class Dispatcher:
    """`needs_call` finds the next step of an item, fresh or not, and settles it itself when there is nothing
    to call.
    """

    def __init__(
        self,
        in_flight: InFlight,
        pool: SlotPool,
        outbox: Outbox,
        estimates: Estimates,
        needs_call: Callable[[WorkItem, bool], bool],
    ) -> None:
        self._in_flight = in_flight
        self._pool = pool
        self._outbox = outbox
        self._estimates = estimates
        self._needs_call = needs_call
        self._plan: PipelinePlan | None = None
        self._assigned: dict[Slot, list[Work]] = {}
        #: Items that are in a batch, or wait for one to fill.
        self._in_batches = 0

    def dispatch(self, plan: PipelinePlan, *, only_begun: bool) -> None:
        """First those that wait for their next step, then new ones."""
        in_flight = self._in_flight
        if plan is not self._plan:
            self._plan = plan
            in_flight.ungather()
        waiting = len(in_flight.next) + in_flight.gathered + (0 if only_begun else len(in_flight.fresh))
        if not waiting:
            return
        slots = self._pool.open_slots()
        share = -(-waiting // max(1, len(slots)))
        self._assigned = {}
        # Also in slots of the pipeline before, which take no more calls.
        with_batches = [slot for slot in self._pool.slots if slot.plan.max_rows > 1]
        self._in_batches = in_flight.gathered + sum(
            len(work.items) for slot in with_batches for work in slot.pending if isinstance(work, StepBatch)
        )
        stuck = self._dispatch_from(in_flight.next, plan, slots, share)
        # A batch that is due gets its slot before new ones do: they would keep it busy for ever.
        stuck = self._dispatch_batches(plan, slots, only_due=True) or stuck
        if not stuck and not only_begun:
            stuck = self._dispatch_from(in_flight.fresh, plan, slots, share)
        stuck = self._dispatch_batches(plan, slots, only_due=False) or stuck
        for slot, works in self._assigned.items():
            slot.hand(works)
        if stuck:
            self._pool.grow(waiting)

    def until_due(self, max_s: float) -> float:
        """Until a batch has waited long enough for more."""
        if not self._in_flight.gathered or self._plan is None:
            return max_s
        now = time.monotonic()
        left = [
            self._due(self._plan, step, rows) - now for (step, _), rows in self._in_flight.batches.items()
        ]
        return min([max_s, *(seconds for seconds in left if seconds > 0)])

    def _dispatch_from(
        self, line: deque[WorkItem], plan: PipelinePlan, slots: list[Slot], share: int
    ) -> bool:
        """From the front, as far as there is room. True when there is work that waits for a slot."""
        in_flight, fresh = self._in_flight, line is self._in_flight.fresh
        while line:
            item = line[0]
            if item.lost or not self._needs_call(item, fresh):
                line.popleft()
                continue
            step = plan.steps[item.step]
            max_rows = max_rows_with(item, step) if step.batch else 1
            expected_us = self._estimates.of(step.name)
            if max_rows > 1:
                if fresh and not self._room_in_batch(item.step, max_rows, expected_us, slots):
                    return True
                self._gather(line.popleft(), max_rows, fresh)
                continue
            slow = expected_us >= SLOW_US
            if fresh and len(in_flight.busy) - self._in_batches >= (len(slots) if slow else _MAX_BUSY):
                return True
            if not item.started and (slow or item.delivery.deliveries > 1):
                if len(in_flight.starting) >= sum(
                    not slot.pending and slot not in self._assigned for slot in slots
                ):
                    return True
                in_flight.starting.add(item)
                self._outbox.add(Start(item.delivery), "start", item)
            else:
                slot = self._find_room(slots, expected_us, slow, share)
                if slot is None:
                    return True
                in_flight.starting.discard(item)
                slot.load_us += expected_us
                self._assigned.setdefault(slot, []).append(StepBatch(plan, [item]) if step.batch else item)
            line.popleft()
            if fresh:
                in_flight.take_up(item)
        return False

    def _find_room(self, slots: list[Slot], expected_us: int, alone: bool, share: int) -> Slot | None:
        """A slot for one more call; for one that is to be `alone`, a slot with nothing to do."""
        for slot in slots:
            works = self._assigned.get(slot)
            if alone:
                if not slot.pending and not works:
                    return slot
            elif slot.load_us + expected_us <= BUDGET_US and (works is None or len(works) < share):
                return slot
        return None

    # Batches

    def _gather(self, item: WorkItem, max_rows: int, fresh: bool) -> None:
        if fresh:
            self._in_flight.take_up(item)
        self._in_flight.gather(item, max_rows)
        self._in_batches += 1
        if fresh and item.step == 0 and item.delivery.deliveries == 1:
            self._in_batches += self._in_flight.gather_new(max_rows)

    def _room_in_batch(self, step: int, max_rows: int, expected_us: int, slots: list[Slot]) -> bool:
        """New ones are taken up only for a batch that some slot has room for."""
        rows = self._in_flight.batches.get((step, max_rows))
        if rows is None or not rows.items:
            return self._find_slot(slots, expected_us) is not None
        if len(rows.items) < max_rows:
            return True
        assert self._plan is not None
        self._dispatch_batches(self._plan, slots, only_due=True)
        return (
            not self._in_flight.batches.get((step, max_rows))
            and self._find_slot(slots, expected_us) is not None
        )

    def _dispatch_batches(self, plan: PipelinePlan, slots: list[Slot], *, only_due: bool) -> bool:
        """Those that are full or have waited; without `only_due` also those that nobody is on the way to.
        True when one waits for a slot.
        """
        if not self._in_flight.gathered:
            return False
        now, stuck = time.monotonic(), False
        nobody_comes = not only_due and len(self._in_flight.busy) <= self._in_batches
        for (step, max_rows), rows in list(self._in_flight.batches.items()):
            while rows.items and (
                len(rows.items) >= max_rows
                or (step == 0 and not only_due)
                or nobody_comes
                or now >= self._due(plan, step, rows)
            ):
                expected_us = self._estimates.of(plan.steps[step].name)
                slot = self._find_slot(slots, expected_us)
                if slot is None:
                    stuck = True
                    break
                items = self._in_flight.take_gathered(step, max_rows, MAX_BATCH_BYTES)
                if items:
                    slot.load_us += expected_us
                    self._assigned.setdefault(slot, []).append(StepBatch(plan, items))
        return stuck

    def _find_slot(self, slots: list[Slot], expected_us: int) -> Slot | None:
        """One with nothing to do, or else, for a batch that does not take long, one with a single call.

        Not behind a call that is late: it would be recalled from there, and come back, and no slot would be
        made for it.
        """
        found, late_since = None, time.monotonic() - LATE_S
        for slot in slots:
            calls = len(slot.pending) + len(self._assigned.get(slot, ()))
            if not calls:
                return slot
            if (
                calls == 1
                and expected_us < _LONG_BATCH_US
                and found is None
                and not (slot.pending and slot.since < late_since)
            ):
                found = slot
        return found

    def _due(self, plan: PipelinePlan, step: int, rows: Gathered) -> float:
        return rows.since + min(
            _MAX_GATHER_S, max(_GATHER_S, self._estimates.of(plan.steps[step].name) / 1e6)
        )
