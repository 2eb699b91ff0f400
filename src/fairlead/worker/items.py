"""What a slot is given: a message of the worker, or a batch of messages for one call of a batch step.

A call that raises, dies or exceeds its time limit says nothing about a single row. Its rows come again in
calls of an eighth of the size until the guilty rows are alone: five calls for one bad row of a thousand, and
its neighbours have not failed. Eighths and not halves, because each of those calls may cost a process or a
time limit, and repeats what innocent rows have done.

The same rule covers rows that an earlier worker left behind. A row that was delivered before and came back
without an outcome, as when its worker is killed, goes in a small batch, and alone from its third delivery on.
Then it is started first, like a message of a single step, so that its next death counts. Rows of a batch are
not started: a kill would count a failure for all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from fairlead.model.delivery import Delivery
from fairlead.model.failure import FailureReason
from fairlead.runbook.model import StepSpec
from fairlead.worker.plan import NOTHING, PipelinePlan, dump_carry, read_carry
from fairlead.worker.protocol import BatchCall, StepCall

#: A batch ends early when its messages and their carries have this many bytes together.
MAX_BATCH_BYTES = 16 * 1024 * 1024
_SPLIT_PARTS = 8
_SMALL_BATCH_PARTS = 32
_COSTLY_REASONS = (FailureReason.POISON_MESSAGE, FailureReason.TIMEOUT_EXCEEDED)
_NO_STEPS: dict[str, bytes] = {}


class WorkItem:
    """A message that the worker holds.

    `rest`: the later messages of its stream from the same claim, in order; None for a message without a
    stream.
    """

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
        #: What each confirmed step returned, by its name. Read from the carry by `prepare`.
        self.done: dict[str, bytes] = _NO_STEPS
        self.carry = b""
        #: The next step, by its position in the pipeline.
        self.step = 0
        self.ticket = 0
        #: Whether its `Start` is confirmed or has been sent.
        self.started = False
        #: Whether this worker has completed a step of it.
        self.begun = False
        #: The most rows of a batch with this item, after a larger batch ended badly; 0: the step's batch
        #: size.
        self.max_rows = 0
        #: Whether its lease is lost: another consumer may have it, and its outcome no longer counts.
        self.lost = False

    @property
    def items(self) -> tuple[WorkItem, ...]:
        """The item itself, in the form that a batch has."""
        return (self,)

    @property
    def size(self) -> int:
        return self.delivery.message.size + len(self.carry)

    def prepare(self, plan: PipelinePlan) -> None:
        """Find the next step from the carry. Raises `CarryUnreadable`."""
        state = self.delivery.state
        if state is None or not state.carry:
            self.done, self.carry, self.step = _NO_STEPS, b"", 0
            return
        self.carry = state.carry
        self.done = read_carry(plan.name, state.carry)
        self.step = plan.next_step(self.done)

    def confirm(self, plan: PipelinePlan, name: str, value: bytes) -> bytes:
        """Add a completed step and return the new carry. Raises `CarryTooLarge` and then changes nothing."""
        done = {**self.done, name: value or NOTHING}
        carry = dump_carry(plan.name, done)
        self.done, self.carry, self.step = done, carry, plan.next_step(done)
        self.max_rows, self.begun = 0, True
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


class StepBatch:
    """Items with the same next step, for one call. A slot treats it as it does a single item."""

    __slots__ = ("items", "previous", "step", "ticket")

    def __init__(self, plan: PipelinePlan, items: list[WorkItem]) -> None:
        self.items = items
        self.step = items[0].step
        self.previous = plan.steps[self.step - 1].name if self.step else ""
        self.ticket = 0

    def call(self, ticket: int) -> BatchCall:
        self.ticket = ticket
        deliveries = [item.delivery for item in self.items]
        messages = [delivery.message for delivery in deliveries]
        values: list[bytes] = []
        if self.previous:
            values = [item.done.get(self.previous, NOTHING) for item in self.items]
        return BatchCall(
            ticket,
            self.step,
            deliveries[0].queue,
            [message.id for message in messages],
            [message.payload for message in messages],
            [message.headers for message in messages],
            [message.stream for message in messages],
            [_attempts(delivery) for delivery in deliveries],
            values,
        )


#: What a slot is given, and answers as one.
Work = WorkItem | StepBatch


def _attempts(delivery: Delivery) -> int:
    state = delivery.state
    return 0 if state is None else state.attempts


def group_streams(deliveries: Sequence[Delivery]) -> list[WorkItem]:
    """One item for each message without a stream, and one for each stream, with the rest of its run behind
    it.
    """
    found: list[WorkItem] = []
    heads: dict[tuple[str, str], WorkItem] = {}
    for delivery in deliveries:
        stream = delivery.message.stream
        if not stream or not delivery.seq:
            found.append(WorkItem(delivery))
            continue
        head = heads.get((delivery.queue, stream))
        if head is None:
            heads[delivery.queue, stream] = head = WorkItem(delivery, deque())
            found.append(head)
        else:
            assert head.rest is not None
            head.rest.append(delivery)
    return found


def max_rows_with(item: WorkItem, step: StepSpec) -> int:
    """The most rows of a batch with this item. Only items with the same answer go together."""
    delivery = item.delivery
    if item.max_rows:
        return min(item.max_rows, step.batch_size)
    if delivery.deliveries == 1:
        return step.batch_size
    state, attempts = delivery.state, _attempts(delivery)
    if attempts and state is not None and state.reason in _COSTLY_REASONS:
        return 1  # it may cost its neighbours a process or a time limit again
    came_back = delivery.deliveries - 1 - attempts
    if came_back < 1:
        return step.batch_size
    return max(1, step.batch_size // _SMALL_BATCH_PARTS) if came_back == 1 else 1


def split(items: Sequence[WorkItem]) -> bool:
    """Make the items come again in smaller batches. Returns False for a single item, which is the guilty one."""
    if len(items) == 1:
        return False
    part = -(-len(items) // _SPLIT_PARTS)
    for item in items:
        item.max_rows = part
    return True
