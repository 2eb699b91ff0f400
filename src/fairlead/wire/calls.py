"""What is said beside a record batch: MessagePack maps in the app_metadata of each request and answer.

Fields that the engine checks are taken as they come, so that a wrong value is refused in the engine's words
at every door.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec

from fairlead.errors import InvalidRequest
from fairlead.model.limits import MAX_BATCH_MESSAGES
from fairlead.wire.depth import check_depth
from fairlead.wire.faults import Fault
from fairlead.wire.numbered import Numbered
from fairlead.wire.rows import DeliveryRow, MessageRow
from fairlead.wire.schemas import VERSION
from fairlead.wire.settlement_rows import Row

#: Looked at before anything in the list is made: three bytes of a request are a hundred as a row.
_FEW = msgspec.Meta(max_length=MAX_BATCH_MESSAGES)


class Open(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The descriptor of a channel: which protocol, which verb."""

    verb: str
    fairlead: int = VERSION


class EnqueueCall(Numbered, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """`queues` says how many of the rows, in their order, go into which queue; each queue once. `rows` take the place
    of the batch.
    """

    queues: Annotated[list[tuple[Any, int]], _FEW]
    rows: Annotated[list[MessageRow], _FEW] | None = None


class SettleCall(Numbered, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """`rows` take the place of the batch."""

    rows: Annotated[list[Row], _FEW] | None = None


class ClaimCall(Numbered, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """With `credit` above 0 the answer is a stream of batches: until the credit is used up, or until
    `wait_ms` have passed.

    `in_rows`: few deliveries come as rows of the answer instead of a batch.
    """

    queue: Any
    limit: Any = 1
    wait_ms: int = 0
    consumer: Any = ""
    max_per_stream: Any = 1
    token: Any = None
    started: Any = True
    credit: int = 0
    in_rows: bool = False


class ExchangeCall(Numbered, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The batch has `settles` settlements, then the messages of `queues`, where a queue may come again.
    `claim` has the fields of the verb.
    """

    settles: int = 0
    queues: Annotated[list[tuple[Any, int]], _FEW] = msgspec.field(default_factory=list)
    claim: Any = None


class PagesCall(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The fields of `consumers.read_pages` or `browse`. The answer is a stream of batches."""

    fields: bytes
    payloads: bool = True


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """`now_ms` is the server's clock, so that a client can tell how long a lease lasts without trusting its
    own.

    `queues` says whose the rows of deliveries are. `done` is False while more batches of the same answer
    follow; the last one says how much `credit` was not used. `settled` and `ids` are those of an
    exchange; `settled`, `ids` and `rows` take the place of the batch when results, ids or deliveries were
    asked for in rows. `result` is the answer to a request that travels as a record.
    """

    error: Fault | None = None
    now_ms: int = 0
    queues: list[tuple[str, int]] = []
    done: bool = True
    credit: int = 0
    settled: list[tuple[bytes, str, str, int, int, str]] = []
    ids: list[str] = []
    rows: list[DeliveryRow] = []
    result: bytes = b""


Call = TypeVar("Call", Open, EnqueueCall, SettleCall, ClaimCall, ExchangeCall, PagesCall, Answer)

encode = msgspec.msgpack.Encoder().encode
_decoders: dict[type, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in Call.__constraints__
}
#: Those that may be anything, for the engine to refuse in its own words.
_OPEN_FIELDS = {
    kind: [
        name
        for name, hint in get_type_hints(kind).items()
        if hint is Any or (name == "queues" and kind is not Answer)
    ]
    for kind in _decoders
}


def decode(raw: bytes, kind: type[Call]) -> Call:
    try:
        call: Call = _decoders[kind].decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise InvalidRequest("app_metadata", f"a MessagePack map of {kind.__name__}", str(wrong)) from None
    check_depth([getattr(call, name) for name in _OPEN_FIELDS[kind]], "app_metadata")
    return call
