"""Record batches in the form in which callers see them: with every column of the schema, in its type, and
without work row by row.

A batch that a client returns gets the defaults that travelled as nulls. A batch that a caller passes in may
lack columns, and may have types that are only wider or narrower than those of the protocol.
"""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa

from fairlead.errors import InvalidRequest
from fairlead.model.lane import DEFAULT_KEY
from fairlead.wire.columns import make_batch, nulls

#: The default that a null means, for columns in which null does not mean "none".
_DEFAULTS: dict[str, object] = {
    "fairness_key": DEFAULT_KEY,
    "weight": 1,
    "throttle_keys": [],
    "deliveries": 1,
    "attempts": 0,
    "progress": 0,
    "failures_cut": 0,
    "rule": "",
    "hidden": [],
}


def fill_defaults(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with all columns of the schema. Null stays where there is no value: no headers, no stream, no
    carry, a payload that was not asked for.
    """
    try:
        batch.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowIndexError) as wrong:
        raise InvalidRequest("batch", "a sound record batch", str(wrong)) from None
    length, given = batch.num_rows, batch.schema
    columns = [
        batch.column(name) if name in given.names else nulls(length, schema.field(name).type)
        for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(
        [_filled(column, name) for column, name in zip(columns, schema.names, strict=True)], schema=schema
    )


def _filled(column: pa.Array, name: str) -> pa.Array:
    if name not in _DEFAULTS or not column.null_count:
        return column
    if column.null_count == len(column):
        return _repeated(name, column.type, len(column))
    if pa.types.is_list(column.type):
        # The kernels that fill nulls do not support lists. Without the null bits, a list without values is an
        # empty list.
        return (
            pa.ListArray.from_arrays(column.offsets, column.values)
            if _is_packed(column)
            else pa.array([value or [] for value in column.to_pylist()], column.type)
        )
    return column.fill_null(pa.scalar(_DEFAULTS[name], column.type))


def _is_packed(column: pa.ListArray) -> bool:
    """Whether the null lists have no values, so that without the null bits they are empty lists."""
    import pyarrow.compute as pc  # imported here: seldom needed, and a tenth of the time of a short command

    lengths = pc.subtract(column.offsets[1:], column.offsets[:-1])
    return bool(pc.sum(pc.if_else(column.is_null(), lengths, 0)).as_py() == 0)


@lru_cache(maxsize=256)
def _repeated(name: str, kind: pa.DataType, length: int) -> pa.Array:
    return (
        pa.array([_DEFAULTS[name]] * length, kind)
        if pa.types.is_list(kind)
        else pa.repeat(pa.scalar(_DEFAULTS[name], kind), length)
    )


def fit(batch: object, schema: pa.Schema) -> pa.RecordBatch:
    """A caller's batch in the types of the schema. `InvalidRequest` names the column that cannot be
    converted.
    """
    if not isinstance(batch, pa.RecordBatch):
        raise InvalidRequest("batch", "a pyarrow.RecordBatch", type(batch))
    if batch.schema.equals(schema):
        return batch
    if len(set(batch.schema.names)) != len(batch.schema.names):
        raise InvalidRequest("columns", "each there once", batch.schema.names)
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name not in schema.names:
            raise InvalidRequest("columns", "among " + ", ".join(schema.names), name)
        wanted = schema.field(name).type
        try:
            columns[name] = column if column.type == wanted else column.cast(wanted)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as wrong:
            raise InvalidRequest(f"column {name}", str(wanted), f"{column.type} ({wrong})") from None
    return make_batch(schema, batch.num_rows, columns)
