"""Check a data directory from outside: every law, every record, every checksum, without changing a byte of
it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.errors import StoreCorrupt
from fairlead.store.laws import check_laws
from fairlead.store.rocks.records import check_records
from fairlead.store.rocks.store import RocksStore


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """`problems` are sentences; `ok` says there are none. Counts are of what could be read."""

    problems: list[str] = field(default_factory=list)
    messages: int = 0
    queues: int = 0
    leases: int = 0

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(path: str | os.PathLike[str]) -> VerifyReport:
    """Read all of a data directory that no broker has open, also one left by a crash.

    Damage is reported, not raised. Raises `InvalidRequest` for a directory that is not ours and
    `FormatTooNew`.
    """
    try:
        store = RocksStore.open(Path(path), read_only=True)
    except StoreCorrupt as damage:
        return VerifyReport([damage.message])
    try:
        problems = check_records(store)
        if not problems:
            problems = check_laws(store)
        counted = [store.counters(record.queue_id) for record in store.queues()]
        messages = sum(counts.messages + counts.done for counts in counted)
        return VerifyReport(problems, messages, len(counted), sum(counts.leased for counts in counted))
    except StoreCorrupt as damage:
        return VerifyReport([damage.message])
    finally:
        store.close()
