"""When a chunk is worth rewriting, and what is left of it then.

Numbers, states and the keys of rows stay; messages that are gone lose their payloads, headers and names. The
rows of lanes and streams are at the first number of each lane and stream in the chunk, so that message keeps
its lane and its stream, gone or not, as long as another message needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from fairlead.records.chunk import MAX_SHARED_BYTES, Chunk, Columns, Head, LaneName
from fairlead.records.ids import BLOCK_MASK

T = TypeVar("T")

#: A chunk is sparse when it has this many bytes of messages that are gone, and all of its bytes are at least
#: this many times those of its live messages. So the disk holds at most about this many times the live bytes.
MIN_DEAD_BYTES = 4096
MIN_RATIO = 2
#: A chunk with more bytes of live messages is not rewritten: one write would hold the lock for too long.
MAX_LIVE_BYTES = MAX_SHARED_BYTES

#: Indexes of lanes are stored as bytes if they fit.
_MAX_BYTE = 256


def is_sparse(chunk: Chunk) -> bool:
    dead = chunk.dead_bytes
    if dead < MIN_DEAD_BYTES:
        return False
    total = chunk.total_bytes
    live = total - dead
    return live * MIN_RATIO <= total and live <= MAX_LIVE_BYTES


class Thin(NamedTuple):
    """What is left of a chunk. Messages keep their indexes."""

    left: list[int]
    columns: Columns
    payloads: list[bytes]

    def take_place_of(self, before: Chunk, body: int) -> Chunk:
        """A new chunk with the current states of the old one, so that readers of the old one see it
        unchanged. More messages may be gone since.

        `body`: the number under which the payloads are stored. No chunk had it before, so it distinguishes
        the two.
        """
        head = Head(
            before.first,
            before.prefix,
            before.enqueued_ms,
            self.columns,
            None,
            body,
            before.has_runs,
            self.left,
        )
        states = bytearray(before.count) if before.states is None else bytearray(before.states)
        after = Chunk.of(before.queue_id, head, self.payloads, states)
        after.has_states_row = before.has_states_row
        after.is_cold = before.is_cold
        return after


def thin(chunk: Chunk, numbers: Sequence[int], payloads: Sequence[bytes]) -> Thin:
    """Keep only these messages of a chunk, in order and each with its payload."""
    left = [number & BLOCK_MASK for number in numbers]
    kept = [b""] * chunk.count
    for index, payload in zip(left, payloads, strict=True):
        kept[index] = payload
    return Thin(left, _thin_columns(chunk.columns, left), kept)


def _thin_columns(columns: Columns, left: Sequence[int]) -> Columns:
    lanes, lane_at = _thin_lanes(columns, left)
    weights = columns.weights
    if isinstance(weights, list):
        some = {weights[index] for index in left}
        weights = some.pop() if len(some) == 1 else _only(weights, left, 1)
    return Columns(
        lanes,
        lane_at,
        weights,
        _only_if_any(columns.headers, left, b""),
        _only(columns.sizes, left, 0),
        _only_if_any(columns.expires, left, 0),
        _only_if_any(columns.live_keys, left, ""),
        _thin_streams(columns.streams, left),
    )


def _thin_lanes(
    columns: Columns, left: Sequence[int]
) -> tuple[tuple[LaneName, ...], bytes | list[int] | None]:
    lane_at = columns.lane_at
    if lane_at is None:
        return columns.lanes, None
    # The first message of all is the first one of its lane, so that later ones may join this lane.
    kept = _with_firsts(lane_at, left, missing=lane_at[0])
    used = dict.fromkeys(kept)
    lanes = tuple([columns.lanes[at] for at in used])
    if len(lanes) == 1:
        return lanes, None
    place_of = {at: place for place, at in enumerate(used)}
    indexes = map(place_of.__getitem__, kept)
    return lanes, bytes(indexes) if len(lanes) <= _MAX_BYTE else list(indexes)


def _thin_streams(streams: list[str] | None, left: Sequence[int]) -> list[str] | None:
    if streams is None or not any(streams[index] for index in left):
        return None
    return _with_firsts(streams, left, missing="")


def _with_firsts(column: Sequence[T], left: Sequence[int], *, missing: T) -> list[T]:
    """As `_only`. The first message with each remaining value keeps it too."""
    firsts: dict[T, int] = {}
    for index, value in enumerate(column):
        firsts.setdefault(value, index)
    kept = _only(column, left, missing)
    for value in {column[index] for index in left}:
        kept[firsts[value]] = value
    return kept


def _only(column: Sequence[T], left: Sequence[int], missing: T) -> list[T]:
    kept = [missing] * len(column)
    for index in left:
        kept[index] = column[index]
    return kept


def _only_if_any(column: list[T] | None, left: Sequence[int], missing: T) -> list[T] | None:
    if column is None or not any(column[index] for index in left):
        return None
    return _only(column, left, missing)
