"""Rows that settle: the columns a DataFrame may have, and how they become the settlements that travel."""

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
    Faults,
    as_ms,
    as_text,
    blame_rows,
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
#: Which outcome each further column speaks of.
_SPEAKS_OF: Final = {
    "reason": (_FAIL,),
    "error": (_FAIL,),
    "retry_in": (_FAIL,),
    "dead": (_FAIL,),
    "progress": (_COMPLETE, _FAIL),
    "keep_order": (_RELEASE,),
}


class Receipt(NamedTuple):
    """The claim a row was read from; the lease within it says which delivery."""

    consumer: str
    queue: str
    generation: int
    number: int

    def __str__(self) -> str:
        """As a row has it, without the lease. No queue's name has a colon, so it is told from the consumer's
        name.
        """
        return f"{self.queue}:{self.consumer}/{self.generation}/{self.number}"


def check_settled(schema: StructType) -> None:
    check_columns(schema, SETTLED, "in rows that settle")


def to_settlements(batch: pa.RecordBatch) -> tuple[list[tuple[Receipt, pa.RecordBatch]], Faults]:
    """The rows as they travel, apart by claim; all but a replay of old rows have one. With faults, nothing of
    it should be sent.
    """
    faults: Faults = {}
    given = {
        name: column for name, column in filled_columns(batch) if name not in ("id", "receipt", "outcome")
    }
    actions = _actions(as_text(batch.column("outcome")), faults)
    ids = _ids(as_text(batch.column("id")), faults)
    claims = _claims(as_text(batch.column("receipt")), faults)
    columns = {"action": actions, "id": ids}
    for name, column in given.items():
        _refuse_elsewhere(name, column, actions, faults)
        columns["retry_in_ms" if name == "retry_in" else name] = _read(name, column, faults)
    _refuse_both(given, faults)
    if faults:
        return [], faults
    return [*_by_claim(claims, batch.num_rows, columns)], faults


def _actions(outcomes: pa.Array, faults: Faults) -> pa.Array:
    actions = pc.index_in(outcomes, pa.array(_OUTCOMES))
    for row in rows_where(actions.is_null()):
        faults.setdefault(
            row, str(InvalidRequest("outcome", "complete, fail or release", outcomes[row].as_py()))
        )
    return actions.cast(pa.int8())


def _ids(ids: pa.Array, faults: Faults) -> pa.Array:
    good = pc.fill_null(pc.match_substring_regex(ids, _ID), False)
    for row in rows_where(pc.invert(good)):
        faults.setdefault(
            row, str(InvalidRequest("id", "the id of a message, as it was read", ids[row].as_py()))
        )
    if faults:
        return pa.nulls(len(ids), pa.binary(16))
    # All are of one length: the digits of the whole column are read at once.
    raw = bytes.fromhex("".join(ids.to_pylist()).replace("-", ""))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(ids), [None, pa.py_buffer(raw)])


class _Claims(NamedTuple):
    receipts: list[Receipt]
    leases: list[int]
    rows: pa.Array


def _claims(column: pa.Array, faults: Faults) -> _Claims:
    for row in rows_where(column.is_null()):
        faults.setdefault(
            row,
            "expected receipt to be as a stream read it, got null; a batch read claims nothing, so there is nothing to settle",
        )
    encoded = column.dictionary_encode()
    receipts, leases, wrong = [], [], {}
    for at, text in enumerate(encoded.dictionary.to_pylist()):
        try:
            who, generation, number, lease = text.rsplit("/", 3)
            queue, consumer = who.split(":", 1)
            receipts.append(Receipt(consumer, queue, int(generation), int(number)))
            leases.append(int(lease))
        except ValueError:
            wrong[at] = str(InvalidRequest("receipt", "as it was read", text))
    blame_rows(encoded.indices, wrong, faults)
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


def _read(name: str, column: pa.Array, faults: Faults) -> pa.Array:
    match name:
        case "reason":
            return read_words(as_text(column), lambda word: int(read_reason(word)), pa.int16(), faults)
        case "error":
            return _errors(as_text(column))
        case "retry_in":
            return as_ms(column, name, faults)
        case "progress":
            for row in rows_where(pc.less(column, 0)):
                faults.setdefault(
                    row, str(InvalidRequest(name, "64 bit flags, 0 or greater", column[row].as_py()))
                )
            return column.cast(pa.int64())
    return column


def _errors(column: pa.Array) -> pa.Array:
    if pc.max(pc.binary_length(column)).as_py() <= MAX_ERROR_BYTES:
        return column
    return pa.array([text and bounded_error(text) for text in column.to_pylist()], pa.utf8())


def _refuse_elsewhere(name: str, column: pa.Array, actions: pa.Array, faults: Faults) -> None:
    """What is said of an outcome that it has nothing to do with would be lost without a word."""
    if name in ("dead", "keep_order"):
        said = pc.fill_null(column, False)
    elif name == "progress":
        said = pc.fill_null(pc.not_equal(column, 0), False)
    elif pa.types.is_duration(column.type):
        said = column.is_valid()
    else:
        said = pc.fill_null(pc.not_equal(as_text(column), ""), False)
    spoken = pc.is_in(actions, pa.array(_SPEAKS_OF[name], pa.int8()))
    for row in rows_where(pc.and_not(said, spoken)):
        outcomes = " or ".join(_OUTCOMES[action] for action in _SPEAKS_OF[name])
        faults.setdefault(row, f"expected {name} to be null unless the outcome is {outcomes}")


def _refuse_both(given: dict[str, pa.Array], faults: Faults) -> None:
    if "dead" in given and "retry_in" in given:
        for row in rows_where(pc.and_(pc.fill_null(given["dead"], False), given["retry_in"].is_valid())):
            faults.setdefault(row, "expected retry_in to be null where dead is true")
