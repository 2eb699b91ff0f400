"""Browsed messages as a record batch, with a column for each field of `MessageInfo`. A client passes the
columns on unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import msgspec
import pyarrow as pa

from fairlead.model.ids import find_id
from fairlead.model.lane import DEFAULT_KEY
from fairlead.model.message import pack_headers
from fairlead.model.views import MessageInfo
from fairlead.wire.columns import add_column, ids_column, make_batch
from fairlead.wire.schemas import BROWSED

_encode_failures = msgspec.msgpack.Encoder().encode

#: Fields whose values need no conversion, each with the default that travels as null.
_PLAIN: dict[str, object] = {
    "fairness_key": DEFAULT_KEY,
    "weight": 1,
    "stream": None,
    "seq": 0,
    "deliveries": 1,
    "attempts": 0,
    "carry": b"",
    "dead_since": None,
    "source": None,
    "place": 0,
    "due_at": None,
    "expires_at": None,
    "lease_until": None,
    "consumer": None,
    "done_at": None,
    "rule": "",
    "failures_cut": 0,
    "throttle_keys": (),
    "hidden": (),
}


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
    add_column(
        columns,
        "reason",
        pa.int16(),
        [None if info.reason is None else int(info.reason) for info in infos],
        None,
    )
    add_column(
        columns,
        "failures",
        pa.binary(),
        [_encode_failures(info.failures) if info.failures else b"" for info in infos],
        b"",
    )
    return make_batch(BROWSED, len(infos), columns)
