"""Staged writes: chunks of messages that become visible together.

A queue and a token identify a write: the same token for another queue is another write. A write belongs to
its queue, not to the key that made it; otherwise a new key would publish again what was published. Staging
dead letters needs the right quarantine, everything else the right produce.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from fairlead.errors import Forbidden
from fairlead.fields import Messages, QueueName, WriteToken, lasting
from fairlead.model.access import Right
from fairlead.model.durations import Duration
from fairlead.model.limits import MAX_STAGING_NAME_BYTES, MAX_WRITE_CHUNKS
from fairlead.model.names import check_queue_name
from fairlead.model.staging import Dead, PublishResult, StagedWrite, StageResult
from fairlead.request import Request, Room, verb

if TYPE_CHECKING:
    from fairlead.middleware.rights import Rights


@verb("staging.stage")
class StagingStage(Request[StageResult], frozen=True):
    """Store messages that stay invisible until `publish`; staging the same chunk again replaces the first.

    A write that is never published is dropped once `ttl` has passed since its last chunk. With
    `skip_invalid`, invalid messages are left out and listed in `refused`; otherwise one of them refuses the
    chunk. The queue's hook runs now, not at publish. With `dead`, a (reason, error) for all messages or one
    for each, they become dead letters, as with `quarantine`. A chunk of a write that is already published is
    checked, and not stored.
    """

    columns = "messages"
    room = Room.WEIGHS
    repeatable = True

    token: WriteToken
    chunk: Annotated[
        str,
        Meta(description="Names the chunk, in its write.", min_length=1, max_length=MAX_STAGING_NAME_BYTES),
    ]
    queue: QueueName
    messages: Messages
    ttl: Annotated[
        Duration,
        lasting("How long the write is kept after its last chunk, unless it is published.", at_least_ms=1),
    ] = "1d"
    skip_invalid: Annotated[
        bool, Meta(description="Leave bad messages out instead of refusing the chunk.")
    ] = False
    dead: Annotated[
        Dead | Sequence[Dead] | None,
        Meta(description="(reason, error) of dead letters, for all messages or for each."),
    ] = None

    def authorize(self, rights: Rights) -> StagingStage:
        rights.need(Right.PRODUCE if self.dead is None else Right.QUARANTINE, self.queue)
        return self


@verb("staging.publish")
class StagingPublish(Request[PublishResult], frozen=True):
    """Turn these chunks into messages, in this order, all of them or none; other chunks of the write are
    dropped.

    Returns when all messages exist, synced whatever the durability is. Publishing the same write again within
    seven days does nothing, and answers `already`. Once begun it cannot fail: if this call is interrupted,
    the broker finishes it. Raises, with nothing changed, `StagedChunkMissing`, `StagedQueueGone`,
    `QueueFull`, `TooManyLanes`, `StoreFull`.
    """

    repeatable = True
    room = Room.WEIGHS
    slow = True

    token: WriteToken
    queue: QueueName
    chunks: Annotated[Sequence[str], Meta(description="The chunks, in order.", max_length=MAX_WRITE_CHUNKS)]

    def authorize(self, rights: Rights) -> StagingPublish:
        _need_for_write(rights, self.token, self.queue)
        return self


@verb("staging.discard")
class StagingDiscard(Request[int], frozen=True):
    """Drop a write that is not published. Returns the number of its chunks."""

    audited = True
    repeatable = True
    room = Room.FITS
    slow = True

    token: WriteToken
    queue: QueueName

    def authorize(self, rights: Rights) -> StagingDiscard:
        _need_for_write(rights, self.token, self.queue)
        return self

    def audit_details(self) -> Mapping[str, object]:
        return {"token": self.token}


@verb("staging.list")
class StagingList(Request[list[StagedWrite]], frozen=True):
    """Writes in the order of their first chunks: staged writes, and the last thousand published ones that are
    remembered.
    """

    repeatable = True


def _need_for_write(rights: Rights, token: str, queue: str) -> None:
    """Require the right to write to the queue, and for each kind of message in the write the right to that
    kind.
    """
    check_queue_name(queue)
    if not (rights.may(Right.PRODUCE, queue) or rights.may(Right.QUARANTINE, queue)):
        raise Forbidden(Right.PRODUCE, queue)
    for dead in sorted(rights.kinds_of_write(token, queue)):
        rights.need(Right.QUARANTINE if dead else Right.PRODUCE, queue)
