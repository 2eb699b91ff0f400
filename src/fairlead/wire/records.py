"""Requests and answers as MessagePack: a request is its verb and a map of its fields.

The table of verbs says what each takes and gives; importing `fairlead.verbs` fills it. Where the table names a
field of many values, these travel as the columns of a record batch beside the map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from fairlead.errors import InvalidRequest
from fairlead.request import VERBS, Request
from fairlead.wire.depth import check_depth
from fairlead.wire.messages import decode_messages
from fairlead.wire.numbered import Numbered
from fairlead.wire.plain import decode_map, encode_fields, make_request
from fairlead.wire.settlements import decode_settlements

R = TypeVar("R", bound=Request[Any])

_encode = msgspec.msgpack.Encoder().encode


class Call(Numbered, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A request on its way: the name of its verb, and its fields as a MessagePack map."""

    verb: str
    fields: bytes = b"\x80"


_calls = msgspec.msgpack.Decoder(Call)
_READ_COLUMNS: dict[str, Callable[[pa.RecordBatch], Sequence[object]]] = {
    "messages": decode_messages,
    "items": decode_settlements,
}


_UNNUMBERED = Numbered()


def encode_request(request: Request[Any], numbered: Numbered = _UNNUMBERED) -> bytes:
    call = Call(
        request.verb_name,
        encode_fields(request),
        session=numbered.session,
        number=numbered.number,
        arrived=numbered.arrived,
    )
    try:
        return _encode(call)
    except (TypeError, ValueError, OverflowError, RecursionError) as wrong:
        raise InvalidRequest("arguments", "plain values", str(wrong)) from None


def decode_call(raw: bytes) -> Call:
    try:
        call = _calls.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise InvalidRequest("app_metadata", "a MessagePack map of verb and fields", str(wrong)) from None
    check_depth((call.session, call.number, call.arrived), "app_metadata")
    return call


def decode_request(raw: bytes, batch: pa.RecordBatch | None = None) -> Request[Any]:
    return request_of(decode_call(raw), batch)


def request_of(call: Call, batch: pa.RecordBatch | None) -> Request[Any]:
    known = VERBS.get(call.verb)
    if known is None or known.request.bulk:
        raise InvalidRequest("verb", "one of " + ", ".join(sorted(record_verbs())), call.verb)
    return decode_fields(known.request, call.fields, batch)


def decode_fields(kind: type[R], raw: bytes, batch: pa.RecordBatch | None = None) -> R:
    """Names and plain values become a request; the engine says whether its values are right."""
    fields = decode_map(raw)
    columns = kind.columns
    if bool(columns) != (batch is not None):
        got = "none" if batch is None else f"{batch.num_rows} rows"
        raise InvalidRequest("batch", f"{columns or 'none'} beside the fields of {kind.verb_name}", got)
    if batch is not None:
        fields[columns] = _READ_COLUMNS[columns](batch)
    return make_request(kind, fields)


def record_verbs() -> list[str]:
    """The verbs that travel as records; the others have channels of their own."""
    return [name for name, verb in VERBS.items() if not verb.request.bulk]


def encode_result(value: object) -> bytes:
    return _encode(value)


def decode_result(verb: str, raw: bytes) -> Any:
    return _result_decoder(verb).decode(raw)


@cache
def _result_decoder(verb: str) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(VERBS[verb].answer)
