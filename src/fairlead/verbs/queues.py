"""Creating, changing, pausing, purging, deleting and listing queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from fairlead.fields import NewQueueName, QueueName, QueuePrefix
from fairlead.model.access import Right
from fairlead.model.views import QueueInfo
from fairlead.request import Request, Room, details_of, verb

if TYPE_CHECKING:
    from fairlead.middleware.rights import Rights


@verb("create_queue")
class CreateQueue(Request[QueueInfo], frozen=True):
    """Create a queue and its dead-letter queue `<name>.dlq`."""

    right = Right.ADMIN
    audited = True
    room = Room.GROWS
    queue_field = "name"
    slow = True

    name: NewQueueName
    options: Annotated[Mapping[str, Any], Meta(description="See [queue options](queue-options.md).")] = {}

    def audit_details(self) -> Mapping[str, object]:
        return details_of(self.options)


@verb("update_queue")
class UpdateQueue(Request[QueueInfo], frozen=True):
    """Change options of a queue; the others stay."""

    right = Right.ADMIN
    audited = True
    repeatable = True
    room = Room.GROWS
    queue_field = "name"
    slow = True

    name: QueueName
    options: Annotated[Mapping[str, Any], Meta(description="See [queue options](queue-options.md).")] = {}

    def audit_details(self) -> Mapping[str, object]:
        return details_of(self.options)


@verb("pause")
class Pause(Request[None], frozen=True):
    """Stop deliveries from a queue; enqueues and settles continue."""

    right = Right.ADMIN
    audited = True
    repeatable = True
    room = Room.FITS
    queue_field = "name"

    name: QueueName


@verb("resume")
class Resume(Request[None], frozen=True):
    """Resume deliveries from a paused queue."""

    right = Right.ADMIN
    audited = True
    repeatable = True
    room = Room.FITS
    queue_field = "name"

    name: QueueName


@verb("purge")
class Purge(Request[int], frozen=True):
    """Drop every message that is ready or waiting; leased and retained messages stay. Returns their number."""

    right = Right.ADMIN
    audited = True
    room = Room.FITS
    queue_field = "name"
    slow = True

    name: QueueName


@verb("delete_queue")
class DeleteQueue(Request[None], frozen=True):
    """Delete a queue, its `.dlq` and all their messages."""

    right = Right.ADMIN
    audited = True
    room = Room.FITS
    queue_field = "name"
    slow = True

    name: QueueName


@verb("queues")
class ListQueues(Request[list[QueueInfo]], frozen=True):
    """All queues whose names begin with `prefix`, sorted by name."""

    repeatable = True

    prefix: QueuePrefix = ""

    def visible(self, answer: list[QueueInfo], rights: Rights) -> list[QueueInfo]:
        return [queue for queue in answer if rights.sees(queue.name)]
