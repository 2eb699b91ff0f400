"""The changes of a transaction: filled by the reducer, turned into rows by `store/rows.py`, each row once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from fairlead.model.queue import QueueRecord
from fairlead.records.chunk import Chunk, LaneName
from fairlead.records.facts import PagesStaged, ScatteredEnqueued
from fairlead.records.lease import GroupLease
from fairlead.records.session import RememberedAnswer
from fairlead.records.state import Counts, DedupRow, MemberRow, OwnState, RunRow
from fairlead.records.stream import StreamRow
from fairlead.schedule.throttle import Bucket
from fairlead.store.kv.port import Table


class Changes:
    __slots__ = (
        "answers",
        "buckets",
        "chunks",
        "config",
        "cooled",
        "counts",
        "dedup",
        "deleted_queues",
        "done",
        "due",
        "ended_blocks",
        "ended_leases",
        "ended_windows",
        "has_others",
        "last_queue_id",
        "lives",
        "members",
        "new_chunks",
        "new_leases",
        "others",
        "own",
        "queues",
        "records",
        "runs",
        "scattered",
        "staged_pages",
        "streams",
        "thinned",
    )

    def __init__(self) -> None:
        self.new_chunks: list[Chunk] = []
        #: New chunks of one message each that memory does not hold.
        self.scattered: list[ScatteredEnqueued] = []
        #: Chunks in which messages got rows of their own, or are gone.
        self.chunks: set[Chunk] = set()
        self.new_leases: dict[int, GroupLease] = {}
        self.ended_leases: dict[int, GroupLease] = {}
        #: By (home queue, number); None: the row is deleted.
        self.own: dict[tuple[int, int], OwnState | None] = {}
        #: Chunks that became cold, or lost the rows of their lanes.
        self.cooled: set[Chunk] = set()
        #: Chunks that were replaced, each with the new one.
        self.thinned: list[tuple[Chunk, Chunk]] = []
        #: Blocks of chunks that are gone; the disk still has them.
        self.ended_blocks: set[int] = set()
        #: By (home queue, queue, lane, place, whether it is one message); None: the row is deleted.
        self.runs: dict[tuple[int, int, LaneName, int, bool], RunRow | None] = {}
        #: By (queue, stream), then by (seq, whether it is one message); None: the row is deleted.
        self.members: dict[tuple[int, str], dict[tuple[int, bool], MemberRow | None]] = {}
        #: By (queue, due time or time of completion, number), and by (queue, end, first number of a chunk);
        #: False: the row is deleted.
        self.due: dict[tuple[int, int, int], bool] = {}
        self.done: dict[tuple[int, int, int], bool] = {}
        self.lives: dict[tuple[int, int, int], bool] = {}
        #: By (queue, dedup key); None: the row is deleted.
        self.dedup: dict[tuple[int, str], DedupRow | None] = {}
        #: By (queue, stream); None: the row is deleted.
        self.streams: dict[tuple[int, str], StreamRow | None] = {}
        #: (queue, end of the window, key)
        self.ended_windows: set[tuple[int, int, str]] = set()
        #: Other tables of records, by table and key; None: the row is deleted.
        self.records: dict[tuple[Table, bytes], Any] = {}
        #: By (queue, number of the part); None: the rows are deleted.
        self.staged_pages: dict[tuple[int, int], PagesStaged | None] = {}
        self.config: dict[str, str | None] = {}
        self.buckets: dict[str, Bucket | None] = {}
        self.queues: dict[int, QueueRecord] = {}
        self.counts: dict[int, Counts] = {}
        #: Records of `Table.ANSWERS` by key; None: the row is deleted. Nearly every request of a client has
        #: some.
        self.answers: dict[bytes, RememberedAnswer | None] = {}
        #: Deleted queues, each with its dead-letter queue.
        self.deleted_queues: list[QueueRecord] = []
        #: The highest id that a queue ever had, if queues were deleted.
        self.last_queue_id = 0
        #: Whether any container that plain enqueues, claims and completions leave empty was filled when the
        #: rows were made: one check replaces many.
        self.has_others = False
        self.others: tuple[Collection[Any], ...] = (
            self.scattered,
            self.own,
            self.cooled,
            self.thinned,
            self.runs,
            self.members,
            self.due,
            self.done,
            self.lives,
            self.dedup,
            self.streams,
            self.ended_windows,
            self.records,
            self.staged_pages,
            self.config,
            self.buckets,
            self.queues,
            self.deleted_queues,
        )

    def clear(self) -> None:
        """Reset to the initial state, once these changes are rows. Creating all containers anew would cost as
        much as a row, and keep the garbage collector busy.
        """
        if self.has_others:
            Changes.__init__(self)
            return
        self.new_chunks.clear()
        self.chunks.clear()
        self.ended_blocks.clear()
        self.new_leases.clear()
        self.ended_leases.clear()
        self.counts.clear()
        self.answers.clear()

    def records_of(self, table: Table, keys: Iterable[bytes] | None = None) -> Mapping[bytes, Any]:
        """The changes of a table of records, at least of these keys."""
        if table is Table.ANSWERS:
            return self.answers
        if keys is not None:
            return {key: self.records[table, key] for key in keys if (table, key) in self.records}
        return {key: record for (where, key), record in self.records.items() if where is table}

    def forget(self, home: QueueRecord) -> None:
        """A queue and its dead letters were deleted: earlier changes of the transaction to them are void."""
        home_id, queue_ids = home.queue_id, (home.queue_id, home.dlq_id)
        self.new_chunks[:] = [chunk for chunk in self.new_chunks if chunk.queue_id != home_id]
        self.scattered[:] = [fact for fact in self.scattered if fact.queue_id != home_id]
        for chunks in (self.chunks, self.cooled):
            chunks -= {chunk for chunk in chunks if chunk.queue_id == home_id}
        for leases in (self.new_leases, self.ended_leases):
            for group in [group for group, lease in leases.items() if lease.terms.home_id == home_id]:
                del leases[group]
        by_queue = (
            self.own,
            self.runs,
            self.members,
            self.due,
            self.done,
            self.lives,
            self.dedup,
            self.streams,
        )
        for rows in by_queue:
            for key in [key for key in rows if key[0] == home_id]:
                del rows[key]  # type: ignore[arg-type]
        self.ended_windows -= {window for window in self.ended_windows if window[0] == home_id}
        for queue_id in queue_ids:
            self.queues.pop(queue_id, None)
            self.counts.pop(queue_id, None)
