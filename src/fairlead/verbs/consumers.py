"""Durable consumers and their numbered claims.

A durable consumer belongs to its queue, not to the key that made it, because it outlives keys. `generation`
is what `register` returned; a later registration fences all earlier ones. Claims, recorded outcomes, choices
and closes are synced before the answer, whatever the durability of the broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from fairlead.fields import (
    ClaimNumber,
    ConsumerName,
    Generation,
    MaxPerStream,
    NextNumber,
    QueueName,
    Slice,
    Slices,
    Wait,
    lasting,
)
from fairlead.model.access import Right
from fairlead.model.consumer import CloseResult, ConsumerInfo, DefaultOutcome, NumberedClaim, SliceBegun
from fairlead.model.delivery import Delivery
from fairlead.model.durations import Duration
from fairlead.model.limits import (
    MAX_ANSWER_BYTES,
    MAX_BATCH_MESSAGES,
    MAX_CLAIM,
    MAX_CONSUMER_TTL_MS,
    MAX_PART_BYTES,
    MIN_CONSUMER_TTL_MS,
)
from fairlead.model.settle import Complete, Extend, Fail, Release, Start
from fairlead.request import Request, Room, patience_of, verb

if TYPE_CHECKING:
    from fairlead.middleware.rights import Rights


@verb("consumers.register")
class ConsumersRegister(Request[ConsumerInfo], frozen=True):
    """Register the consumer, or take it over with its open claim: from now on only the new generation counts.

    A consumer without a call for its time to live loses that claim. `default_outcome` is what a close does
    with messages that have no outcome: "complete", or "release" back to their places.
    """

    right = Right.CONSUME
    repeatable = True
    room = Room.WEIGHS

    name: ConsumerName
    queue: QueueName
    ttl: Annotated[
        Duration,
        lasting(
            "How long the consumer may be silent before its claim is let go.",
            at_least_ms=MIN_CONSUMER_TTL_MS,
            at_most_ms=MAX_CONSUMER_TTL_MS,
        ),
    ] = "7d"
    default_outcome: Annotated[
        DefaultOutcome, Meta(description="What a close does with messages that have no outcome.")
    ] = "complete"


@verb("consumers.claim")
class ConsumersClaim(Request[NumberedClaim], frozen=True):
    """Take the next claim, waiting up to `wait` for the first message; the number of the open claim returns
    the same claim again.

    Until it is closed, its messages do not change: no other caller gets, settles or moves them. `max_bytes`
    is exceeded by a few messages at most. `up_to` is a place, as `ceiling` returns it: nothing after it is
    taken. A stream's run is taken whole unless `max_per_stream` ends it earlier, so that more streams fit.
    """

    right = Right.CONSUME
    room = Room.LEASES
    repeatable = True
    slow = True

    name: ConsumerName
    queue: QueueName
    generation: Generation
    number: NextNumber
    limit: Annotated[int, Meta(description="Most messages.", ge=1, le=MAX_CLAIM)] = 10_000
    max_bytes: Annotated[
        int, Meta(description="Most bytes, exceeded by a few messages at most.", ge=1, le=MAX_ANSWER_BYTES)
    ] = 64 * 1024 * 1024
    wait: Wait = None
    up_to: Annotated[
        int | None, Meta(description="A place, as `ceiling` returns it: nothing behind it is taken.", ge=0)
    ] = None
    max_per_stream: MaxPerStream = MAX_CLAIM

    def patience_ms(self) -> int:
        return patience_of(self.wait)

    def visible(self, answer: NumberedClaim, rights: Rights) -> NumberedClaim:
        """A caller that lost its right while it waited learns nothing; the claim stays with its consumer."""
        rights.need(Right.CONSUME, self.queue)
        return answer


@verb("consumers.read_pages")
class ConsumersRead(Request[Iterator[Sequence[Delivery]]], frozen=True):
    """The messages of the open claim, in its order, page by page; with `slices`, only those of one slice. A
    whole stream is in one slice.

    Every reading of an open claim returns the same messages. A read after the end of the claim raises
    `ClaimClosed` or `ClaimReleased`. `unsettled`, for consumers registered with `default_outcome="release"`,
    leaves out messages with an outcome, and in a stream all messages behind one that failed or was released.
    `after` is the id of the last message read before.
    """

    right = Right.CONSUME
    slow = True
    paged = True

    name: ConsumerName
    queue: QueueName
    generation: Generation
    number: ClaimNumber
    slice: Slice = 0
    slices: Slices = 1
    unsettled: Annotated[bool, Meta(description="Leave out messages that have an outcome.")] = False
    after: Annotated[bytes, Meta(description="The id of the last message that was read before.")] = b""

    def visible(self, answer: Iterator[Sequence[Delivery]], rights: Rights) -> Iterator[Sequence[Delivery]]:
        """The right is checked again before each page."""
        for page in answer:
            rights.need(Right.CONSUME, self.queue)
            yield page


@verb("consumers.record")
class ConsumersRecord(Request[None], frozen=True):
    """Record outcomes of messages of the open claim; they take effect when the claim is closed.

    The last outcome of a message counts. An outcome recorded under a part counts only if `choose` names the
    part. `Start` says that work begins: see `begin_slice`. It is no outcome and replaces none. `Extend` takes
    effect at once: progress grows, and the latest carry replaces the earlier one, whether or not the message
    has an outcome. An `Extend` with less progress than this claim has recorded comes from an outdated task,
    and changes nothing.

    With `turn`, as `begin_slice` granted it for `slice`, the call fails with `StaleSlice` once another task
    has begun the slice. An empty list of items only checks that the claim and the turn are current.
    """

    columns = "items"
    right = Right.CONSUME
    repeatable = True
    room = Room.WEIGHS

    name: ConsumerName
    queue: QueueName
    generation: Generation
    number: ClaimNumber
    items: Annotated[
        Sequence[Complete | Fail | Release | Extend | Start],
        Meta(description="The outcomes.", max_length=MAX_BATCH_MESSAGES),
    ]
    part: Annotated[
        str,
        Meta(
            description="The part under which they are recorded; empty: they count in any case.",
            max_length=MAX_PART_BYTES,
        ),
    ] = ""
    slice: Slice = 0
    turn: Annotated[
        int,
        Meta(description="The turn that `begin_slice` granted for the slice; 0: not checked.", ge=0),
    ] = 0


@verb("consumers.begin_slice")
class ConsumersBeginSlice(Request[SliceBegun], frozen=True):
    """Begin work on a slice, and grant the caller a turn of it, which ends all earlier ones.

    A message that an earlier task began there and left without an outcome has failed. This is the rule for a
    started delivery whose lease expires, so that a message which kills its worker ends as a dead letter. If the
    earlier task is alive after all, it can record nothing more under its turn; what it records without one
    counts.
    """

    right = Right.CONSUME
    repeatable = True
    room = Room.FITS

    name: ConsumerName
    queue: QueueName
    generation: Generation
    number: ClaimNumber
    slice: Slice = 0
    slices: Slices = 1


@verb("consumers.choose")
class ConsumersChoose(Request[None], frozen=True):
    """Count only outcomes recorded under these parts, beside those without a part; a later choice replaces an
    earlier one.

    With `add`, parts chosen before count too.
    """

    right = Right.CONSUME
    repeatable = True
    # A claim cannot be closed without its choice.
    room = Room.LEASES

    name: ConsumerName
    queue: QueueName
    generation: Generation
    number: ClaimNumber
    parts: Annotated[
        Sequence[str], Meta(description="The parts whose outcomes count.", max_length=MAX_BATCH_MESSAGES)
    ]
    add: Annotated[bool, Meta(description="Whether parts that were chosen before count too.")] = False


@verb("consumers.close")
class ConsumersClose(Request[CloseResult], frozen=True):
    """Close the open claim: each message gets the outcome recorded for it, or else the consumer's
    `default_outcome`.

    Closing a closed claim changes nothing. A close that a crash interrupts is finished at the next open.
    """

    right = Right.CONSUME
    repeatable = True
    room = Room.FITS
    slow = True

    name: ConsumerName
    queue: QueueName
    generation: Generation
    up_to: Annotated[int, Meta(description="Number of the claim in hand.", ge=0)]


@verb("consumers.heartbeat")
class ConsumersHeartbeat(Request[ConsumerInfo], frozen=True):
    """Restart the consumer's time to live. Every other call with its generation does so too."""

    right = Right.CONSUME
    repeatable = True
    room = Room.FITS
    # A lost heartbeat only brings the end of the time to live nearer.
    durable = False

    name: ConsumerName
    queue: QueueName
    generation: Generation


@verb("consumers.ceiling")
class ConsumersCeiling(Request[int], frozen=True):
    """A place: messages that are ready now have places up to it; messages that are enqueued or retried later
    get places after it.
    """

    right = Right.CONSUME
    repeatable = True

    name: ConsumerName
    queue: QueueName
    generation: Generation


@verb("consumers.release")
class ConsumersRelease(Request[int], frozen=True):
    """Release the open claim, whichever process works on it: its messages return to their places. Returns
    their number.

    A later call with its number gets `ClaimReleased`; the consumer continues with the next one.
    """

    right = Right.ADMIN
    audited = True
    room = Room.FITS
    slow = True

    name: ConsumerName
    queue: QueueName

    def audit_details(self) -> Mapping[str, object]:
        return {"consumer": self.name}


@verb("consumers.drop")
class ConsumersDrop(Request[None], frozen=True):
    """Release the open claim, and delete the consumer."""

    right = Right.ADMIN
    audited = True
    room = Room.FITS
    slow = True

    name: ConsumerName
    queue: QueueName

    def audit_details(self) -> Mapping[str, object]:
        return {"consumer": self.name}


@verb("consumers.list")
class ConsumersList(Request[list[ConsumerInfo]], frozen=True):
    """All durable consumers, in order of their queues and names."""

    repeatable = True

    def visible(self, answer: list[ConsumerInfo], rights: Rights) -> list[ConsumerInfo]:
        return [info for info in answer if rights.sees(info.queue)]


@verb("consumers.show")
class ConsumersShow(Request[ConsumerInfo], frozen=True):
    """One durable consumer. Raises `ConsumerNotFound`."""

    repeatable = True

    name: ConsumerName
    queue: QueueName
