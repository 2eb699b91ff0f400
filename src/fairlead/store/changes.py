"""What a transaction changed: filled by the reducer, turned into rows by `store/rows.py`, each row once."""

from __future__ import annotations

from fairlead.model.queue import QueueRecord
from fairlead.records.chunk import Chunk
from fairlead.records.lease import GroupLease
from fairlead.records.state import Counts, DedupRow, OwnState
from fairlead.schedule.throttle import Bucket


class Changes:
    __slots__ = (
        "buckets",
        "chunks",
        "config",
        "counts",
        "dedup",
        "ended_leases",
        "ended_windows",
        "new_chunks",
        "new_leases",
        "own",
        "queues",
    )

    def __init__(self) -> None:
        self.new_chunks: list[Chunk] = []
        #: Chunks of which some messages got rows of their own, or are gone.
        self.chunks: set[Chunk] = set()
        self.new_leases: dict[int, GroupLease] = {}
        self.ended_leases: dict[int, GroupLease] = {}
        #: By (home queue, number); None: the row goes.
        self.own: dict[tuple[int, int], OwnState | None] = {}
        #: By (queue, dedup key); None: the row goes.
        self.dedup: dict[tuple[int, str], DedupRow | None] = {}
        #: (queue, end of the window, key)
        self.ended_windows: set[tuple[int, int, str]] = set()
        self.config: dict[str, str | None] = {}
        self.buckets: dict[str, Bucket | None] = {}
        self.queues: dict[int, QueueRecord] = {}
        self.counts: dict[int, Counts] = {}
