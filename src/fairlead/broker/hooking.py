"""Where the queue's Lua hooks come in: before the lock is taken, on what was read; what counts is checked
again under it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairlead.broker.core import Core
from fairlead.broker.queue_state import QueueState
from fairlead.decide.retry import HookAnswer
from fairlead.engine import hook_calls
from fairlead.hooks import EnqueueCall, FailureCall
from fairlead.model.checks import CheckedMessage, by_column, by_row
from fairlead.model.failure import FailureReason
from fairlead.model.ids import show_id
from fairlead.model.lease import Lease
from fairlead.model.message import Message, MessageState, unpack_headers

#: The answer to one failed delivery: (message id, claim id) names it.
Answers = dict[tuple[bytes, int], HookAnswer]
#: Message id to the (lane, weight) that `on_enqueue` gave to a dead letter on its way back.
Lanes = dict[bytes, tuple[bytes, int]]


def has_enqueue_hook(queue: QueueState) -> bool:
    return bool(queue.config.on_enqueue)


def has_failure_hook(queue: QueueState | None) -> bool:
    return queue is not None and bool(queue.config.on_failure)


def ask_on_enqueue(
    core: Core, queue_id: int, queue: str, checked: list[CheckedMessage]
) -> list[CheckedMessage]:
    return by_row(hook_calls.ask_on_enqueue(core.hooks, queue_id, queue, by_column(checked)))


def ask_on_redrive(core: Core, queue_id: int, queue: str, messages: Sequence[Message]) -> Lanes:
    """A redrive goes through the enqueue flow of its queue."""
    decisions = core.hooks.on_enqueue(
        queue_id,
        queue,
        [EnqueueCall(unpack_headers(message.headers), len(message.payload)) for message in messages],
    )
    return {
        message.id: hook_calls.decided_lane(message.lane, message.weight, decision)
        for message, decision in zip(messages, decisions, strict=True)
    }


class FailedTry:
    """A failure that a hook is asked about."""

    __slots__ = ("error", "headers", "lease", "progress", "queue", "reason", "state")

    def __init__(
        self,
        lease: Lease,
        queue: QueueState,
        message: Message,
        state: MessageState | None,
        error: str,
        reason: FailureReason,
        progress: int,
    ) -> None:
        self.lease = lease
        self.queue = queue
        self.headers = unpack_headers(message.headers)
        self.state = state
        self.error = error
        self.reason = reason
        self.progress = progress

    def call(self) -> FailureCall:
        attempts, progress = (self.state.attempts, self.state.progress) if self.state else (0, 0)
        return FailureCall(
            self.headers,
            show_id(self.lease.id),
            attempts + 1,
            self.error,
            self.reason.word,
            progress | self.progress,
        )


def ask_on_failure(core: Core, tries: Iterable[FailedTry]) -> Answers:
    """One batch per queue. A call that failed or was bypassed gives no answer: the policies decide."""
    by_queue: dict[int, list[FailedTry]] = {}
    for attempt in tries:
        by_queue.setdefault(attempt.queue.queue_id, []).append(attempt)
    answers: Answers = {}
    for queue_id, asked in by_queue.items():
        decisions = core.hooks.on_failure(
            queue_id, asked[0].queue.name, [attempt.call() for attempt in asked]
        )
        for attempt, decision in zip(asked, decisions, strict=True):
            answer = hook_calls.to_answer(decision)
            if answer is not None:
                answers[attempt.lease.id, attempt.lease.claim_id] = answer
    return answers
