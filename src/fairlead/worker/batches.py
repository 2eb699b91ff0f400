"""Which rows may go together into a call of a batch step.

A call that raises, dies or takes too long says nothing about any one of its rows. They come again in calls of
an eighth, until the guilty ones are alone: five calls for one of a thousand, and its neighbours have not
failed. Eighths and not halves because each of those calls may cost a process or a time limit, and repeats
what innocent rows have done already.

The same is done with what came back from elsewhere. A row that was handed out before and came back with no
word, as it does when its worker is killed, goes in a small batch, and alone from the third time on; then it
is started first, as a message of any other step is, so that its next death counts. Rows of a batch are not: a
kill would count a failure for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.model.failure import FailureReason
from fairlead.runbook.model import StepSpec
from fairlead.worker.items import WorkItem
from fairlead.worker.plan import NOTHING, PipelinePlan
from fairlead.worker.protocol import BatchCall

#: A batch ends early when its messages, with what they carry, have so many bytes together.
MAX_BATCH_BYTES = 16 * 1024 * 1024
_PARTS = 8
_CAME_BACK_PART = 32
_COSTLY = (FailureReason.POISON_MESSAGE, FailureReason.TIMEOUT_EXCEEDED)


class StepBatch:
    """Items whose next step is the same, for one call. To a slot it is what an item is."""

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
        return BatchCall(
            ticket,
            self.step,
            deliveries[0].queue,
            [message.id for message in messages],
            [message.payload for message in messages],
            [message.headers for message in messages],
            [message.stream for message in messages],
            [0 if (state := delivery.state) is None else state.attempts for delivery in deliveries],
            [item.done.get(self.previous, NOTHING) for item in self.items] if self.previous else [],
        )


#: What a slot is handed, and answers as one.
Work = WorkItem | StepBatch


def max_rows_with(item: WorkItem, step: StepSpec) -> int:
    """How large a batch with this item may be. Items with different answers do not go together."""
    delivery = item.delivery
    if item.max_rows:
        return min(item.max_rows, step.batch_size)
    if delivery.deliveries == 1:
        return step.batch_size
    state = delivery.state
    attempts = 0 if state is None else state.attempts
    if attempts and state is not None and state.reason in _COSTLY:
        return 1  # it would cost its neighbours a process or a time limit again
    came_back = delivery.deliveries - 1 - attempts
    if came_back < 1:
        return step.batch_size
    return max(1, step.batch_size // _CAME_BACK_PART) if came_back == 1 else 1


def split(items: Sequence[WorkItem]) -> bool:
    """Let them come again in smaller batches. False for one that is alone, and so is guilty."""
    if len(items) == 1:
        return False
    part = -(-len(items) // _PARTS)
    for item in items:
        item.max_rows = part
    return True
