"""A queue without a broker: says which messages come next, by their ids of 16 bytes."""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import NamedTuple

from tests.oracle.drr import QueueScheduler
from tests.oracle.lanes import Memory
from tests.oracle.rows import lane_key, pack_lane, pack_row, row_id, row_place
from tests.oracle.throttle import Buckets


class Arrival(NamedTuple):
    id: bytes
    key: str
    weight: int = 1
    throttle_keys: tuple[str, ...] = ()


class FairQueue:
    """`now_ms` is steady time. A message is with a consumer from `take` until `complete` or `release`."""

    def __init__(
        self, *, quantum: int = 1, max_unsettled_per_key: int = 0, read_ahead_rows: int = 200_000
    ) -> None:
        self._ready: dict[bytes, list[bytes]] = {}
        self._taken: dict[bytes, tuple[bytes, bytes]] = {}
        self._last_place = 0
        self._limits_keys = max_unsettled_per_key > 0
        self._buckets = Buckets()
        self._scheduler = QueueScheduler(
            self._rows_after,
            self._buckets,
            Memory(row_limit=read_ahead_rows),
            quantum=quantum,
            max_unsettled_per_key=max_unsettled_per_key,
        )

    def set_bucket(self, throttle_key: str, rate: float, burst: float, now_ms: int) -> None:
        self._buckets.set(throttle_key, rate, burst, now_ms)
        self._scheduler.bucket_changed(throttle_key, now_ms)

    def add(self, arrivals: list[Arrival]) -> None:
        rows = [(pack_lane(one.key, one.throttle_keys), self._row(one)) for one in arrivals]
        for lane, row in rows:
            insort(self._ready.setdefault(lane, []), row)
        self._scheduler.add_all(rows)

    def take(self, limit: int, now_ms: int) -> list[bytes]:
        picked = self._scheduler.take(limit, now_ms)
        for lane, row in picked:
            self._ready[lane].remove(row)
            self._taken[row_id(row)] = lane, row
        return [row_id(row) for _, row in picked]

    def complete(self, id: bytes) -> None:
        lane, _ = self._taken.pop(id)
        if self._limits_keys:
            self._scheduler.settled(lane_key(lane))

    def release(self, id: bytes) -> None:
        lane, row = self._taken.pop(id)
        insort(self._ready[lane], row)
        self._scheduler.give_back(lane, row)
        if self._limits_keys:
            self._scheduler.settled(lane_key(lane))

    def _row(self, one: Arrival) -> bytes:
        self._last_place += 1
        return pack_row(self._last_place, one.id, one.weight, 0, 10)

    def _rows_after(self, lane: bytes, place: int, limit: int) -> list[bytes]:
        rows = self._ready.get(lane, [])
        at = bisect_right(rows, place, key=row_place)
        return rows[at : at + limit]
