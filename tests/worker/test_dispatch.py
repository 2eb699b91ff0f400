"""Which item gets a free slot when some items were started first and others have come back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from selectors import SelectSelector
from typing import Any

from fairlead import Broker
from fairlead.worker.dispatch import Dispatcher
from fairlead.worker.estimates import Estimates
from fairlead.worker.in_flight import InFlight
from fairlead.worker.items import StepBatch, Work, WorkItem, split
from fairlead.worker.job import Job
from fairlead.worker.outbox import Outbox
from fairlead.worker.plan import PipelinePlan
from fairlead.worker.pool import BUDGET_US, SlotPool
from tests.docs.pages import ROOT
from tests.worker.scene import QUEUE, push, runbook, step
from tests.worker.test_batches import batch


class Slot:
    """A slot whose process never begins a call, so that all its calls can be recalled."""

    def __init__(self, plan: PipelinePlan) -> None:
        self.plan, self.ready, self.retiring = plan, True, False
        self.pending: deque[Work] = deque()
        self.since = self.load_us = 0

    def give(self, works: Sequence[Work]) -> None:
        self.pending.extend(works)

    def recall(self) -> list[Work]:
        recalled = list(self.pending)
        self.pending.clear()
        return recalled


class Dispatching:
    """A dispatcher with one slot."""

    def __init__(self, broker: Broker, *steps: Any, messages: int) -> None:
        job = Job.of(runbook(*steps), "worker", str(ROOT))
        self.plan = job.plan
        self.slot: Any = Slot(self.plan)
        self.in_flight, self.outbox, self.estimates = InFlight(), Outbox(), Estimates()
        self.pool = SlotPool(job, 1, lambda event: None, self.in_flight.put_back, SelectSelector())
        self.pool.slots = [self.slot]
        self.dispatcher = Dispatcher(
            self.in_flight, self.pool, self.outbox, self.estimates, lambda item, fresh: True
        )
        push(broker, *({"n": n} for n in range(messages)))
        self.in_flight.claim(broker.claim(QUEUE, limit=messages))

    def dispatch(self) -> None:
        self.dispatcher.dispatch(self.plan, only_begun=False)

    def take_up(self) -> WorkItem:
        item = self.in_flight.fresh.popleft()
        self.in_flight.take_up(item)
        return item

    def started(self) -> list[WorkItem]:
        """Items whose start was sent."""
        sent: list[Any] = []
        self.outbox.flush(sent.extend, may_wait=False)
        return [request.item for request in sent if request.purpose == "start"]

    def confirm_start(self, item: WorkItem) -> None:
        item.started = True
        self.in_flight.next.appendleft(item)


def test_returned_rows_stay_behind_the_item_for_which_a_slot_is_kept(broker: Broker) -> None:
    """Each returned row needs a start and so a free slot of its own; only the started item can use the slot."""
    dispatching = Dispatching(broker, batch("only"), messages=3)
    first, *others = (dispatching.take_up() for _ in range(3))
    first.max_rows = 1
    dispatching.in_flight.next.append(first)
    dispatching.dispatch()
    assert dispatching.started() == [first]
    dispatching.confirm_start(first)
    assert split(others)
    dispatching.in_flight.put_back([StepBatch(dispatching.plan, others)])
    dispatching.dispatch()
    assert [work.items for work in dispatching.slot.pending] == [[first]]
    assert list(dispatching.in_flight.next) == others


def test_no_slot_is_kept_for_an_item_that_waits_in_a_batch(broker: Broker) -> None:
    """A changed pipeline may have a batch step where the item was started for a single step."""
    dispatching = Dispatching(broker, step("only", "noted"), messages=1)
    item = dispatching.take_up()
    dispatching.in_flight.next.append(item)
    dispatching.dispatch()
    assert dispatching.started() == [item]
    dispatching.confirm_start(item)
    dispatching.plan = PipelinePlan.of(runbook(batch("only")).pipelines["pipeline"])
    dispatching.dispatch()
    assert [work.items for work in dispatching.slot.pending] == [[item]]
    assert dispatching.in_flight.starting == set()


def test_a_slot_whose_calls_were_all_recalled_is_free(broker: Broker) -> None:
    dispatching = Dispatching(broker, step("only", "noted"), messages=3)
    for _ in range(5):
        dispatching.estimates.record("only", BUDGET_US // 3)
    dispatching.dispatch()
    assert len(dispatching.slot.pending) == 3
    dispatching.pool.recall_all()
    assert not dispatching.slot.pending
    dispatching.dispatch()
    assert len(dispatching.slot.pending) == 3
