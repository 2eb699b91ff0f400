"""Which item gets a free slot, when some were started first and others have come back meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from selectors import SelectSelector
from typing import Any

from fairlead import Broker
from fairlead.worker.batches import Batch, Work, split
from fairlead.worker.dealing import Dealer
from fairlead.worker.estimates import Estimates
from fairlead.worker.hands import Hands
from fairlead.worker.items import Item
from fairlead.worker.job import Job
from fairlead.worker.outbox import Outbox
from fairlead.worker.plan import Plan
from fairlead.worker.pool import BUDGET_US, Pool
from tests.docs.pages import ROOT
from tests.worker.scene import QUEUE, push, runbook, step
from tests.worker.test_batches import batch


class Slot:
    """A slot whose process never begins a call, so that everything in it can be recalled."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.ready, self.retiring = plan, True, False
        self.pending: deque[Work] = deque()
        self.since = self.load_us = 0

    def hand(self, lot: Sequence[Work]) -> None:
        self.pending.extend(lot)

    def recall(self) -> list[Work]:
        recalled = list(self.pending)
        self.pending.clear()
        return recalled


class Dealing:
    """A dealer with one slot. `hands.next` is what waits for its next step."""

    def __init__(self, broker: Broker, *steps: Any, messages: int) -> None:
        job = Job.of(runbook(*steps), "worker", str(ROOT))
        self.plan = job.plan
        self.slot: Any = Slot(self.plan)
        self.hands, self.outbox, self.estimates = Hands(), Outbox(), Estimates()
        self.pool = Pool(job, 1, lambda news: None, self.hands.put_back, SelectSelector())
        self.pool.slots = [self.slot]
        self.dealer = Dealer(self.hands, self.pool, self.outbox, self.estimates, lambda item, fresh: True)
        push(broker, *({"n": n} for n in range(messages)))
        self.hands.claim(broker.claim(QUEUE, limit=messages))

    def deal(self) -> None:
        self.dealer.deal(self.plan, only_begun=False)

    def take_up(self) -> Item:
        item = self.hands.fresh.popleft()
        self.hands.take_up(item)
        return item

    def started(self) -> list[Item]:
        """Items whose start is on its way to the broker."""
        sent: list[Any] = []
        self.outbox.flush(sent.extend, may_wait=False)
        return [request.item for request in sent if request.purpose == "start"]

    def confirm_start(self, item: Item) -> None:
        item.started = True
        self.hands.next.appendleft(item)


def test_rows_that_come_back_do_not_get_before_one_that_the_free_slot_is_kept_for(broker: Broker) -> None:
    """Each of them needs a start and so a free slot of its own, and only the started one can use the slot."""
    dealing = Dealing(broker, batch("only"), messages=3)
    first, *others = (dealing.take_up() for _ in range(3))
    first.most = 1
    dealing.hands.next.append(first)
    dealing.deal()
    assert dealing.started() == [first]
    dealing.confirm_start(first)
    assert split(others)
    dealing.hands.put_back([Batch(dealing.plan, others)])
    dealing.deal()
    assert [work.items for work in dealing.slot.pending] == [[first]]
    assert list(dealing.hands.next) == others


def test_a_slot_is_kept_for_no_item_that_waits_in_a_batch(broker: Broker) -> None:
    """A changed pipeline may put a batch step where the item was started for a step of its own."""
    dealing = Dealing(broker, step("only", "noted"), messages=1)
    item = dealing.take_up()
    dealing.hands.next.append(item)
    dealing.deal()
    assert dealing.started() == [item]
    dealing.confirm_start(item)
    dealing.plan = Plan.of(runbook(batch("only")).pipelines["pipeline"])
    dealing.deal()
    assert [work.items for work in dealing.slot.pending] == [[item]]
    assert dealing.hands.starting == set()


def test_a_slot_that_everything_was_recalled_from_is_free(broker: Broker) -> None:
    dealing = Dealing(broker, step("only", "noted"), messages=3)
    for _ in range(5):
        dealing.estimates.saw("only", BUDGET_US // 3)
    dealing.deal()
    assert len(dealing.slot.pending) == 3
    dealing.pool.recall_all()
    assert not dealing.slot.pending
    dealing.deal()
    assert len(dealing.slot.pending) == 3
