"""Rows that settle: the columns a DataFrame may have, and their conversion to settlements on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from fairlead.errors import InvalidRequest
from fairlead.model.failure import bounded_error, read_reason
from fairlead.model.limits import MAX_ERROR_BYTES
from fairlead.spark.data_source.columns import (
    Column,
    RowErrors,
    add_row_errors,
    as_ms,
    as_text,
    check_columns,
    filled_columns,
    read_words,
    rows_where,
)
from fairlead.wire.columns import make_batch
from fairlead.wire.schemas import SETTLEMENTS
from fairlead.wire.settlement_rows import ACTIONS

_TEXT = Column("string", (StringType(),))
_NUMBERS = (ByteType(), ShortType(), IntegerType(), LongType())
_YES_OR_NO = Column("boolean", (BooleanType(),))

SETTLED: Final[dict[str, Column]] = {
    "id": Column("string", (StringType(),), needed=True),
    "receipt": Column("string, as it was read", (StringType(),), needed=True),
    "outcome": Column("string: complete, fail or release", (StringType(),), needed=True),
    "reason": _TEXT,
    "error": _TEXT,
    "retry_in": Column(
        'an interval day to second, or text such as "30s"', (DayTimeIntervalType(), StringType())
    ),
    "dead": _YES_OR_NO,
    "progress": Column("bigint", _NUMBERS),
    "keep_order": _YES_OR_NO,
}

_OUTCOMES: Final = ACTIONS[:3]
_ID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_COMPLETE, _FAIL, _RELEASE = range(3)
#: The outcomes that allow each further column.
_ALLOWED_WITH: Final = {
    "reason": (_FAIL,),
    "error": (_FAIL,),
    "retry_in": (_FAIL,),
    "dead": (_FAIL,),
    "progress": (_COMPLETE, _FAIL),
    "keep_order": (_RELEASE,),
}


class Receipt(NamedTuple):
    """The claim that a row was read from. A row's receipt also has its lease."""

    consumer: str
    queue: str
    generation: int
    number: int

    def __str__(self) -> str:
        """The receipt without the lease. Names of queues have no colon, so the first colon ends the queue."""
        return f"{self.queue}:{self.consumer}/{self.generation}/{self.number}"


def check_settled(schema: StructType) -> None:
    check_columns(schema, SETTLED, "in rows that settle")


def to_settlements(batch: pa.RecordBatch) -> tuple[list[tuple[Receipt, pa.RecordBatch]], RowErrors]:
    """Convert rows to settlements, grouped by claim: one group, unless rows were kept from an earlier batch.
    With errors there are no groups.
    """
    errors: RowErrors = {}
    given = {
        name: column for name, column in filled_columns(batch) if name not in ("id", "receipt", "outcome")
    }
    actions = _actions(as_text(batch.column("outcome")), errors)
    ids = _ids(as_text(batch.column("id")), errors)
    claims = _claims(as_text(batch.column("receipt")), errors)
    columns = {"action": actions, "id": ids}
    for name, column in given.items():
        _refuse_elsewhere(name, column, actions, errors)
        columns["retry_in_ms" if name == "retry_in" else name] = _read(name, column, errors)
    _refuse_both(given, errors)
    if errors:
        return [], errors
    return [*_by_claim(claims, batch.num_rows, columns)], errors


def _actions(outcomes: pa.Array, errors: RowErrors) -> pa.Array:
    actions = pc.index_in(outcomes, pa.array(_OUTCOMES))
    for row in rows_where(actions.is_null()):
        errors.setdefault(
            row, str(InvalidRequest("outcome", "complete, fail or release", outcomes[row].as_py()))
        )
    return actions.cast(pa.int8())


def _ids(ids: pa.Array, errors: RowErrors) -> pa.Array:
    good = pc.fill_null(pc.match_substring_regex(ids, _ID), False)
    for row in rows_where(pc.invert(good)):
        errors.setdefault(
            row, str(InvalidRequest("id", "the id of a message, as it was read", ids[row].as_py()))
        )
    if errors:
        return pa.nulls(len(ids), pa.binary(16))
    # All ids have the same length, so the digits of the whole column are read at once.
    raw = bytes.fromhex("".join(ids.to_pylist()).replace("-", ""))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(ids), [None, pa.py_buffer(raw)])


class _Claims(NamedTuple):
    receipts: list[Receipt]
    leases: list[int]
    rows: pa.Array


def _claims(column: pa.Array, errors: RowErrors) -> _Claims:
    for row in rows_where(column.is_null()):
        errors.setdefault(
            row,
            "expected receipt to be as a stream read it, got null; a batch read claims nothing, so there is nothing to settle",
        )
    encoded = column.dictionary_encode()
    receipts, leases, wrong = [], [], {}
    for at, text in enumerate(encoded.dictionary.to_pylist()):
        try:
            claim, generation, number, lease = text.rsplit("/", 3)
            queue, consumer = claim.split(":", 1)
            receipts.append(Receipt(consumer, queue, int(generation), int(number)))
            leases.append(int(lease))
        except ValueError:
            wrong[at] = str(InvalidRequest("receipt", "as it was read", text))
    add_row_errors(encoded.indices, wrong, errors)
    return _Claims(receipts, leases, encoded.indices)


def _by_claim(
    claims: _Claims, length: int, columns: dict[str, pa.Array]
) -> Iterator[tuple[Receipt, pa.RecordBatch]]:
    for receipt in dict.fromkeys(claims.receipts):
        columns["lease"] = pa.array(claims.leases, pa.uint64()).take(claims.rows)
        whole = make_batch(SETTLEMENTS, length, columns)
        if len(set(claims.receipts)) > 1:
            mine = pa.array([other == receipt for other in claims.receipts]).take(claims.rows)
            whole = whole.filter(mine)
        yield receipt, whole


def _read(name: str, column: pa.Array, errors: RowErrors) -> pa.Array:
    match name:
        case "reason":
            return read_words(as_text(column), lambda word: int(read_reason(word)), pa.int16(), errors)
        case "error":
            return _errors(as_text(column))
        case "retry_in":
            return as_ms(column, name, errors)
        case "progress":
            for row in rows_where(pc.less(column, 0)):
                errors.setdefault(
                    row, str(InvalidRequest(name, "64 bit flags, 0 or greater", column[row].as_py()))
                )
            return column.cast(pa.int64())
    return column


def _errors(column: pa.Array) -> pa.Array:
    if pc.max(pc.binary_length(column)).as_py() <= MAX_ERROR_BYTES:
        return column
    return pa.array([text and bounded_error(text) for text in column.to_pylist()], pa.utf8())


def _refuse_elsewhere(name: str, column: pa.Array, actions: pa.Array, errors: RowErrors) -> None:
    """Refuse a value that its row's outcome would ignore."""
    if name in ("dead", "keep_order"):
        is_set = pc.fill_null(column, False)
    elif name == "progress":
        is_set = pc.fill_null(pc.not_equal(column, 0), False)
    elif pa.types.is_duration(column.type):
        is_set = column.is_valid()
    else:
        is_set = pc.fill_null(pc.not_equal(as_text(column), ""), False)
    is_allowed = pc.is_in(actions, pa.array(_ALLOWED_WITH[name], pa.int8()))
    for row in rows_where(pc.and_not(is_set, is_allowed)):
        outcomes = " or ".join(_OUTCOMES[action] for action in _ALLOWED_WITH[name])
        errors.setdefault(row, f"expected {name} to be null unless the outcome is {outcomes}")


def _refuse_both(given: dict[str, pa.Array], errors: RowErrors) -> None:
    if "dead" in given and "retry_in" in given:
        for row in rows_where(pc.and_(pc.fill_null(given["dead"], False), given["retry_in"].is_valid())):
            errors.setdefault(row, "expected retry_in to be null where dead is true")
