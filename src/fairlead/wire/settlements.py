"""Settlements on their way in, and a result for each on its way back."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from msgspec.structs import astuple

from fairlead.errors import InvalidRequest
from fairlead.model.settle import Complete, LeaseRef, Settlement, SettleResult
from fairlead.wire.columns import Columns, add_column, ids_column, make_batch
from fairlead.wire.schemas import RESULTS, SETTLEMENTS
from fairlead.wire.settlement_rows import COMPLETE, OPTIONAL, OUTCOMES, Row, read_settlement


def encode_settlements(rows: Sequence[Row]) -> pa.RecordBatch:
    return make_batch(SETTLEMENTS, len(rows), settlement_columns(rows))


def settlement_columns(rows: Sequence[Row]) -> dict[str, pa.Array]:
    if not rows:
        return {}
    actions = [row.action for row in rows]
    columns = {
        "action": pa.array(actions, pa.int8()),
        "id": ids_column([row.id for row in rows]),
        "lease": pa.array([row.lease for row in rows], pa.uint64()),
    }
    if not any(actions) and {row.progress for row in rows} == {None}:
        # Nothing but completions, and nothing more is said of them.
        return columns
    for name, values in zip(OPTIONAL, [*zip(*map(astuple, rows), strict=True)][3:], strict=True):
        if values.count(None) < len(values):
            columns[name] = pa.array(values, SETTLEMENTS.field(name).type)
    return columns


def decode_settlements(batch: pa.RecordBatch) -> list[Settlement]:
    return read_settlements(Columns(batch, SETTLEMENTS))


def read_settlements(columns: Columns) -> list[Settlement]:
    actions, ids, leases = columns.read("action", -1), columns.ids(), columns.read("lease", 0)
    refs = [*map(LeaseRef, ids, leases)]
    rest = [columns.find(name) for name in OPTIONAL]
    if not any(rest) and actions.count(COMPLETE) == len(actions):
        return [*map(Complete, refs)]
    filled = [column or [None] * columns.length for column in rest]
    return [
        read_settlement(action, ref, *fields)
        for action, ref, *fields in zip(actions, refs, *filled, strict=True)
    ]


_NUMBER = {outcome: number for number, outcome in enumerate(OUTCOMES)}


def encode_results(results: Sequence[SettleResult]) -> pa.RecordBatch:
    if not results:
        return make_batch(RESULTS, 0, {})
    ids, outcomes, rules, dues, untils, errors = zip(*map(astuple, results), strict=True)
    columns = {
        "id": ids_column(ids),
        "outcome": pa.array([_NUMBER[outcome] for outcome in outcomes], pa.int8()),
    }
    add_column(columns, "rule", pa.utf8(), rules, "")
    add_column(columns, "due_ms", pa.int64(), dues, 0)
    add_column(columns, "lease_until", pa.int64(), untils, 0)
    add_column(columns, "error", pa.utf8(), errors, "")
    return make_batch(RESULTS, len(results), columns)


def read_results(told: Sequence[tuple[bytes, str, str, int, int, str]]) -> list[SettleResult]:
    """Results that were told in rows."""
    return [SettleResult(*fields) for fields in told]  # type: ignore[arg-type]


def decode_results(batch: pa.RecordBatch) -> list[SettleResult]:
    columns = Columns(batch, RESULTS)
    numbers = columns.read("outcome", 0)
    if numbers and not 0 <= min(numbers) <= max(numbers) < len(OUTCOMES):
        raise InvalidRequest("outcome", f"0 to {len(OUTCOMES) - 1}", numbers)
    rest = [columns.find("rule"), columns.find("due_ms"), columns.find("lease_until"), columns.find("error")]
    if not any(rest):
        return [
            SettleResult(raw_id, OUTCOMES[number])
            for raw_id, number in zip(columns.ids(), numbers, strict=True)
        ]
    rules, dues, untils, errors = [column or [None] * columns.length for column in rest]
    return [
        SettleResult(raw_id, OUTCOMES[number], rule or "", due_ms or 0, lease_until or 0, error or "")
        for raw_id, number, rule, due_ms, lease_until, error in zip(
            columns.ids(), numbers, rules, dues, untils, errors, strict=True
        )
    ]
