"""The MessagePack maps in the `app_metadata` of each request and answer of the Flight door.

The fields of a request travel packed, as `bin`, so that the engine refuses a wrong value with the same error
at every door.
"""

from __future__ import annotations

from typing import Any, TypeVar, get_type_hints

import msgspec

from fairlead.errors import InvalidRequest
from fairlead.wire.depth import check_depth
from fairlead.wire.faults import Fault
from fairlead.wire.numbered import Numbered
from fairlead.wire.schemas import VERSION

#: An empty MessagePack map.
_NO_FIELDS = b"\x80"


class Open(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The descriptor of a channel: its name and the version of the protocol."""

    verb: str
    fairlead: int = VERSION


class WriteCall(Numbered, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A verb with rows. The rows travel in the record batch beside the call, the other fields in `fields`."""

    verb: str
    fields: bytes = _NO_FIELDS


class ClaimCall(Numbered, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The fields of `claim`. The answer is one batch."""

    fields: bytes = _NO_FIELDS


class PagesCall(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The fields of `consumers.read_pages` or `browse`. The answer is a stream of batches."""

    fields: bytes
    payloads: bool = True


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The metadata of an answer's batch.

    `queues` names the queues of the batch's rows, as runs. `done` is False while more batches of the same
    answer follow. `result` is the packed answer of a write. `now_ms` is the server's clock, so that a client
    can compute how long a lease lasts without trusting its own clock.
    """

    error: Fault | None = None
    now_ms: int = 0
    queues: list[tuple[str, int]] = []
    done: bool = True
    result: bytes = b""


Call = TypeVar("Call", Open, WriteCall, ClaimCall, PagesCall, Answer)

encode = msgspec.msgpack.Encoder().encode
_decoders: dict[type, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in Call.__constraints__
}
#: Fields that accept any type here, because the engine refuses wrong values with its own error.
_OPEN_FIELDS = {
    kind: [name for name, hint in get_type_hints(kind).items() if hint is Any] for kind in _decoders
}


def decode(raw: bytes, kind: type[Call]) -> Call:
    try:
        call: Call = _decoders[kind].decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise InvalidRequest("app_metadata", f"a MessagePack map of {kind.__name__}", str(wrong)) from None
    check_depth([getattr(call, name) for name in _OPEN_FIELDS[kind]], "app_metadata")
    return call
