"""Which item goes to which slot, alone or in a batch, and which must be started first."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from fairlead.model.settle import Start
from fairlead.worker.batches import MOST_BYTES, Batch, Work, most_together
from fairlead.worker.estimates import SLOW_US, Estimates
from fairlead.worker.hands import Gathered, Hands
from fairlead.worker.items import Item
from fairlead.worker.outbox import Outbox
from fairlead.worker.plan import Plan
from fairlead.worker.pool import BUDGET_US, LATE_S, Pool
from fairlead.worker.slots import Slot

_MOST_BUSY = 4000
#: So long a batch that is not full waits for those on their way to it, or as long as a call of its step
#: takes: then the time of the calls is at least half of all. No longer than the last.
_GATHER_S = 0.1
_LONGEST_GATHER_S = 10.0
#: Of batches that take less, one may lie behind the one under way.
_LONG_BATCH_US = 50_000


class Dealer:
    """`needs_call` finds the next step of an item, fresh or not, and settles it itself when there is nothing
    to call.
    """

    def __init__(
        self,
        hands: Hands,
        pool: Pool,
        outbox: Outbox,
        estimates: Estimates,
        needs_call: Callable[[Item, bool], bool],
    ) -> None:
        self._hands = hands
        self._pool = pool
        self._outbox = outbox
        self._estimates = estimates
        self._needs_call = needs_call
        self._plan: Plan | None = None
        self._lots: dict[Slot, list[Work]] = {}
        #: Items that are in a batch, or wait for one to fill.
        self._in_batches = 0

    def deal(self, plan: Plan, *, only_begun: bool) -> None:
        """First those that wait for their next step, then new ones."""
        hands = self._hands
        if plan is not self._plan:
            self._plan = plan
            hands.ungather()
        waiting = len(hands.next) + hands.gathered + (0 if only_begun else len(hands.fresh))
        if not waiting:
            return
        slots = self._pool.open_slots()
        share = -(-waiting // max(1, len(slots)))
        self._lots = {}
        # Also in slots of the pipeline before, which take no more calls.
        with_batches = [slot for slot in self._pool.slots if slot.plan.most_rows > 1]
        self._in_batches = hands.gathered + sum(
            len(work.items) for slot in with_batches for work in slot.pending if isinstance(work, Batch)
        )
        stuck = self._deal_from(hands.next, plan, slots, share)
        # A batch that is due gets its slot before new ones do: they would keep it busy for ever.
        stuck = self._deal_batches(plan, slots, only_due=True) or stuck
        if not stuck and not only_begun:
            stuck = self._deal_from(hands.fresh, plan, slots, share)
        stuck = self._deal_batches(plan, slots, only_due=False) or stuck
        for slot, lot in self._lots.items():
            slot.hand(lot)
        if stuck:
            self._pool.grow(waiting)

    def until_due(self, most_s: float) -> float:
        """Until a batch has waited long enough for more."""
        if not self._hands.gathered or self._plan is None:
            return most_s
        now = time.monotonic()
        left = [self._due(self._plan, step, rows) - now for (step, _), rows in self._hands.batches.items()]
        return min([most_s, *(seconds for seconds in left if seconds > 0)])

    def _deal_from(self, line: deque[Item], plan: Plan, slots: list[Slot], share: int) -> bool:
        """From the front, as far as there is room. True when there is work that waits for a slot."""
        hands, fresh = self._hands, line is self._hands.fresh
        while line:
            item = line[0]
            if item.lost or not self._needs_call(item, fresh):
                line.popleft()
                continue
            step = plan.steps[item.step]
            most = most_together(item, step) if step.batch else 1
            expected_us = self._estimates.of(step.name)
            if most > 1:
                if fresh and not self._room_in_batch(item.step, most, expected_us, slots):
                    return True
                self._gather(line.popleft(), most, fresh)
                continue
            slow = expected_us >= SLOW_US
            if fresh and len(hands.busy) - self._in_batches >= (len(slots) if slow else _MOST_BUSY):
                return True
            if not item.started and (slow or item.delivery.deliveries > 1):
                if len(hands.starting) >= sum(not slot.pending and slot not in self._lots for slot in slots):
                    return True
                hands.starting.add(item)
                self._outbox.add(Start(item.delivery), "start", item)
            else:
                slot = self._find_room(slots, expected_us, slow, share)
                if slot is None:
                    return True
                hands.starting.discard(item)
                slot.load_us += expected_us
                self._lots.setdefault(slot, []).append(Batch(plan, [item]) if step.batch else item)
            line.popleft()
            if fresh:
                hands.take_up(item)
        return False

    def _find_room(self, slots: list[Slot], expected_us: int, alone: bool, share: int) -> Slot | None:
        """A slot for one more call; for one that is to be `alone`, a slot with nothing to do."""
        for slot in slots:
            lot = self._lots.get(slot)
            if alone:
                if not slot.pending and not lot:
                    return slot
            elif slot.load_us + expected_us <= BUDGET_US and (lot is None or len(lot) < share):
                return slot
        return None

    # Batches

    def _gather(self, item: Item, most: int, fresh: bool) -> None:
        if fresh:
            self._hands.take_up(item)
        self._hands.gather(item, most)
        self._in_batches += 1
        if fresh and item.step == 0 and item.delivery.deliveries == 1:
            self._in_batches += self._hands.gather_new(most)

    def _room_in_batch(self, step: int, most: int, expected_us: int, slots: list[Slot]) -> bool:
        """New ones are taken up only for a batch that some slot has room for."""
        rows = self._hands.batches.get((step, most))
        if rows is None or not rows.items:
            return self._find_slot(slots, expected_us) is not None
        if len(rows.items) < most:
            return True
        assert self._plan is not None
        self._deal_batches(self._plan, slots, only_due=True)
        return not self._hands.batches.get((step, most)) and self._find_slot(slots, expected_us) is not None

    def _deal_batches(self, plan: Plan, slots: list[Slot], *, only_due: bool) -> bool:
        """Those that are full or have waited; without `only_due` also those that nobody is on the way to.
        True when one waits for a slot.
        """
        if not self._hands.gathered:
            return False
        now, stuck = time.monotonic(), False
        nobody_comes = not only_due and len(self._hands.busy) <= self._in_batches
        for (step, most), rows in list(self._hands.batches.items()):
            while rows.items and (
                len(rows.items) >= most
                or (step == 0 and not only_due)
                or nobody_comes
                or now >= self._due(plan, step, rows)
            ):
                expected_us = self._estimates.of(plan.steps[step].name)
                slot = self._find_slot(slots, expected_us)
                if slot is None:
                    stuck = True
                    break
                items = self._hands.take_gathered(step, most, MOST_BYTES)
                if items:
                    slot.load_us += expected_us
                    self._lots.setdefault(slot, []).append(Batch(plan, items))
        return stuck

    def _find_slot(self, slots: list[Slot], expected_us: int) -> Slot | None:
        """One with nothing to do, or else, for a batch that does not take long, one with a single call.

        Not behind a call that is late: it would be recalled from there, and come back, and no slot would be
        made for it.
        """
        found, late_since = None, time.monotonic() - LATE_S
        for slot in slots:
            calls = len(slot.pending) + len(self._lots.get(slot, ()))
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

    def _due(self, plan: Plan, step: int, rows: Gathered) -> float:
        return rows.since + min(
            _LONGEST_GATHER_S, max(_GATHER_S, self._estimates.of(plan.steps[step].name) / 1e6)
        )
