"""One settle of a client: its rows, and its effects on the held leases."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from fairlead.client.heartbeat import Heartbeat, Held
from fairlead.errors import InvalidRequest
from fairlead.model.limits import MAX_BATCH_MESSAGES
from fairlead.model.settle import Settlement, SettleResult
from fairlead.wire.settlement_rows import EXTEND, START, SettlementRow, settlement_rows

Results = tuple[Sequence[SettleResult], int]
"""One per row, and the server's clock."""


class SettleCall:
    """One call of `settle`: the items that were refused before sending, and the new state of its leases."""

    def __init__(self, heartbeat: Heartbeat, items: Sequence[Settlement]) -> None:
        #: The rows that can be sent.
        self.rows, self.refused = settlement_rows(check_items(items))
        self._heartbeat = heartbeat
        self._dropped = heartbeat.drop(_ending(self.rows))
        #: Leases that the caller extends. The heartbeat pauses until the answer comes, because its own
        #: extension would undo the caller's.
        self._paused = heartbeat.drop(_prolonged(self.rows))

    def undo(self) -> None:
        """The settle failed, as far as the client knows: keep the leases that were held."""
        self._heartbeat.keep(self._dropped)
        self._heartbeat.keep(self._paused)

    def finish(self, answered: Results) -> list[SettleResult]:
        results, server_now_ms = answered
        #: Leases with the same end become one group; otherwise each later call would search as many groups as
        #: there are leases.
        going_on: dict[tuple[int, int | None], Held] = {}
        for row, result in zip(self.rows, results, strict=True):
            if result.outcome != "completed" and self._goes_on(row, result):
                leases = going_on.setdefault((result.lease_until - server_now_ms, row.duration_ms), {})
                leases.setdefault(row.lease, set()).add(row.id)
        for (lease_ms, duration_ms), leases in going_on.items():
            self._heartbeat.keep(
                leases,
                lease_ms=lease_ms,
                asked=None if duration_ms is None else timedelta(milliseconds=duration_ms),
            )
        if not self.refused:
            return list(results)
        rest = iter(results)
        return [
            self.refused[at] if at in self.refused else next(rest)
            for at in range(len(self.refused) + len(results))
        ]

    def _goes_on(self, row: SettlementRow, result: SettleResult) -> bool:
        """Whether to hold the lease until the end in the result. Otherwise updates the heartbeat itself."""
        if result.outcome in ("invalid", "store_full"):
            if row.id in self._dropped.get(row.lease, ()) or row.id in self._paused.get(row.lease, ()):
                self._heartbeat.keep({row.lease: {row.id}})
        elif not result.ok:
            self._heartbeat.drop({row.lease: {row.id}})
            self._heartbeat.mark_lost(row.id, row.lease)
        else:
            return row.action in (EXTEND, START) and (
                row.id in self._paused.get(row.lease, ()) or self._heartbeat.holds(row.id, row.lease)
            )
        return False


def _ending(rows: list[SettlementRow]) -> Held:
    """The leases that a settle ends; nearly always those of one claim."""
    if not rows:
        return {}
    claim_id = rows[0].lease
    alike = {row.id for row in rows if row.lease == claim_id and row.action < EXTEND}
    if len(alike) == len(rows):
        return {claim_id: alike}
    leases: Held = {}
    for row in rows:
        if row.action < EXTEND:
            leases.setdefault(row.lease, set()).add(row.id)
    return leases


def _prolonged(rows: list[SettlementRow]) -> Held:
    leases: Held = {}
    for row in [row for row in rows if row.action == EXTEND]:
        leases.setdefault(row.lease, set()).add(row.id)
    return leases


def check_items(items: object) -> Sequence[Any]:
    if type(items) is not list and (not isinstance(items, Sequence) or isinstance(items, (str, bytes))):
        raise InvalidRequest("items", "a list of Complete, Fail, Release, Extend, Start", type(items))
    if len(items) > MAX_BATCH_MESSAGES:
        raise InvalidRequest("items", f"at most {MAX_BATCH_MESSAGES} in one call", f"{len(items)} items")
    return items
