"""Which item goes to which slot, alone or in a batch, and which item must be started first."""

from __future__ import annotations

import time
from collections.abc import Callable

from fairlead.model.settle import Start
from fairlead.worker.estimates import SLOW_US, Estimates
from fairlead.worker.in_flight import Gathered, InFlight
from fairlead.worker.items import MAX_BATCH_BYTES, StepBatch, Work, WorkItem, max_rows_with
from fairlead.worker.outbox import Outbox
from fairlead.worker.plan import PipelinePlan
from fairlead.worker.pool import BUDGET_US, LATE_S, SlotPool
from fairlead.worker.slots import Slot

#: The most single items of quick steps that are begun or about to be.
_MAX_BUSY = 4000
#: A batch that is not full waits this long for items on their way to it, or as long as a call of its step
#: takes, so that calls take at least half of the time; at most the second limit.
_GATHER_S = 0.1
_MAX_GATHER_S = 10.0
#: A batch with a shorter estimate may wait in a slot behind another call.
_LONG_BATCH_US = 50_000


class _RoundSlots:
    """The open slots during one round, with what the round assigns to each of them."""

    def __init__(self, slots: list[Slot], share: int) -> None:
        self.assigned: dict[Slot, list[Work]] = {}
        self._slots = slots
        #: The most quick calls that one slot gets in this round.
        self._share = share

    def __len__(self) -> int:
        return len(self._slots)

    def assign(self, slot: Slot, work: Work, expected_us: int) -> None:
        slot.load_us += expected_us
        self.assigned.setdefault(slot, []).append(work)

    def count_idle(self) -> int:
        return sum(not slot.pending and slot not in self.assigned for slot in self._slots)

    def find_idle(self) -> Slot | None:
        for slot in self._slots:
            if not slot.pending and slot not in self.assigned:
                return slot
        return None

    def find_for_quick(self, expected_us: int) -> Slot | None:
        """A slot whose load leaves room for one more quick call."""
        for slot in self._slots:
            assigned = self.assigned.get(slot)
            if slot.load_us + expected_us <= BUDGET_US and (assigned is None or len(assigned) < self._share):
                return slot
        return None

    def find_for_batch(self, expected_us: int) -> Slot | None:
        """An idle slot, or else, for a batch with a short estimate, a slot with a single call.

        Not a slot whose call is late: the batch would be recalled from there and come back, and the pool
        would see no need for another slot.
        """
        found, late_since = None, time.monotonic() - LATE_S
        may_wait = expected_us < _LONG_BATCH_US
        for slot in self._slots:
            calls = len(slot.pending) + len(self.assigned.get(slot, ()))
            if not calls:
                return slot
            is_late = bool(slot.pending) and slot.since < late_since
            if found is None and may_wait and calls == 1 and not is_late:
                found = slot
        return found


class Dispatcher:
    """`needs_call(item, fresh)` finds the next step of an item, and settles the item itself if no step is
    left.
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
        self._slots = _RoundSlots([], 0)
        #: Items that are in a batch or wait for one to fill.
        self._in_batches = 0

    def dispatch(self, plan: PipelinePlan, *, only_begun: bool) -> None:
        """One round: first items that wait for their next step, then new items unless `only_begun`."""
        in_flight = self._in_flight
        if plan is not self._plan:
            self._plan = plan
            in_flight.ungather()
        waiting = len(in_flight.next) + in_flight.gathered
        if not only_begun:
            waiting += len(in_flight.fresh)
        if not waiting:
            return
        slots = self._pool.open_slots()
        self._slots = _RoundSlots(slots, share=-(-waiting // max(1, len(slots))))
        self._in_batches = in_flight.gathered + self._rows_in_slots()
        stuck = self._dispatch_items(plan, fresh=False)
        # Batches that are due get their slots before new items do, which would keep the slots busy for ever.
        stuck = self._dispatch_batches(plan, only_due=True) or stuck
        if not stuck and not only_begun:
            stuck = self._dispatch_items(plan, fresh=True)
        stuck = self._dispatch_batches(plan, only_due=False) or stuck
        for slot, works in self._slots.assigned.items():
            slot.give(works)
        if stuck:
            self._pool.grow(waiting)

    def until_due(self, max_s: float) -> float:
        """Seconds until a batch has waited long enough for more items, at most `max_s`."""
        if not self._in_flight.gathered or self._plan is None:
            return max_s
        now, plan = time.monotonic(), self._plan
        left = [self._due(plan, step, rows) - now for (step, _), rows in self._in_flight.batches.items()]
        return min([max_s, *(seconds for seconds in left if seconds > 0)])

    def _rows_in_slots(self) -> int:
        # Not only open slots: those of the pipeline before take no more calls and may still run batches.
        slots = [slot for slot in self._pool.slots if slot.plan.max_rows > 1]
        works = [work for slot in slots for work in slot.pending]
        return sum(len(work.items) for work in works if isinstance(work, StepBatch))

    def _dispatch_items(self, plan: PipelinePlan, *, fresh: bool) -> bool:
        """Place items from the front of their queue. Returns whether an item must wait for a slot."""
        line = self._in_flight.fresh if fresh else self._in_flight.next
        while line:
            item = line.popleft()
            if item.lost or not self._needs_call(item, fresh):
                continue
            step = plan.steps[item.step]
            expected_us = self._estimates.of(step.name)
            max_rows = max_rows_with(item, step) if step.batch else 1
            if max_rows > 1:
                is_placed = self._gather(plan, item, max_rows, expected_us, fresh)
            else:
                is_placed = self._start_or_assign(plan, item, expected_us, fresh)
            if not is_placed:
                line.appendleft(item)
                return True
        return False

    def _start_or_assign(self, plan: PipelinePlan, item: WorkItem, expected_us: int, fresh: bool) -> bool:
        """Returns False if the item must wait for a slot."""
        is_slow = expected_us >= SLOW_US
        if fresh and self._is_full(is_slow):
            return False
        if not item.started and (is_slow or item.delivery.deliveries > 1):
            is_placed = self._start(item)
        else:
            is_placed = self._assign(plan, item, expected_us, is_slow)
        if is_placed and fresh:
            self._in_flight.take_up(item)
        return is_placed

    def _is_full(self, is_slow: bool) -> bool:
        """Whether no further single item may be taken up."""
        busy = len(self._in_flight.busy) - self._in_batches
        return busy >= (len(self._slots) if is_slow else _MAX_BUSY)

    def _start(self, item: WorkItem) -> bool:
        """Send the start of the item, for which an idle slot is kept. Returns False if there is none to keep."""
        starting = self._in_flight.starting
        if len(starting) >= self._slots.count_idle():
            return False
        starting.add(item)
        self._outbox.add(Start(item.delivery), "start", item)
        return True

    def _assign(self, plan: PipelinePlan, item: WorkItem, expected_us: int, is_slow: bool) -> bool:
        slots = self._slots
        slot = slots.find_idle() if is_slow else slots.find_for_quick(expected_us)
        if slot is None:
            return False
        self._in_flight.starting.discard(item)
        slots.assign(slot, StepBatch(plan, [item]) if plan.steps[item.step].batch else item, expected_us)
        return True

    def _gather(
        self, plan: PipelinePlan, item: WorkItem, max_rows: int, expected_us: int, fresh: bool
    ) -> bool:
        """Add the item to the batch of its step. Returns False for a new item if no slot has room for the
        batch.
        """
        in_flight = self._in_flight
        if fresh and not self._has_room_in_batch(plan, item.step, max_rows, expected_us):
            return False
        if fresh:
            in_flight.take_up(item)
        in_flight.gather(item, max_rows)
        self._in_batches += 1
        if fresh and item.step == 0 and item.delivery.deliveries == 1:
            self._in_batches += in_flight.gather_new(max_rows)
        return True

    def _has_room_in_batch(self, plan: PipelinePlan, step: int, max_rows: int, expected_us: int) -> bool:
        """New items are taken up only for a batch that some slot has room for."""
        batches = self._in_flight.batches
        rows = batches.get((step, max_rows))
        if rows is not None and rows.items:
            if len(rows.items) < max_rows:
                return True
            self._dispatch_batches(plan, only_due=True)
            if batches.get((step, max_rows)):
                return False
        return self._slots.find_for_batch(expected_us) is not None

    def _dispatch_batches(self, plan: PipelinePlan, *, only_due: bool) -> bool:
        """Assign batches that are full or have waited, and without `only_due` those that nothing else is
        coming for.

        Returns whether a batch must wait for a slot.
        """
        in_flight = self._in_flight
        if not in_flight.gathered:
            return False
        stuck = False
        nothing_comes = not only_due and len(in_flight.busy) <= self._in_batches
        for key, rows in list(in_flight.batches.items()):
            goes_now = nothing_comes or (key[0] == 0 and not only_due)
            stuck = self._dispatch_rows(plan, key, rows, goes_now=goes_now) or stuck
        return stuck

    def _dispatch_rows(
        self, plan: PipelinePlan, key: tuple[int, int], rows: Gathered, *, goes_now: bool
    ) -> bool:
        """Assign batches of these rows as long as they go now, are full or are due. Returns whether one must
        wait.
        """
        now, (step, max_rows) = time.monotonic(), key
        while rows.items and (goes_now or len(rows.items) >= max_rows or now >= self._due(plan, step, rows)):
            expected_us = self._estimates.of(plan.steps[step].name)
            slot = self._slots.find_for_batch(expected_us)
            if slot is None:
                return True
            items = self._in_flight.take_gathered(step, max_rows, MAX_BATCH_BYTES)
            if items:
                self._slots.assign(slot, StepBatch(plan, items), expected_us)
        return False

    def _due(self, plan: PipelinePlan, step: int, rows: Gathered) -> float:
        """When the batch goes although it is not full, by the monotonic clock."""
        call_s = self._estimates.of(plan.steps[step].name) / 1e6
        return rows.since + min(_MAX_GATHER_S, max(_GATHER_S, call_s))
