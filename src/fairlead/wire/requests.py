"""Requests of the Flight door: a call in MessagePack, and a record batch in Arrow's IPC format, both in the
`app_metadata`.

The batch does not travel as a Flight batch, because Flight's reader decompresses a batch before other code
can check it, and 32 KB of zstd can unpack to a gigabyte. Here the header of the batch is read first, and a
compressed batch is refused.
"""

from __future__ import annotations

import struct

import msgspec
import pyarrow as pa

from fairlead.errors import InvalidRequest
from fairlead.wire.schemas import MESSAGES, SETTLEMENTS

#: The first byte of a request with a batch: a MessagePack array of two. A call without a batch is a map.
_PAIR = b"\x92"
_IPC = "an Arrow IPC stream of one schema and one record batch"
_PLAIN = "a record batch without compression and custom metadata"

#: The field numbers in the tables of Arrow's Message.fbs.
_MESSAGE_HEADER, _MESSAGE_CUSTOM_METADATA, _BATCH_COMPRESSION = 2, 4, 3


class _Pair(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A call and its batch, both as `bin`, so that decoding the pair reads nothing inside them, however deep
    it is nested.
    """

    call: bytes
    batch: memoryview


_pairs = msgspec.msgpack.Decoder(_Pair)
_encode = msgspec.msgpack.Encoder().encode


def pack(call: bytes, batch: pa.RecordBatch | None) -> bytes:
    if batch is None:
        return call
    stream = b"".join([_header_of(batch.schema), batch.serialize()])
    return _encode(_Pair(call, memoryview(stream)))


def unpack(raw: pa.Buffer) -> tuple[bytes, pa.RecordBatch | None]:
    """The call and its batch. The columns of the batch are views of `raw`: nothing is copied or decompressed.
    Raises `InvalidRequest`.
    """
    if raw[:1].to_pybytes() != _PAIR:
        return raw.to_pybytes(), None
    try:
        pair = _pairs.decode(raw)
    except msgspec.MsgspecError as wrong:
        raise InvalidRequest(
            "app_metadata", "a call, or an array of a call and a batch, in MessagePack", str(wrong)
        ) from None
    return pair.call, read_batch(pair.batch)


def read_batch(stream: memoryview) -> pa.RecordBatch:
    try:
        schema, message = pa.ipc.MessageReader.open_stream(pa.py_buffer(stream))
        if (schema.type, message.type) != ("schema", "record batch"):
            raise InvalidRequest("batch", _IPC, f"{schema.type} and {message.type}")
        if not _is_plain(message.metadata.to_pybytes()):
            raise InvalidRequest("batch", _PLAIN, "one with it")
        return pa.ipc.read_record_batch(message, _schema_of(schema))
    except (pa.ArrowException, OSError, EOFError, ValueError, struct.error) as wrong:
        raise InvalidRequest("batch", _IPC, str(wrong)) from None


def _is_plain(header: bytes) -> bool:
    """Whether the flatbuffer of a record batch has neither compression nor custom metadata.

    Arrow 0.17 declared compression in the custom metadata of the message, and readers still accept that.
    """
    message = _Table(header, struct.unpack_from("<I", header)[0])
    if message.find(_MESSAGE_CUSTOM_METADATA) is not None:
        return False
    at = message.find(_MESSAGE_HEADER)
    return (
        at is not None
        and _Table(header, at + struct.unpack_from("<I", header, at)[0]).find(_BATCH_COMPRESSION) is None
    )


class _Table:
    """A table of a flatbuffer."""

    def __init__(self, raw: bytes, at: int) -> None:
        self._raw = raw
        self._at = at
        self._fields = at - struct.unpack_from("<i", raw, at)[0]

    def find(self, number: int) -> int | None:
        """The offset of a field; None when the field is absent."""
        (size,) = struct.unpack_from("<H", self._raw, self._fields)
        entry = 4 + 2 * number
        if entry + 2 > size:
            return None
        (offset,) = struct.unpack_from("<H", self._raw, self._fields + entry)
        return self._at + offset if offset else None


def _header_of(schema: pa.Schema) -> bytes:
    """The serialized schema, found by identity: hashing a schema costs more than serializing it, and the
    protocol's schemas live as long as the process.
    """
    header: bytes = _headers.get(id(schema)) or schema.serialize().to_pybytes()
    return header


def _schema_of(message: pa.ipc.Message) -> pa.Schema:
    return _schemas.get(message.metadata.to_pybytes()) or pa.ipc.read_schema(message)


_known = (MESSAGES, SETTLEMENTS)
_headers = {id(schema): schema.serialize().to_pybytes() for schema in _known}
_schemas = {pa.ipc.read_message(schema.serialize()).metadata.to_pybytes(): schema for schema in _known}
