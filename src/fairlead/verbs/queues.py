"""Making, changing, pausing, emptying, deleting and listing queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from fairlead.fields import NewQueueName, QueueName, QueuePrefix
from fairlead.model.access import Right
from fairlead.model.views import QueueInfo
from fairlead.request import Request, Room, details_of, verb

if TYPE_CHECKING:
    from fairlead.broker.transaction import Transaction
    from fairlead.middleware.rights import Rights


@verb("create_queue")
class CreateQueue(Request[QueueInfo], frozen=True):
    """Make a queue and its dead-letter queue `<name>.dlq`."""

    right = Right.ADMIN
    audited = True
    room = Room.GROWS
    queue_field = "name"
    slow = True

    name: NewQueueName
    options: Annotated[Mapping[str, Any], Meta(description="See [queue options](queue-options.md).")] = {}

    def run(self, tx: Transaction) -> QueueInfo:
        from fairlead.broker.queues import create_queue

        return create_queue(tx.core, self.name, self.options)

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

    def run(self, tx: Transaction) -> QueueInfo:
        from fairlead.broker.queues import update_queue

        return update_queue(tx.core, self.name, self.options)

    def audit_details(self) -> Mapping[str, object]:
        return details_of(self.options)


@verb("pause")
class Pause(Request[None], frozen=True):
    """Stop delivering from a queue; enqueues and settles go on."""

    right = Right.ADMIN
    audited = True
    repeatable = True
    room = Room.FITS
    queue_field = "name"

    name: QueueName

    def run(self, tx: Transaction) -> None:
        from fairlead.broker.queues import set_paused

        set_paused(tx.core, self.name, True)


@verb("resume")
class Resume(Request[None], frozen=True):
    """Deliver from a paused queue again."""

    right = Right.ADMIN
    audited = True
    repeatable = True
    room = Room.FITS
    queue_field = "name"

    name: QueueName

    def run(self, tx: Transaction) -> None:
        from fairlead.broker.queues import set_paused

        set_paused(tx.core, self.name, False)


@verb("purge")
class Purge(Request[int], frozen=True):
    """Drop every message that is ready or waiting; leased and retained messages stay. Returns the count."""

    right = Right.ADMIN
    audited = True
    room = Room.FITS
    queue_field = "name"
    slow = True

    name: QueueName

    def run(self, tx: Transaction) -> int:
        from fairlead.broker.queues import purge

        return purge(tx.core, self.name)


@verb("delete_queue")
class DeleteQueue(Request[None], frozen=True):
    """Delete a queue, its `.dlq` and all their messages."""

    right = Right.ADMIN
    audited = True
    room = Room.FITS
    queue_field = "name"
    slow = True

    name: QueueName

    def run(self, tx: Transaction) -> None:
        from fairlead.broker.queues import delete_queue

        delete_queue(tx.core, self.name)


@verb("queues")
class ListQueues(Request[list[QueueInfo]], frozen=True):
    """All queues whose names begin with `prefix`, in order of their names."""

    repeatable = True

    prefix: QueuePrefix = ""

    def run(self, tx: Transaction) -> list[QueueInfo]:
        from fairlead.broker.queues import list_queues

        return list_queues(tx.core, self.prefix)

    def visible(self, answer: list[QueueInfo], rights: Rights) -> list[QueueInfo]:
        return [queue for queue in answer if rights.sees(queue.name)]
