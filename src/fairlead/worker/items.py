"""A message in the hands of a worker, with what is behind it in its stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from fairlead.model.delivery import Delivery
from fairlead.worker.plan import PipelinePlan, dump_carry, read_carry
from fairlead.worker.protocol import StepCall

_NONE: dict[str, bytes] = {}


class WorkItem:
    """`rest` is the run behind it: the later messages of its stream that came with the same claim, in order."""

    __slots__ = (
        "begun",
        "carry",
        "delivery",
        "done",
        "lost",
        "max_rows",
        "rest",
        "started",
        "step",
        "ticket",
    )

    def __init__(self, delivery: Delivery, rest: deque[Delivery] | None = None) -> None:
        self.delivery = delivery
        self.rest = rest
        #: Confirmed steps by name. Read from the carry when the item's turn comes.
        self.done: dict[str, bytes] = _NONE
        self.carry = b""
        self.step = 0
        self.ticket = 0
        self.started = False
        #: A step of it is done in these hands.
        self.begun = False
        #: How many may be in a batch with it, once some were too many; 0: as many as the step takes.
        self.max_rows = 0
        #: Somebody else may have it by now: whatever it still does changes nothing.
        self.lost = False

    @property
    def items(self) -> tuple[WorkItem, ...]:
        """Itself: what a slot is handed may also be a batch of them."""
        return (self,)

    @property
    def size(self) -> int:
        return self.delivery.message.size + len(self.carry)

    def prepare(self, plan: PipelinePlan) -> None:
        """Find its next step. Raises `CarryUnreadable`."""
        state = self.delivery.state
        if state is None or not state.carry:
            self.done, self.carry, self.step = _NONE, b"", 0
            return
        self.carry = state.carry
        self.done = read_carry(plan.name, state.carry)
        self.step = plan.next_step(self.done)

    def confirm(self, plan: PipelinePlan, name: str, value: bytes) -> bytes:
        """The carry that says this step is done too. Raises `CarryTooLarge`, and then nothing has changed."""
        done = {**self.done, name: value or b"null"}
        carry = dump_carry(plan.name, done)
        self.done, self.carry, self.step, self.max_rows, self.begun = (
            done,
            carry,
            plan.next_step(done),
            0,
            True,
        )
        return carry

    def call(self, ticket: int) -> StepCall:
        delivery, self.ticket = self.delivery, ticket
        message, state = delivery.message, delivery.state
        return StepCall(
            ticket,
            self.step,
            message.id,
            delivery.queue,
            message.payload,
            message.headers,
            message.stream,
            state.attempts if state is not None else 0,
            delivery.deliveries,
            message.enqueued_ms,
            self.carry,
        )


def in_runs(deliveries: Sequence[Delivery]) -> list[WorkItem]:
    """One item for each message that no stream orders, and for each stream of a claim one at the head of its
    run.
    """
    found: list[WorkItem] = []
    runs: dict[tuple[str, str], WorkItem] = {}
    for delivery in deliveries:
        stream = delivery.message.stream
        if not stream or not delivery.seq:
            found.append(WorkItem(delivery))
            continue
        head = runs.get((delivery.queue, stream))
        if head is None:
            runs[delivery.queue, stream] = head = WorkItem(delivery, deque())
            found.append(head)
        else:
            assert head.rest is not None
            head.rest.append(delivery)
    return found
