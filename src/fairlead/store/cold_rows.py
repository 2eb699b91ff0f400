"""Rows of messages that memory need not hold: cold chunks, lanes that go on on disk, and states of messages.

Reads see the changes of their transaction, except for chunks: memory has every chunk that a transaction changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

import msgspec

from fairlead.model.lane import lane_end, lane_key, lane_throttle_keys, pack_lane
from fairlead.records.chunk import Chunk, Head, LaneName
from fairlead.records.ids import BLOCK_MASK, BLOCK_SHIFT
from fairlead.records.state import OwnState, RunRow
from fairlead.store.changes import Changes
from fairlead.store.kv.port import Batch, KeyValueStore, Table
from fairlead.store.row_keys import pack_key

_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(Head).decode
_decode_own = msgspec.msgpack.Decoder(OwnState).decode
_decode_run = msgspec.msgpack.Decoder(RunRow).decode
#: A place and whether the row is about one message: the end of the key of a run.
_run_suffix = Struct(">Q?").pack

#: A place and whether the row is about one message: the end of the key of a run.
_PLACE_BYTES = 9
#: Lanes, or times of chunks, that one read finds.
_PAGE_ROWS = 1000


class Run(NamedTuple):
    place: int
    row: RunRow


def run_key(home_id: int, queue_id: int, lane: LaneName, place: int, is_single: bool) -> bytes:
    return _lane_prefix(home_id, queue_id, lane) + _run_suffix(place, is_single)


def _lane_prefix(home_id: int, queue_id: int, lane: LaneName) -> bytes:
    return pack_key(home_id, queue_id) + pack_lane(lane[0], lane[1:])


def write_runs(batch: Batch, changes: Changes) -> None:
    # Many rows of few lanes: what the keys of a lane begin with is packed once.
    prefixes: dict[tuple[int, int, LaneName], bytes] = {}
    for (home_id, queue_id, lane, place, is_single), row in changes.runs.items():
        whose = home_id, queue_id, lane
        prefix = prefixes.get(whose)
        if prefix is None:
            prefix = prefixes[whose] = _lane_prefix(*whose)
        key = prefix + _run_suffix(place, is_single)
        if row is None:
            batch.delete(Table.RUNS, key)
        else:
            batch.put(Table.RUNS, key, _encode(row))


def read_runs(
    store: KeyValueStore,
    changes: Changes,
    home_id: int,
    queue_id: int,
    lane: LaneName,
    start: int,
    *,
    limit: int,
    end: int | None = None,
) -> list[Run]:
    """The first rows of a lane with `start <= place < end`, in the order of their places."""
    changed = {
        (place, is_single): row
        for (_, found_id, name, place, is_single), row in changes.runs.items()
        if found_id == queue_id and name == lane and start <= place and (end is None or place < end)
    }
    prefix = _lane_prefix(home_id, queue_id, lane)
    # Behind a lane there is no place of all ones.
    last = prefix + (b"\xff" * _PLACE_BYTES if end is None else pack_key(end))
    rows = store.scan(Table.RUNS, prefix + pack_key(start), last, limit=limit + len(changed))
    found: dict[tuple[int, bool], RunRow | None] = {
        (int.from_bytes(key[-_PLACE_BYTES:-1], "big"), bool(key[-1])): _decode_run(raw) for key, raw in rows
    }
    found.update(changed)
    left = [(at, row) for at, row in found.items() if row is not None]
    return [Run(place, row) for (place, _), row in sorted(left, key=lambda one: one[0])[:limit]]


def read_last_run(store: KeyValueStore, home_id: int, queue_id: int, lane: LaneName) -> Run:
    """Of a lane that has rows."""
    prefix = _lane_prefix(home_id, queue_id, lane)
    ((key, raw),) = store.scan(Table.RUNS, prefix, prefix + b"\xff" * _PLACE_BYTES, limit=1, reverse=True)
    return Run(int.from_bytes(key[-_PLACE_BYTES:-1], "big"), _decode_run(raw))


def read_lanes(store: KeyValueStore, home_id: int) -> Iterator[tuple[int, LaneName, Run]]:
    """The first row of each lane of a queue and its dead letters: (queue, lane, row)."""
    after = None
    while rows := store.first_rows(
        Table.RUNS, suffix_length=_PLACE_BYTES, prefix=pack_key(home_id), after=after, limit=_PAGE_ROWS
    ):
        for key, raw in rows:
            lane = key[16 : lane_end(key, 16)]
            place = int.from_bytes(key[-_PLACE_BYTES:-1], "big")
            name = (lane_key(lane), *lane_throttle_keys(lane))
            yield int.from_bytes(key[8:16], "big"), name, Run(place, _decode_run(raw))
        after = rows[-1][0]


def read_cold_chunks(store: KeyValueStore, home_ids: Sequence[int], blocks: Sequence[int]) -> list[Chunk]:
    """Those of the chunks that are cold. The queue of a chunk is found by trying each one."""
    keys = [pack_key(home_id, block << BLOCK_SHIFT) for home_id in home_ids for block in blocks]
    rows = [
        (key, raw) for key, raw in zip(keys, store.get_many(Table.COLD, keys), strict=True) if raw is not None
    ]
    return _chunks_of(store, rows) if rows else []


def scan_cold_chunks(store: KeyValueStore, home_id: int, start: int, limit: int) -> list[Chunk]:
    """The next cold chunks of a queue from a number on."""
    rows = store.scan(Table.COLD, pack_key(home_id, start & ~BLOCK_MASK), pack_key(home_id + 1), limit=limit)
    return _chunks_of(store, rows) if rows else []


def find_last_cold(store: KeyValueStore, home_id: int) -> Head | None:
    rows = store.scan(Table.COLD, pack_key(home_id), pack_key(home_id + 1), limit=1, reverse=True)
    return _decode_head(rows[0][1]) if rows else None


def find_cold_from(store: KeyValueStore, home_id: int, prefix: bytes, last: int) -> int:
    """The number of the first cold chunk whose ids begin with that time or a later one, or `last`: times of chunks
    rise with their numbers.
    """
    low, high = 0, last
    while low < high:
        middle = (low + high) // 2
        rows = store.scan(Table.COLD, pack_key(home_id, middle), pack_key(home_id + 1), limit=1)
        head = _decode_head(rows[0][1]) if rows else None
        if head is None or head.prefix[: len(prefix)] >= prefix:
            high = middle
        else:
            low = head.first + 1
    return low


def _chunks_of(store: KeyValueStore, rows: Sequence[tuple[bytes, bytes]]) -> list[Chunk]:
    states = store.get_many(Table.STATES, [key for key, _ in rows])
    found = []
    for (key, raw), state in zip(rows, states, strict=True):
        head = _decode_head(raw)
        chunk = Chunk.of(
            int.from_bytes(key[:8], "big"), head, head.inline, None if state is None else bytearray(state)
        )
        chunk.is_cold = True
        found.append(chunk)
    return found


def read_states(store: KeyValueStore, wanted: Sequence[tuple[int, int]]) -> dict[int, OwnState]:
    """By number: the states of messages, given with the queues that they were enqueued into."""
    raw_states = store.get_many(Table.OWN, [pack_key(*key) for key in wanted])
    return {
        number: _decode_own(raw)
        for (_, number), raw in zip(wanted, raw_states, strict=True)
        if raw is not None
    }
