"""Rows of messages that memory need not hold: cold chunks, lanes that continue on disk, and states of
messages.

Reads see the changes of their transaction, except for chunks: memory has every chunk that a transaction
changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from struct import Struct
from typing import NamedTuple

import msgspec

from fairlead.model.lane import lane_end, lane_key, lane_throttle_keys, pack_lane
from fairlead.records.chunk import Chunk, Head, LaneName, cut_pages, page_starts
from fairlead.records.facts import ScatteredEnqueued
from fairlead.records.ids import BLOCK_MASK, BLOCK_SHIFT
from fairlead.records.state import OwnState, RunRow
from fairlead.store.changes import Changes
from fairlead.store.kv.port import Batch, KeyValueStore, Row, Table
from fairlead.store.row_keys import pack_key, pack_two

_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(Head).decode
_decode_own = msgspec.msgpack.Decoder(OwnState).decode
_decode_run = msgspec.msgpack.Decoder(RunRow).decode
#: A place, and whether the row is about one message: the end of the key of a run.
_run_suffix = Struct(">Q?").pack
_PLACE_BYTES = 9
#: After all places of a lane.
_BEHIND_PLACES = b"\xff" * _PLACE_BYTES
#: The end of the key of the first page of a chunk.
#: Rows, or lanes, that one read returns at most, and the rows of the first read.
_PAGE_ROWS = 1000
_MIN_ROWS = 8
#: Reading this many rows costs about as much as seeking past the rest of a lane.
_FEW_ROWS = 16


class Run(NamedTuple):
    place: int
    row: RunRow


def run_key(home_id: int, queue_id: int, lane: LaneName, place: int, is_single: bool) -> bytes:
    return _lane_prefix(home_id, queue_id, lane) + _run_suffix(place, is_single)


#: Rows of the same lanes are written and deleted again and again.
@lru_cache(maxsize=1024)
def _lane_prefix(home_id: int, queue_id: int, lane: LaneName) -> bytes:
    return pack_key(home_id, queue_id) + pack_lane(lane[0], lane[1:])


def run_of_one(head: Head) -> RunRow:
    """The row that leads to the only message of a cold chunk."""
    weight = head.columns.weights
    assert isinstance(weight, int)
    return RunRow(head.first, 1, weight, True)


def write_scattered(batch: Batch, fact: ScatteredEnqueued) -> None:
    """Write for each message its head, the row of its lane, and its payload if that is too long for the head."""
    of_lanes = pack_two(fact.queue_id, fact.queue_id)
    for head, payload in fact.heads():
        key, lane = pack_two(fact.queue_id, head.first), head.columns.lanes[0]
        batch.put(Table.COLD, key, _encode(head))
        run = of_lanes + pack_lane(lane[0], lane[1:]) + _run_suffix(head.first, False)
        batch.put(Table.RUNS, run, _encode(run_of_one(head)))
        if head.inline is None:
            for page, payloads in enumerate(cut_pages([payload], page_starts([len(payload)]))):
                batch.put(Table.PAGES, key + page.to_bytes(2, "big"), b"".join(payloads))


def write_runs(batch: Batch, changes: Changes) -> None:
    for (home_id, queue_id, lane, place, is_single), row in changes.runs.items():
        key = _lane_prefix(home_id, queue_id, lane) + _run_suffix(place, is_single)
        if row is None:
            batch.delete(Table.RUNS, key)
        else:
            batch.put(Table.RUNS, key, _encode(row))


def read_runs(
    store: KeyValueStore,
    changes: Changes,
    home_id: int,
    queue_id: int,
    starts: Mapping[LaneName, int],
    *,
    limit: int,
    end: int | None = None,
) -> dict[LaneName, list[Run]]:
    """For each of these lanes, the first rows with `start <= place < end`, in the order of their places; in
    one read in the order of the keys.
    """
    changed: dict[LaneName, dict[tuple[int, bool], RunRow | None]] = {}
    for (_, found_id, lane, place, is_single), row in changes.runs.items():
        start = starts.get(lane) if found_id == queue_id else None
        if start is not None and start <= place and (end is None or place < end):
            changed.setdefault(lane, {})[place, is_single] = row
    # The transaction may have deleted that many more.
    most = limit + max(map(len, changed.values()), default=0)
    # No lane has a place of all ones.
    last = _BEHIND_PLACES if end is None else pack_key(end)
    prefixes = sorted([(_lane_prefix(home_id, queue_id, lane), lane) for lane in starts])
    ranges = [(prefix + pack_key(starts[lane]), prefix + last) for prefix, lane in prefixes]
    stored = store.scan_many(Table.RUNS, ranges, limit=most)
    found: dict[LaneName, list[Run]] = {}
    for (_, lane), rows in zip(prefixes, stored, strict=True):
        runs = [*map(_run_of, rows)]
        found[lane] = _with_changes(rows, runs, changed[lane])[:limit] if lane in changed else runs[:limit]
    return found


def _with_changes(
    rows: Sequence[Row], runs: Sequence[Run], changed: Mapping[tuple[int, bool], RunRow | None]
) -> list[Run]:
    at = [(run.place, bool(key[-1])) for (key, _), run in zip(rows, runs, strict=True)]
    found = {**dict(zip(at, [run.row for run in runs], strict=True)), **changed}
    left = [Run(place, row) for (place, _), row in found.items() if row is not None]
    return sorted(left, key=lambda one: one.place)


def read_lanes(store: KeyValueStore, home_id: int) -> Iterator[tuple[int, LaneName, Run, Run]]:
    """Each lane of a queue and its dead letters with its first and its last row: (queue, lane, first, last).

    A step to the next row costs a small part of a look-up. So rows are read one after the other while lanes
    have few of them, and the rest of a lane with many is skipped.
    """
    start, end, limit = pack_key(home_id), pack_key(home_id + 1), _MIN_ROWS
    cut: list[Row] = []
    rows = store.scan(Table.RUNS, start, end, limit=limit)
    while len(rows) == limit:
        lanes = [[*some] for _, some in groupby(rows, _lane_of)]
        yield from [_ends_of_lane(some[0], some[-1]) for some in lanes[:-1]]
        # The last lane may continue after the rows that were read.
        cut.append(lanes[-1][0])
        if len(cut) == _PAGE_ROWS:
            yield from _read_ends(store, cut)
            cut.clear()
        start = _lane_of(rows[-1]) + _BEHIND_PLACES
        limit = min(_PAGE_ROWS, max(_MIN_ROWS, _FEW_ROWS * len(lanes)))
        rows = store.scan(Table.RUNS, start, end, limit=limit)
    lanes = [[*some] for _, some in groupby(rows, _lane_of)]
    yield from [_ends_of_lane(some[0], some[-1]) for some in lanes]
    yield from _read_ends(store, cut)


def _read_ends(store: KeyValueStore, first_rows: Sequence[Row]) -> Iterator[tuple[int, LaneName, Run, Run]]:
    ranges = [(_lane_of(row), _lane_of(row) + _BEHIND_PLACES) for row in first_rows]
    last_rows = store.scan_many(Table.RUNS, ranges, limit=1, reverse=True)
    return (_ends_of_lane(first, last) for first, (last,) in zip(first_rows, last_rows, strict=True))


def _lane_of(row: Row) -> bytes:
    """What the keys of all rows of the lane begin with."""
    return row[0][:-_PLACE_BYTES]


def _ends_of_lane(first: Row, last: Row) -> tuple[int, LaneName, Run, Run]:
    key = first[0]
    lane = key[16 : lane_end(key, 16)]
    name = (lane_key(lane), *lane_throttle_keys(lane))
    return int.from_bytes(key[8:16], "big"), name, _run_of(first), _run_of(last)


def _run_of(row: Row) -> Run:
    key, raw = row
    return Run(int.from_bytes(key[-_PLACE_BYTES:-1], "big"), _decode_run(raw))


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
    """The number of the first cold chunk whose ids begin with that time or a later one, or `last`. The times
    of chunks rise with their numbers.
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
    """The states of messages by number. `wanted` has the numbers with the queues that the messages were
    enqueued into.
    """
    raw_states = store.get_many(Table.OWN, [pack_two(queue_id, number) for queue_id, number in wanted])
    return {
        number: _decode_own(raw)
        for (_, number), raw in zip(wanted, raw_states, strict=True)
        if raw is not None
    }
