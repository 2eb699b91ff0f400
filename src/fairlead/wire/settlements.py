"""Settlements on their way in, and a result for each on its way back."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa
from msgspec.structs import astuple

from fairlead.errors import InvalidRequest
from fairlead.model.delivery import Delivery
from fairlead.model.durations import to_ms
from fairlead.model.failure import FailureReason
from fairlead.model.handles import check_carry, check_fail, check_progress, read_handle
from fairlead.model.settle import Complete, Extend, Fail, LeaseRef, Release, Settlement, SettleResult, Start
from fairlead.wire.columns import Columns, add_column, ids_column, make_batch
from fairlead.wire.messages import read_duration
from fairlead.wire.schemas import OUTCOMES, RESULTS, SETTLEMENTS

_MOST_LEASE = (1 << 64) - 1
_COMPLETE, _FAIL, _RELEASE, _EXTEND, _START = range(5)


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One settlement as it travels; the fields are the columns of the schema."""

    action: int
    id: bytes
    lease: int
    error: str | None = None
    reason: int | None = None
    progress: int | None = None
    retry_in_ms: int | None = None
    dead: bool | None = None
    keep_order: bool | None = None
    duration_ms: int | None = None
    carry: bytes | None = None


_OPTIONAL = Row.__struct_fields__[3:]


def settlement_rows(items: Sequence[Settlement]) -> tuple[list[Row], dict[int, SettleResult]]:
    """The rows to send, and by index the results of items that could never be sent: a bad one does not spoil
    the others.
    """
    rows: list[Row] = []
    refused: dict[int, SettleResult] = {}
    for at, item in enumerate(items):
        if (
            type(item) is Complete
            and type(item.delivery) is Delivery
            and type(item.progress) is int
            and not item.progress
        ):
            # The short way for what is said most: all of it was given out by the engine.
            rows.append(Row(_COMPLETE, item.delivery.raw_id, item.delivery.claim_id))
            continue
        try:
            rows.append(settlement_row(item))
        except InvalidRequest as wrong:
            refused[at] = SettleResult(_raw_id(item), "invalid", error=str(wrong))
    return rows, refused


def settlement_row(item: object) -> Row:
    """Raises `InvalidRequest` for one that could never be sent."""
    if not isinstance(item, (Complete, Fail, Release, Extend, Start)):
        raise InvalidRequest("item", "Complete, Fail, Release, Extend or Start", type(item))
    raw_id, claim_id = read_handle(item.delivery)
    return _row(item, raw_id, claim_id if 0 <= claim_id <= _MOST_LEASE else _MOST_LEASE)


def _raw_id(item: object) -> bytes:
    try:
        return read_handle(getattr(item, "delivery", None))[0]
    except InvalidRequest:
        return b""


def _row(item: Settlement, raw_id: bytes, lease: int) -> Row:
    if isinstance(item, Complete):
        return Row(_COMPLETE, raw_id, lease, progress=check_progress(item.progress) or None)
    if isinstance(item, Fail):
        return _fail_row(item, raw_id, lease)
    if isinstance(item, Release):
        return Row(_RELEASE, raw_id, lease, keep_order=bool(item.keep_order))
    if isinstance(item, Extend):
        carry, duration_ms = (
            check_carry(item.carry),
            None if item.duration is None else to_ms(item.duration, "duration"),
        )
        return Row(
            _EXTEND,
            raw_id,
            lease,
            progress=check_progress(item.progress) or None,
            duration_ms=duration_ms,
            carry=carry,
        )
    return Row(_START, raw_id, lease)


def _fail_row(item: Fail, raw_id: bytes, lease: int) -> Row:
    said = check_fail(item)
    return Row(
        _FAIL,
        raw_id,
        lease,
        error=said.error or None,
        reason=None if said.reason is FailureReason.UNKNOWN else int(said.reason),
        progress=said.progress or None,
        retry_in_ms=said.retry_in_ms,
        dead=said.dead or None,
    )


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
    for name, values in zip(_OPTIONAL, [*zip(*map(astuple, rows), strict=True)][3:], strict=True):
        if values.count(None) < len(values):
            columns[name] = pa.array(values, SETTLEMENTS.field(name).type)
    return columns


def decode_settlements(batch: pa.RecordBatch) -> list[Settlement]:
    return read_settlements(Columns(batch, SETTLEMENTS))


def read_settlements(columns: Columns) -> list[Settlement]:
    actions, ids, leases = columns.read("action", -1), columns.ids(), columns.read("lease", 0)
    refs = [*map(LeaseRef, ids, leases)]
    rest = [columns.find(name) for name in _OPTIONAL]
    if not any(rest) and actions.count(_COMPLETE) == len(actions):
        return [*map(Complete, refs)]
    filled = [column or [None] * columns.length for column in rest]
    return [_item(action, ref, *fields) for action, ref, *fields in zip(actions, refs, *filled, strict=True)]


def read_settlement_rows(rows: Sequence[Row]) -> list[Settlement]:
    return [
        Complete(LeaseRef(row.id, row.lease), row.progress or 0)
        if row.action == _COMPLETE
        else _item(row.action, LeaseRef(row.id, row.lease), *astuple(row)[3:])
        for row in rows
    ]


def _item(
    action: int,
    ref: LeaseRef,
    error: str | None,
    reason: int | None,
    progress: int | None,
    retry_in_ms: int | None,
    dead: bool | None,
    keep_order: bool | None,
    duration_ms: int | None,
    carry: bytes | None,
) -> Settlement:
    if action == _COMPLETE:
        return Complete(ref, progress or 0)
    if action == _FAIL:
        return Fail(
            ref,
            error or "",
            FailureReason.UNKNOWN if reason is None else reason,
            progress or 0,
            read_duration(retry_in_ms),
            bool(dead),
        )
    if action == _RELEASE:
        return Release(ref, bool(keep_order))
    if action == _EXTEND:
        return Extend(ref, read_duration(duration_ms), progress or 0, carry)
    if action == _START:
        return Start(ref)
    raise InvalidRequest("action", "0 to 4", action)


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
