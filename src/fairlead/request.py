"""The one shape of a call: a request is a record with its right, its audit entry and its answer type.

`VERBS` is the table of all requests, filled by the modules of `fairlead.verbs`. Everything that handles
requests for a caller is a `Handler`: the engine, and each layer around it. So a verb is spelled once; the
doors, the command, the table of rights and the reference pages read the table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, get_args

import msgspec

from fairlead.errors import InvalidRequest
from fairlead.model.access import Right
from fairlead.model.durations import to_ms
from fairlead.model.views import MessageInfo, OperatorResult, RedriveResult

if TYPE_CHECKING:
    from fairlead.middleware.rights import Rights

Answer = TypeVar("Answer")


class Room(Enum):
    """Whether a verb may write once free space is below the disk reserve.

    The reserve exists so that requests that free space always fit. A verb that could grow the store without
    bound stops at the reserve with `StoreFull`; a verb that ends something never does. In between are verbs
    whose growth is bounded by the live messages, such as a claim: these may use the upper part of the
    reserve, but not its floor.
    """

    #: Writes nothing.
    READS = "reads"
    #: Frees space, or replaces a bounded number of rows: never refused by the reserve.
    FITS = "fits"
    #: Refused below the reserve before anything happens. Its request is at most as large as a runbook.
    GROWS = "grows"
    #: Refused by the size of what it stores, which only the verb itself knows; in a settle, item by item.
    WEIGHS = "weighs"
    #: Grows with the live messages at most: refused when only the floor of the reserve is left.
    LEASES = "leases"


class Caller(NamedTuple):
    """The caller of a request. A caller without a `key_id` has every right: keys are off, or it opened the
    directory.
    """

    key_id: str | None
    name: str
    source: str
    #: The session of the request; None: its answer is not remembered.
    session: str | None = None
    #: The number of the request in its session, from 1 on.
    number: int = 0
    #: The client has received all answers up to this number, so the broker forgets them.
    arrived: int = 0
    #: Bytes that the request takes in memory, counted by its door.
    size: int = 0

    @property
    def claim_token(self) -> str | None:
        """The token of a claim in a session. No caller with a key can send this token, because its own tokens
        get a prefix with the id of its key.
        """
        return None if self.session is None else f"session:{self.key_id or ''}:{self.session}:{self.number}"

    @property
    def who(self) -> str:
        return self.key_id or self.name


LOCAL = Caller(None, "local", "")


class Request(msgspec.Struct, Generic[Answer], frozen=True):
    """The base of all verbs. `Request[Answer]` declares what `run` returns; clients decode to that type.

    A record is built without checks, so that a wrong value is refused by the engine, in the same words in
    process and through every door.
    """

    #: The name in the table, such as "enqueue" or "config.set".
    verb_name: ClassVar[str]
    #: The right that the caller needs on each of `queues()`; None: any right on them.
    right: ClassVar[Right | None] = None
    #: A further right that the caller needs on the same queues.
    also_right: ClassVar[Right | None] = None
    #: Whether the audit records every call, before and after it runs.
    audited: ClassVar[bool] = False
    #: Whether the answer shows messages: the audit records which were read, redaction and rights hide parts.
    shows_messages: ClassVar[bool] = False
    #: Whether carrying it out twice ends like once, so that a client may repeat it after a lost answer.
    repeatable: ClassVar[bool] = False
    #: Whether its answer holds a secret that must not be stored, so that no session can remember it.
    answers_secret: ClassVar[bool] = False
    #: The field whose values travel in the columns of a record batch at the Flight door; "" for a verb without one.
    columns: ClassVar[str] = ""
    room: ClassVar[Room] = Room.READS
    #: Whether the answer waits until the effect is as durable as the broker is set to. A verb that writes is
    #: durable unless its class says why not; a call without an effect, such as a dry run, waits for nothing.
    durable: ClassVar[bool]
    #: Whether a door with an event loop passes it to a pool: it scans, calls a hook, or takes many steps.
    slow: ClassVar[bool] = False
    #: Whether the answer is an iterator of pages, which are read while the caller consumes them.
    paged: ClassVar[bool] = False
    #: Whether a call may wait while its answer is empty; see `patience_ms`.
    waits: ClassVar[bool] = False
    #: The field that names the queue the request is about; "" when none does.
    queue_field: ClassVar[str] = "queue"

    def patience_ms(self) -> int | None:
        """How long the caller waits while the answer is empty; None for a verb that never waits."""
        return None

    def queues(self) -> Sequence[str]:
        """The queues for which `right` is needed."""
        return (getattr(self, self.queue_field),) if self.queue_field else ()

    def authorize(self, rights: Rights) -> Request[Answer]:
        """Check the caller's rights by names alone, so that a refusal does not tell whether a queue exists.

        Returns the request as this caller may make it: a verb may narrow it.
        """
        for queue in self.queues():
            if self.right is None:
                rights.need_some(queue)
            else:
                rights.need(self.right, queue)
            if self.also_right is not None:
                rights.need(self.also_right, queue)
        return self

    def visible(self, answer: Answer, rights: Rights) -> Answer:
        """The part of the answer that this caller may see."""
        return answer

    def is_repeatable(self) -> bool:
        return self.repeatable or getattr(self, "dry_run", False) is True

    def is_audited(self) -> bool:
        """Dry runs by id are not recorded. Dry runs by filter are: they read as many messages as the act, and
        their answers tell about error texts."""
        if getattr(self, "dry_run", False) is True and getattr(self, "ids", None) is not None:
            return False
        return self.audited

    def audit_queue(self) -> str:
        return str(getattr(self, self.queue_field)) if self.queue_field else ""

    def audit_details(self) -> Mapping[str, object]:
        """What the audit keeps of the request: never what messages or scripts contain."""
        given = {
            field.name: value
            for field in msgspec.structs.fields(type(self))
            if field.name != self.queue_field and (value := getattr(self, field.name)) != field.default
        }
        return details_of(given)

    def audit_result(self, answer: Answer) -> Mapping[str, object]:
        """Details that are known only once the request has run."""
        return {}

    def audit_count(self, answer: Answer) -> int | None:
        """How many messages the request changed; of a dry run, how many it would have changed."""
        if isinstance(answer, OperatorResult):
            return len(answer.changed)
        if isinstance(answer, RedriveResult):
            return answer.matched if getattr(self, "dry_run", False) is True else answer.moved
        if isinstance(answer, list):
            return len(answer)
        return answer if isinstance(answer, int) and not isinstance(answer, bool) else None

    def messages_shown(self, answer: Answer) -> list[MessageInfo]:
        """The messages in the answer of a verb that shows some."""
        return answer if isinstance(answer, list) else []


def details_of(fields: Mapping[str, Any]) -> dict[str, object]:
    """Options as they were given, the number of ids, the length of scripts. Values of headers are left out."""
    told: dict[str, object] = {}
    for field, value in fields.items() if isinstance(fields, Mapping) else ():
        if value is None or field == "messages":
            continue
        if field == "ids" and isinstance(value, Sequence):
            told["ids"] = f"{len(value)}: {', '.join(map(str, value[:3]))}"
        elif field == "filter" and isinstance(getattr(value, "header", None), tuple) and value.header:
            told[field] = dataclasses.replace(value, header=(value.header[0], "..."))
        elif field in ("on_enqueue", "on_failure"):
            told[field] = f"{len(str(value))} characters"
        else:
            told[field] = value
    return told


def patience_of(wait: object) -> int:
    """The duration in milliseconds; 0 if `wait` is no duration, because the engine refuses it after the
    layers.
    """
    try:
        return 0 if wait is None else to_ms(wait, "wait")
    except InvalidRequest:
        return 0


class Handler(Protocol):
    def __call__(self, request: Request[Answer], caller: Caller) -> Answer: ...


class Verb(NamedTuple):
    """An entry of the table."""

    name: str
    request: type[Request[Any]]
    answer: Any

    @property
    def summary(self) -> str:
        return summary_of(self.request)

    @property
    def fields(self) -> tuple[str, ...]:
        return self.request.__struct_fields__


def summary_of(request: type[Request[Any]]) -> str:
    return (request.__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " ")


VERBS: dict[str, Verb] = {}

R = TypeVar("R", bound=Request[Any])


def verb(name: str) -> Callable[[type[R]], type[R]]:
    """Enter a request into the table under this name."""

    def enter(request: type[R]) -> type[R]:
        (answer,) = get_args(request.__orig_bases__[0])  # type: ignore[attr-defined]
        request.verb_name = name
        if request.queue_field not in request.__struct_fields__:
            request.queue_field = ""
        if not hasattr(request, "durable"):
            request.durable = request.room is not Room.READS
        request.waits = request.patience_ms is not Request.patience_ms
        VERBS[name] = Verb(name, request, answer)
        return request

    return enter
