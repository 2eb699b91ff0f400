"""Operators' verbs, by id or by filter, without a lease token. A dry run shows what would change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from msgspec import Meta

from fairlead.fields import (
    DryRun,
    ErrorText,
    Filter,
    Ids,
    OptionalReason,
    PageLimit,
    QueueName,
    Reason,
    StreamName,
    lasting,
)
from fairlead.model.access import Right
from fairlead.model.durations import Duration
from fairlead.model.failure import FailureReason
from fairlead.model.views import MessageInfo, OperatorResult
from fairlead.request import Answer, Request, Room, verb

if TYPE_CHECKING:
    from fairlead.middleware.rights import Rights


class Operation(Request[Answer], frozen=True):
    """An audited operator's verb, which may select messages by id or filter.

    The command line makes `fairlead queue VERB` from every operation that selects by both.
    """

    audited = True
    slow = True
    #: The result for a message, and the state that a message must have, in the words of the command line.
    past: ClassVar[str] = ""
    #: The words in which a person is asked to confirm, if they differ from the name of the verb.
    act: ClassVar[str] = ""
    applies_to: ClassVar[str] = "in this queue"
    #: Whether the message is deleted, so that a person is asked first.
    final: ClassVar[bool] = False

    def authorize(self, rights: Rights) -> Request[Answer]:
        super().authorize(rights)
        for queue in self.queues():
            rights.need_for_filter(getattr(self, "filter", None), queue)
        return self


@verb("retry")
class Retry(Operation[OperatorResult], frozen=True):
    """Deliver again now, with a failure count of 0: dead messages, and messages that wait after a failure.

    With `keep_count`, only waiting messages are delivered, and their count stays.
    """

    past = "retried"
    applies_to = "dead or failed"
    right = Right.REDRIVE
    room = Room.WEIGHS

    queue: QueueName
    ids: Ids = None
    filter: Filter = None
    keep_count: Annotated[
        bool, Meta(description="Only messages that wait; their count of failures stays.")
    ] = False
    dry_run: DryRun = False


@verb("reset")
class Reset(Operation[OperatorResult], frozen=True):
    """Set the failure count of live messages to 0. They keep their place, their wait or their lease."""

    past = "reset"
    applies_to = "pending, active or waiting, with a count above 0"
    right = Right.ADMIN
    room = Room.FITS

    queue: QueueName
    ids: Ids = None
    filter: Filter = None
    dry_run: DryRun = False


@verb("drop")
class Drop(Operation[OperatorResult], frozen=True):
    """Delete messages permanently, whatever their state; a lease on them is revoked."""

    past = "dropped"
    final = True
    right = Right.ADMIN
    room = Room.FITS

    queue: QueueName
    ids: Ids = None
    filter: Filter = None
    dry_run: DryRun = False


@verb("done")
class Done(Operation[OperatorResult], frozen=True):
    """Complete messages by hand; a lease on them is revoked."""

    past = "completed"
    act = "complete"
    applies_to = "pending, active or waiting"
    final = True
    right = Right.ADMIN
    room = Room.FITS

    queue: QueueName
    ids: Ids = None
    filter: Filter = None
    dry_run: DryRun = False


@verb("bury")
class Bury(Operation[OperatorResult], frozen=True):
    """Move messages to the dead letters; a lease on them is revoked."""

    past = "buried"
    applies_to = "pending, active or waiting"
    right = Right.ADMIN
    room = Room.WEIGHS

    queue: QueueName
    ids: Ids = None
    filter: Filter = None
    error: ErrorText = "buried by an operator"
    reason: Reason = FailureReason.UNKNOWN
    dry_run: DryRun = False


@verb("hold")
class Hold(Operation[OperatorResult], frozen=True):
    """Keep messages waiting until `unhold`; a lease on them is revoked. In a stream they block later ones.

    With `reason`, such as `poison_message`, the messages get a record of the reason. The record counts no
    attempt, and a message that is held already gets it too.
    """

    past = "held"
    applies_to = "pending, active or waiting, and not held"
    right = Right.ADMIN
    room = Room.WEIGHS

    queue: QueueName
    ids: Ids = None
    filter: Filter = None
    error: ErrorText = ""
    reason: OptionalReason = None
    dry_run: DryRun = False


@verb("unhold")
class Unhold(Operation[OperatorResult], frozen=True):
    """Make held messages ready now."""

    past = "let go"
    applies_to = "held"
    right = Right.ADMIN
    room = Room.WEIGHS

    queue: QueueName
    ids: Ids = None
    filter: Filter = None
    dry_run: DryRun = False


@verb("fail")
class FailLeased(Operation[OperatorResult], frozen=True):
    """Fail leased messages as if their consumers had reported it; the leases are revoked."""

    past = "failed"
    applies_to = "active"
    right = Right.ADMIN
    room = Room.FITS

    queue: QueueName
    ids: Ids = None
    filter: Filter = None
    error: ErrorText = "failed by an operator"
    reason: Reason = FailureReason.UNKNOWN
    dry_run: DryRun = False


@verb("drain")
class Drain(Operation[list[MessageInfo]], frozen=True):
    """Remove ready messages and return them. No part of them is hidden, so the call needs the right to read
    payloads.
    """

    right = Right.ADMIN
    also_right = Right.READ_PAYLOAD
    room = Room.FITS

    queue: QueueName
    limit: PageLimit = 10_000


@verb("prune")
class Prune(Operation[OperatorResult], frozen=True):
    """Drop messages that have been dead, or done and retained, for longer than `older_than`."""

    right = Right.ADMIN
    room = Room.FITS

    queue: QueueName
    older_than: Annotated[Duration, lasting("Only messages that have been dead or done for so long.")] = "0s"
    which: Annotated[
        Literal["all", "done", "dead"],
        Meta(description="Dead letters, completed messages that are kept, or both."),
    ] = "all"
    dry_run: DryRun = False


@verb("release_stream")
class ReleaseStream(Operation[bool], frozen=True):
    """Let later messages of a stream pass the message that waits at its head; a repeated call also lets them
    pass the next one.

    Returns False if no message waits at its head.
    """

    right = Right.ADMIN
    room = Room.GROWS
    slow = False

    queue: QueueName
    stream: StreamName
