"""Values that travel packed, in a column of a record batch or in a MessagePack array, for both sides. Works
without pyarrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from fairlead.errors import InvalidRequest
from fairlead.model.delivery_columns import Runs
from fairlead.model.failure import FailureRecord
from fairlead.model.lane import lane_key, lane_throttle_keys, pack_lane
from fairlead.model.message import unpack_headers

_decode_failures = msgspec.msgpack.Decoder(tuple[FailureRecord, ...]).decode


def read_headers(packed: bytes | None) -> dict[str, str] | None:
    if not packed:
        return None
    try:
        return unpack_headers(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise InvalidRequest("headers", "a MessagePack map of text to text", str(wrong)) from None


def read_duration(ms: int | None) -> timedelta | None:
    if ms is None:
        return None
    try:
        return timedelta(milliseconds=ms)
    except OverflowError:
        raise InvalidRequest("duration", "between 0 and 10 years", ms) from None


#: A cache: the same lanes come back by the thousand, and taking one apart costs more than a lookup.
_keys: dict[bytes, tuple[str, tuple[str, ...]]] = {}
_MAX_KEYS = 200_000


def keys_of(lanes: Sequence[bytes]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Fairness keys and throttle keys, in the order of the lanes."""
    global _keys
    known = _keys
    missing = set(lanes).difference(known)
    if len(known) + len(missing) > _MAX_KEYS:
        # Replaced, not emptied: another thread may be reading it.
        known = _keys = {}
        missing = set(lanes)
    for lane in missing:
        known[lane] = lane_key(lane), lane_throttle_keys(lane)
    both = [known[lane] for lane in lanes]
    return [key for key, _ in both], [throttled for _, throttled in both]


def queues_of(runs: Runs, length: int) -> list[str]:
    # Count before the list is made: a few bytes can declare more rows than memory holds.
    if sum([count for _, count in runs]) != length or any([count < 0 for _, count in runs]):  # noqa: C419 - a generator takes longer
        raise InvalidRequest("queues", f"{length} rows in all", runs)
    return [queue for queue, count in runs for _ in range(count)]


def read_failures(packed: bytes | None) -> tuple[FailureRecord, ...]:
    if not packed:
        return ()
    try:
        return _decode_failures(packed)
    except msgspec.MsgspecError as wrong:
        raise InvalidRequest("failures", "a MessagePack list of failure records", str(wrong)) from None


_lanes: dict[str, bytes] = {}
_MAX_LANES = 200_000


def lanes_of(keys: Sequence[str], throttle_keys: Sequence[Sequence[str] | None] | None) -> list[bytes]:
    global _lanes
    if throttle_keys is not None:
        return [
            pack_lane(key, tuple(throttled or ())) for key, throttled in zip(keys, throttle_keys, strict=True)
        ]
    known = _lanes
    missing = set(keys).difference(known)
    if len(known) + len(missing) > _MAX_LANES:
        # Replaced, not emptied: another thread may be reading it.
        known = _lanes = {}
        missing = set(keys)
    for key in missing:
        known[key] = pack_lane(key)
    return [known[key] for key in keys]
