"""The meanings and bounds of request fields, for the reference and the command line.

A field is `Annotated` with its meaning. `ge`, `gt` and `le` bound a number, `max_length` the items of a list
or the bytes of a text in UTF-8; `lasting` makes the bounds of a duration. A record is built without checks:
the engine refuses a value out of bounds with `InvalidRequest`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import timedelta
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from fairlead.decide.dead_filter import DeadFilter
from fairlead.model.access import Grant
from fairlead.model.durations import Duration, show_ms
from fairlead.model.failure import FailureReason
from fairlead.model.limits import (
    MAX_BATCH_MESSAGES,
    MAX_CLAIM,
    MAX_CONFIG_KEY_BYTES,
    MAX_CONSUMER_BYTES,
    MAX_DEDUP_KEY_BYTES,
    MAX_DURATION_MS,
    MAX_GRANTS,
    MAX_KEY_BYTES,
    MAX_NUMBER,
    MAX_PAGE,
    MAX_QUEUE_NAME,
    MAX_STAGING_NAME_BYTES,
    STEP_MESSAGES,
)
from fairlead.model.message import NewMessage


def lasting(description: str, *, at_least_ms: int = 0, at_most_ms: int = MAX_DURATION_MS) -> Meta:
    """The meaning and the bounds of a duration."""
    return Meta(description=description, extra={"at_least_ms": at_least_ms, "at_most_ms": at_most_ms})


QueueName = Annotated[str, Meta(description="Name of a queue, or of its dead letters: `QUEUE.dlq`.")]
NewQueueName = Annotated[
    str,
    Meta(
        description="[project/]name of the queue: letters, digits, `_`, `-` and `.`.",
        min_length=1,
        max_length=MAX_QUEUE_NAME,
    ),
]
QueuePrefix = Annotated[str, Meta(description="Only queues whose names begin with it.")]
Project = Annotated[
    str, Meta(description="Name of a project; empty for queues of no project.", max_length=MAX_QUEUE_NAME)
]
MessageId = Annotated[str, Meta(description="The full id of a message.")]
AnyMessageId = Annotated[
    str,
    Meta(
        description="Message: full id, prefix, last characters, or `stream:NAME` for the first of a stream."
    ),
]
Ids = Annotated[
    Sequence[str] | None, Meta(description="Messages, by their full ids.", max_length=STEP_MESSAGES)
]
Filter = Annotated[
    DeadFilter | None, Meta(description="Messages, by what is known of their last failure, instead of ids.")
]
DryRun = Annotated[bool, Meta(description="Say what would change, and change nothing.")]
PageLimit = Annotated[int, Meta(description="How many at most.", ge=1, le=MAX_PAGE)]
ErrorText = Annotated[str, Meta(description="The error text that is recorded.")]
Reason = Annotated[FailureReason | str | int, Meta(description="The failure reason that is recorded.")]
OptionalReason = Annotated[FailureReason | str | int | None, Meta(description="The failure reason, if any.")]
StreamName = Annotated[str, Meta(description="Name of a stream.", min_length=1, max_length=MAX_KEY_BYTES)]
DedupKey = Annotated[
    str,
    Meta(
        description="A second message with this key is the first one.",
        min_length=1,
        max_length=MAX_DEDUP_KEY_BYTES,
    ),
]
Messages = Annotated[
    Sequence[NewMessage], Meta(description="The messages, in order.", max_length=MAX_BATCH_MESSAGES)
]
View = Annotated[Literal["messages", "dead"], Meta(description="Its own messages, or its dead letters.")]
Wait = Annotated[Duration | None, lasting("How long to wait for the first message.")]
Consumer = Annotated[
    str,
    Meta(description="Name of the consumer that holds the leases.", max_length=MAX_CONSUMER_BYTES),
]
ConsumerName = Annotated[
    str,
    Meta(description="Name of a durable consumer.", min_length=1, max_length=MAX_CONSUMER_BYTES),
]
Generation = Annotated[int, Meta(description="What `register` returned.", ge=0)]
ClaimNumber = Annotated[int, Meta(description="Number of the claim in hand.", ge=0)]
NextNumber = Annotated[
    int, Meta(description="The next number, or that of the claim in hand.", ge=1, le=MAX_NUMBER)
]
MaxPerStream = Annotated[
    int, Meta(description="Most messages of one stream in the claim.", ge=1, le=MAX_CLAIM)
]
Slice = Annotated[int, Meta(description="Which of the slices, from 0.", ge=0)]
Slices = Annotated[int, Meta(description="In how many slices the claim is read.", ge=1, le=MAX_CLAIM)]
ConfigKey = Annotated[
    str,
    Meta(
        description="throttle:KEY:rate, throttle:KEY:burst, throttle.KEY for both, weight:QUEUE:KEY, or your own.",
        min_length=1,
        max_length=MAX_CONFIG_KEY_BYTES,
    ),
]
KeyId = Annotated[str, Meta(description="Id of a key.")]
Grants = Annotated[
    Sequence[Grant | str],
    Meta(description="Rights on queues, such as `produce:orders.*`.", max_length=MAX_GRANTS),
]
WriteToken = Annotated[
    str,
    Meta(description="Names the write, in its queue.", min_length=1, max_length=MAX_STAGING_NAME_BYTES),
]


class Field(NamedTuple):
    """A field of a request, as the reference and the command line need it."""

    name: str
    kind: Any
    #: `msgspec.NODEFAULT` if the field is required.
    default: Any
    meta: Meta

    @property
    def required(self) -> bool:
        return self.default is msgspec.NODEFAULT

    @property
    def description(self) -> str:
        return self.meta.description or ""

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The kinds of value that it accepts, without None."""
        if get_origin(self.kind) in (Union, UnionType):
            return tuple(kind for kind in get_args(self.kind) if kind is not type(None))
        return (self.kind,)

    @property
    def is_duration(self) -> bool:
        return timedelta in self.kinds

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it accepts, if it accepts only certain words."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def bounds(self) -> str:
        """The bounds in words; "" without bounds."""
        meta = self.meta
        if meta.extra:
            return _duration_bounds(**meta.extra)
        if meta.max_length is not None:
            unit = "bytes" if {str, bytes} & set(self.kinds) else "items"
            return f"at most {meta.max_length:,} {unit}"
        if meta.le is not None and meta.ge is not None:
            return f"{meta.ge:,} to {meta.le:,}"
        lowest = "" if meta.gt is None else f"above {meta.gt:,}"
        lowest = lowest if meta.ge is None else f"at least {meta.ge:,}"
        highest = "" if meta.le is None else f"at most {meta.le:,}"
        return ", ".join(part for part in (lowest, highest) if part)


def _duration_bounds(at_least_ms: int, at_most_ms: int) -> str:
    lowest = f"at least {show_ms(at_least_ms)}" if at_least_ms else ""
    highest = f"at most {show_ms(at_most_ms)}" if at_most_ms != MAX_DURATION_MS else ""
    return ", ".join(part for part in (lowest, highest) if part)


def fields_of(record: type) -> list[Field]:
    """The fields of a request, or of another record with fields annotated in the same way."""
    hints = get_type_hints(record, include_extras=True)
    defaults = _defaults_of(record)
    found = []
    for name, default in defaults.items():
        kind, meta = _split(hints[name])
        found.append(Field(name, kind, default, meta))
    return found


def _defaults_of(record: type) -> dict[str, Any]:
    if issubclass(record, msgspec.Struct):
        return {
            field.name: field.default if field.required or field.default is not msgspec.NODEFAULT else {}
            for field in msgspec.structs.fields(record)
        }
    assert dataclasses.is_dataclass(record)
    return {field.name: field.default for field in dataclasses.fields(record)}


def _split(hint: Any) -> tuple[Any, Meta]:
    if get_origin(hint) is not Annotated:
        return hint, Meta()
    return get_args(hint)[0], next(part for part in get_args(hint)[1:] if isinstance(part, Meta))
