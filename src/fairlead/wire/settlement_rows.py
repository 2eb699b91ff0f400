"""Settlements as rows: a MessagePack array for each delivery that a client settles. Works without pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from fairlead.errors import InvalidRequest
from fairlead.model.delivery import Delivery
from fairlead.model.durations import to_ms
from fairlead.model.failure import FailureReason
from fairlead.model.handles import check_carry, check_fail, check_progress, read_handle
from fairlead.model.settle import Complete, Extend, Fail, LeaseRef, Release, Settlement, SettleResult, Start
from fairlead.wire.values import read_duration

#: The order is part of the protocol: append only.
ACTIONS: Final = ("complete", "fail", "release", "extend", "start")
OUTCOMES: Final = (
    "completed",
    "retry",
    "dead",
    "released",
    "expired",
    "extended",
    "started",
    "lost_lease",
    "not_found",
    "invalid",
    "store_full",
    "returned",
)

_MAX_LEASE = (1 << 64) - 1
COMPLETE, FAIL, RELEASE, EXTEND, START = range(5)


class SettlementRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One settlement as it travels. The fields are the columns of the schema."""

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
    retry_after_ms: int | None = None
    close: str | None = None


OPTIONAL = SettlementRow.__struct_fields__[3:]


def settlement_rows(items: Sequence[Settlement]) -> tuple[list[SettlementRow], dict[int, SettleResult]]:
    """The rows to send, and by index the results of items that cannot be sent. An invalid item does not
    affect the others.
    """
    rows: list[SettlementRow] = []
    refused: dict[int, SettleResult] = {}
    for at, item in enumerate(items):
        if (
            type(item) is Complete
            and type(item.delivery) is Delivery
            and type(item.progress) is int
            and not item.progress
        ):
            # Fast path for the most frequent settlement: all of its values came from the engine, so they need
            # no check.
            rows.append(SettlementRow(COMPLETE, item.delivery.raw_id, item.delivery.claim_id))
            continue
        try:
            rows.append(settlement_row(item))
        except InvalidRequest as wrong:
            refused[at] = SettleResult(_raw_id(item), "invalid", error=str(wrong))
    return rows, refused


def settlement_row(item: object) -> SettlementRow:
    """The row of one settlement. Raises `InvalidRequest` if it cannot be sent."""
    if not isinstance(item, (Complete, Fail, Release, Extend, Start)):
        raise InvalidRequest("item", "Complete, Fail, Release, Extend or Start", type(item))
    raw_id, claim_id = read_handle(item.delivery)
    return _row(item, raw_id, claim_id if 0 <= claim_id <= _MAX_LEASE else _MAX_LEASE)


def _raw_id(item: object) -> bytes:
    try:
        return read_handle(getattr(item, "delivery", None))[0]
    except InvalidRequest:
        return b""


def _row(item: Settlement, raw_id: bytes, lease: int) -> SettlementRow:
    if isinstance(item, Complete):
        return SettlementRow(COMPLETE, raw_id, lease, progress=check_progress(item.progress) or None)
    if isinstance(item, Fail):
        return _fail_row(item, raw_id, lease)
    if isinstance(item, Release):
        return SettlementRow(RELEASE, raw_id, lease, keep_order=bool(item.keep_order))
    if isinstance(item, Extend):
        carry, duration_ms = (
            check_carry(item.carry),
            None if item.duration is None else to_ms(item.duration, "duration"),
        )
        return SettlementRow(
            EXTEND,
            raw_id,
            lease,
            progress=check_progress(item.progress) or None,
            duration_ms=duration_ms,
            carry=carry,
        )
    return SettlementRow(START, raw_id, lease)


def _fail_row(item: Fail, raw_id: bytes, lease: int) -> SettlementRow:
    said = check_fail(item)
    return SettlementRow(
        FAIL,
        raw_id,
        lease,
        error=said.error or None,
        reason=None if said.reason is FailureReason.UNKNOWN else int(said.reason),
        progress=said.progress or None,
        retry_in_ms=said.retry_in_ms,
        dead=said.dead or None,
        retry_after_ms=said.retry_after_ms or None,
        close=said.close or None,
    )


def read_settlement(
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
    retry_after_ms: int | None,
    close: str | None,
) -> Settlement:
    if action == COMPLETE:
        return Complete(ref, progress or 0)
    if action == FAIL:
        return Fail(
            ref,
            error or "",
            FailureReason.UNKNOWN if reason is None else reason,
            progress or 0,
            read_duration(retry_in_ms),
            bool(dead),
            read_duration(retry_after_ms),
            close,
        )
    if action == RELEASE:
        return Release(ref, bool(keep_order))
    if action == EXTEND:
        return Extend(ref, read_duration(duration_ms), progress or 0, carry)
    if action == START:
        return Start(ref)
    raise InvalidRequest("action", "0 to 4", action)
