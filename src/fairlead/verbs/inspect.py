"""Reading queues and messages without changing them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from fairlead.fields import AnyMessageId, PageLimit, QueueName
from fairlead.model.limits import COUNT_LIMIT, MAX_KEY_BYTES, SCAN_LIMIT
from fairlead.model.views import Explanation, FailureMetrics, MessageInfo, QueueStats
from fairlead.request import Request, verb

if TYPE_CHECKING:
    from fairlead.middleware.rights import Rights


@verb("stats")
class Stats(Request[QueueStats], frozen=True):
    """Exact counts. `keys=True` adds weight, deficit and pending of up to `key_limit` active keys."""

    repeatable = True
    slow = True

    queue: QueueName
    keys: Annotated[bool, Meta(description="Add the fairness keys that are active.")] = False
    key_limit: Annotated[int, Meta(description="Most keys.", ge=1, le=COUNT_LIMIT)] = 1000

    def visible(self, answer: QueueStats, rights: Rights) -> QueueStats:
        """All queues share throttle keys, so only a caller who sees all queues sees them."""
        return answer if rights.sees_everything() else replace(answer, throttles=(), closed_throttles=())


@verb("find")
class Find(Request[MessageInfo], frozen=True):
    """Find a message by its full id or a unique prefix; within a given queue, also by its last characters, or
    the first message of a stream as `stream:NAME`.
    """

    repeatable = True
    shows_messages = True
    slow = True

    message_id: AnyMessageId
    queue: Annotated[str | None, Meta(description="Look only in this queue.")] = None

    def authorize(self, rights: Rights) -> Find:
        return msgspec.structs.replace(self, message_id=rights.visible_id(self.message_id, self.queue))

    def visible(self, answer: MessageInfo, rights: Rights) -> MessageInfo:
        return rights.readable_parts([answer])[0]

    def messages_shown(self, answer: MessageInfo) -> list[MessageInfo]:
        return [answer]


@verb("peek")
class Peek(Request[list[MessageInfo]], frozen=True):
    """Show messages without claiming them."""

    repeatable = True
    shows_messages = True
    slow = True

    queue: QueueName
    limit: PageLimit = 10
    where: Annotated[str, Meta(description="Which messages: ready, waiting, leased or done.")] = "ready"
    key: Annotated[
        str | None,
        Meta(description="Only messages of this fairness key.", min_length=1, max_length=MAX_KEY_BYTES),
    ] = None
    after: Annotated[str | None, Meta(description="Go on behind this message.")] = None

    def authorize(self, rights: Rights) -> Peek:
        super().authorize(rights)
        return msgspec.structs.replace(self, after=rights.visible_place(self.after))

    def visible(self, answer: list[MessageInfo], rights: Rights) -> list[MessageInfo]:
        return rights.readable_parts(answer)


@verb("failure_metrics")
class GetFailureMetrics(Request[FailureMetrics], frozen=True):
    """Attempts, reasons, scheduled retries, poison candidates, and up to `streams` blocked streams."""

    repeatable = True
    slow = True

    queue: QueueName
    streams: Annotated[int, Meta(description="How many blocked streams to list.", ge=1, le=SCAN_LIMIT)] = 100


@verb("explain")
class Explain(Request[Explanation], frozen=True):
    """Explain why a message is not being delivered."""

    repeatable = True
    slow = True

    message_id: AnyMessageId
    queue: Annotated[str | None, Meta(description="Look only in this queue.")] = None

    def authorize(self, rights: Rights) -> Explain:
        return msgspec.structs.replace(self, message_id=rights.visible_id(self.message_id, self.queue))


@verb("explain_queue")
class ExplainQueue(Request[Explanation], frozen=True):
    """Explain why a queue delivers nothing, or less than expected."""

    repeatable = True
    queue_field = "name"
    slow = True

    name: QueueName
