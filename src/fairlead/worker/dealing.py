"""Which item goes to which slot, and which must be started first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from fairlead.model.settle import Start
from fairlead.worker.estimates import SLOW_US, Estimates
from fairlead.worker.hands import Hands
from fairlead.worker.items import Item
from fairlead.worker.outbox import Outbox
from fairlead.worker.plan import Plan
from fairlead.worker.pool import BUDGET_US, Pool
from fairlead.worker.slots import Slot

_MOST_BUSY = 4000


class Dealer:
    """`needs_call` finds the next step of an item, fresh or not, and settles it itself when there is nothing to call."""

    def __init__(self, hands: Hands, pool: Pool, outbox: Outbox, estimates: Estimates, needs_call: Callable[[Item, bool], bool]) -> None:
        self._hands = hands
        self._pool = pool
        self._outbox = outbox
        self._estimates = estimates
        self._needs_call = needs_call
        self._lots: dict[Slot, list[Item]] = {}

    def deal(self, plan: Plan, *, only_begun: bool) -> None:
        """First those that wait for their next step, then new ones."""
        hands = self._hands
        waiting = len(hands.next) + (0 if only_begun else len(hands.fresh))
        if not waiting:
            return
        slots = self._pool.open_slots()
        share = -(-waiting // max(1, len(slots)))
        self._lots = {}
        stuck = self._deal_from(hands.next, plan, slots, share)
        if not stuck and not only_begun:
            stuck = self._deal_from(hands.fresh, plan, slots, share)
        for slot, items in self._lots.items():
            slot.hand(items)
        if stuck:
            self._pool.grow(waiting)

    def _deal_from(self, line: deque[Item], plan: Plan, slots: list[Slot], share: int) -> bool:
        """From the front, as far as there is room. True when there is work that waits for a slot."""
        hands, fresh = self._hands, line is self._hands.fresh
        while line:
            item = line[0]
            if item.lost or not self._needs_call(item, fresh):
                line.popleft()
                continue
            expected_us = self._estimates.of(plan.steps[item.step].name)
            slow = expected_us >= SLOW_US
            if fresh and len(hands.busy) >= (len(slots) if slow else _MOST_BUSY):
                return True
            if not item.started and (slow or item.delivery.deliveries > 1):
                if len(hands.starting) >= sum(not slot.pending and slot not in self._lots for slot in slots):
                    return True
                hands.starting.add(item)
                self._outbox.say(Start(item.delivery), "start", item)
            else:
                slot = self._find_room(slots, expected_us, slow, share)
                if slot is None:
                    return True
                hands.starting.discard(item)
                slot.load_us += expected_us
                self._lots.setdefault(slot, []).append(item)
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
