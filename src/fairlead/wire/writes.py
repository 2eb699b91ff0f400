"""Verbs with rows: the rows travel in the columns of a record batch, the other fields in a MessagePack map
beside it.

The table of verbs names the field of the rows (`columns`); importing `fairlead.verbs` fills the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from fairlead.errors import InvalidRequest
from fairlead.request import VERBS, Request
from fairlead.wire.calls import WriteCall
from fairlead.wire.messages import decode_messages
from fairlead.wire.plain import decode_map, encode_fields, make_request
from fairlead.wire.settlements import decode_settlements

R = TypeVar("R", bound=Request[Any])

_encode = msgspec.msgpack.Encoder().encode
_READ_COLUMNS: dict[str, Callable[[pa.RecordBatch], Sequence[object]]] = {
    "messages": decode_messages,
    "items": decode_settlements,
}


def encode_write(request: Request[Any]) -> bytes:
    """The request without its rows."""
    return _encode(WriteCall(request.verb_name, encode_fields(request)))


def decode_write(call: WriteCall, batch: pa.RecordBatch | None) -> Request[Any]:
    known = VERBS.get(call.verb)
    if known is None or not known.request.columns:
        raise InvalidRequest("verb", "one of " + ", ".join(write_verbs()), call.verb)
    kind = known.request
    if batch is None:
        raise InvalidRequest("batch", f"{kind.columns} beside the fields of {call.verb}", None)
    return decode_fields(kind, call.fields, **{kind.columns: _READ_COLUMNS[kind.columns](batch)})


def decode_fields(kind: type[R], raw: bytes, **rows: Sequence[object]) -> R:
    """The request from field names and plain values. The engine checks the values."""
    return make_request(kind, decode_map(raw) | rows)


def write_verbs() -> list[str]:
    return [name for name, verb in VERBS.items() if verb.request.columns]


def encode_result(value: object) -> bytes:
    return _encode(value)


def decode_result(verb: str, raw: bytes) -> Any:
    return _result_decoder(verb).decode(raw)


@cache
def _result_decoder(verb: str) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(VERBS[verb].answer)
