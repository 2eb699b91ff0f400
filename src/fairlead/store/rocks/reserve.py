"""How much disk space is kept free, and for what. The numbers follow from the settings in `options.py`.

Above the reserve everything is allowed. In the upper part of the reserve only requests whose growth is
bounded by the live messages continue, and compactions that fit. The floor is left for requests that free
space, and for opening.
"""

from __future__ import annotations

import re

from fairlead.errors import InvalidRequest
from fairlead.store.rocks.options import COMPACTION_BYTES, MEMTABLE_BYTES, MIB, WAL_BYTES

#: Below the reserve the families are flushed each time this much was written, so that the logs stay this
#: short.
LOG_STEP_BYTES = 4 * MIB
#: Opening writes a manifest, options, a log and the boot number.
REOPEN_BYTES = 4 * MIB
#: The largest commit that frees space: 100,000 messages completed, at 100 bytes of deleted keys each.
FREEING_BATCH_BYTES = 10 * MIB
#: A step of logs and the largest commit, each written twice, to a log and to tables; then opening.
FLOOR_BYTES = 2 * (LOG_STEP_BYTES + FREEING_BATCH_BYTES) + REOPEN_BYTES
#: As much again for what is bounded by the live messages: leases, the ends of leases, the audit of requests
#: that free space.
MIN_DISK_RESERVE_BYTES = 2 * FLOOR_BYTES
#: With room for the largest compaction too, freed space is available at once, however large the store is.
DISK_RESERVE_BYTES = MIN_DISK_RESERVE_BYTES + COMPACTION_BYTES
#: Logs are never longer: with this much more free than needed, their length is not checked.
MAX_LOG_BYTES = WAL_BYTES + MEMTABLE_BYTES


def check_reserve(reserve_bytes: int) -> None:
    if reserve_bytes < MIN_DISK_RESERVE_BYTES:
        parts = f"{FLOOR_BYTES} for requests that free space and for opening, {FLOOR_BYTES} for leases and the audit"
        raise InvalidRequest(
            "disk_reserve_bytes", f"at least {MIN_DISK_RESERVE_BYTES}: {parts}", reserve_bytes
        )


def live_bytes(table_bytes: int, properties: str) -> int:
    """What is left of a family's tables when all deletions in them take effect: `properties` are RocksDB's,
    of all tables.
    """
    entries, deletions = _number("# entries", properties), _number("# deletions", properties)
    return table_bytes * max(0, entries - 2 * deletions) // entries if entries else 0


def _number(name: str, properties: str) -> int:
    found = re.search(rf"{name}=(\d+)", properties)
    return int(found[1]) if found else 0
