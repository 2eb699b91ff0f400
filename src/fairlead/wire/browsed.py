"""Messages as they are looked at in bulk: the same `MessageInfo` on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import msgspec
import pyarrow as pa

from fairlead.errors import InvalidRequest
from fairlead.model.failure import FailureReason, Progress
from fairlead.model.ids import find_id, show_id
from fairlead.model.lane import DEFAULT_KEY
from fairlead.model.message import pack_headers
from fairlead.model.views import MessageInfo
from fairlead.wire.columns import Columns, add_column, ids_column, make_batch
from fairlead.wire.deliveries import Runs, queues_of, read_failures
from fairlead.wire.messages import read_headers
from fairlead.wire.schemas import BROWSED

_encode_failures = msgspec.msgpack.Encoder().encode

#: Fields that are columns as they are, with what travels as null.
_PLAIN: dict[str, object] = {
    "fairness_key": DEFAULT_KEY, "weight": 1, "stream": None, "seq": 0, "deliveries": 1, "attempts": 0, "carry": b"", "dead_since": None,
    "source": None, "place": 0, "due_at": None, "expires_at": None, "lease_until": None, "consumer": None, "done_at": None, "rule": "",
    "failures_cut": 0, "throttle_keys": (), "hidden": (),
}  # fmt: skip


def encode_browsed(infos: Sequence[MessageInfo], *, payloads: bool = True) -> pa.RecordBatch:
    columns = {
        "id": ids_column([find_id(info.id) or b"" for info in infos]),
        "where": pa.array([info.where for info in infos], pa.utf8()),
        "enqueued_at": pa.array([info.enqueued_at for info in infos], pa.int64()),
    }
    if payloads:
        columns["payload"] = pa.array([info.payload for info in infos], pa.binary())
    for name, default in _PLAIN.items():
        add_column(columns, name, BROWSED.field(name).type, [*map(attrgetter(name), infos)], default)
    add_column(columns, "headers", pa.binary(), [pack_headers(info.headers) for info in infos], b"")
    add_column(columns, "progress", pa.int64(), [int(info.progress) for info in infos], 0)
    add_column(columns, "reason", pa.int16(), [None if info.reason is None else int(info.reason) for info in infos], None)
    add_column(columns, "failures", pa.binary(), [_encode_failures(info.failures) if info.failures else b"" for info in infos], b"")
    return make_batch(BROWSED, len(infos), columns)


def decode_browsed(batch: pa.RecordBatch, runs: Runs) -> list[MessageInfo]:
    columns = Columns(batch, BROWSED)
    plain = {name: columns.read(name, default) for name, default in _PLAIN.items()}
    plain |= {
        "id": [show_id(raw_id) if raw_id else "" for raw_id in columns.ids()],
        "queue": queues_of(runs, columns.length),
        "where": columns.read("where", ""),
        "payload": columns.read("payload", b""),
        "enqueued_at": columns.read("enqueued_at", 0),
        "headers": [read_headers(packed) or {} for packed in columns.read("headers", b"")],
        "progress": [Progress(bits) for bits in columns.read("progress", 0)],
        "reason": [_reason(number) for number in columns.read("reason")],
        "failures": [read_failures(packed) for packed in columns.read("failures", b"")],
        "throttle_keys": [tuple(keys) for keys in plain["throttle_keys"]],
        "hidden": [tuple(names) for names in plain["hidden"]],
    }
    return [MessageInfo(**dict(zip(plain, values, strict=True))) for values in zip(*plain.values(), strict=True)]


def _reason(number: int | None) -> FailureReason | None:
    try:
        return None if number is None else FailureReason(number)
    except ValueError:
        raise InvalidRequest("reason", "the number of a failure reason", number) from None
