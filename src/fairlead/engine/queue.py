"""A queue in memory: its record, its counts, and its lanes, streams, chunks and leases."""

from __future__ import annotations

from fairlead.decide.retry import has_jitter
from fairlead.engine.blocks import Blocks
from fairlead.engine.streams import QueueStreams
from fairlead.model.queue import QueueRecord
from fairlead.records.chunk import LaneName
from fairlead.records.lease import GroupLease
from fairlead.records.state import Counts
from fairlead.schedule.drr import Container, Scheduler

#: Dead letters share one lane, so that their order is that of their deaths.
DEAD_LANE: LaneName = ("default",)


class Queue:
    __slots__ = (
        "blocks",
        "counts",
        "first_done_ms",
        "has_jitter",
        "home_id",
        "is_dead_letter_queue",
        "is_ordered",
        "leases",
        "next_due_ms",
        "next_life_ms",
        "next_window_ms",
        "record",
        "schedule",
        "served_ms",
        "streams",
        "takes_all",
    )  # fmt: skip

    def __init__(
        self, record: QueueRecord, schedule: Scheduler, streams: QueueStreams, blocks: Blocks
    ) -> None:
        self.set_record(record)
        self.schedule = schedule
        self.streams = streams
        self.counts = Counts()
        #: Chunks of messages that were enqueued here.
        self.blocks = blocks
        self.leases: dict[int, GroupLease] = {}
        #: When a wait, a life or the window of a dedup key may end next; 0 if there is none.
        self.next_due_ms = 0
        #: When the first retained message may have been completed; 0 if there is none.
        self.first_done_ms = 0
        self.next_life_ms = 0
        self.next_window_ms = 0
        #: When messages were claimed last, as far as is known.
        self.served_ms = 0

    def set_record(self, record: QueueRecord) -> None:
        """Set the record and values derived from it, which verbs read far more often than it changes."""
        self.record = record
        self.is_dead_letter_queue = record.source_id != 0
        config = record.config
        #: Whether it accepts messages unchanged: no time to live and no limit of its own.
        self.takes_all = not (record.source_id or config.ttl_ms or config.max_messages or config.max_bytes)
        #: Whether streams order its messages. It does not change while the queue has messages.
        self.is_ordered = record.config.ordering != "none"
        #: Whether chance influences its retries.
        self.has_jitter = has_jitter(record.config)
        #: The queue under which the rows of its messages are stored.
        self.home_id = record.source_id or record.queue_id

    @property
    def name(self) -> str:
        return self.record.name

    def containers(self) -> list[Container]:
        """Containers with as many items as the queue has keys or messages."""
        return [*self.schedule.containers(), self.streams.by_name, self.leases]

    def may_have_due(self, now_ms: int) -> bool:
        """Whether a wait, a life or a retention may have ended; leases and windows are checked elsewhere."""
        if self.first_done_ms:
            return True
        if self.is_dead_letter_queue:
            # Nothing waits there, and retention ends messages that no claim holds.
            return self.counts.ready > 0
        return 0 < self.next_due_ms <= now_ms or 0 < self.next_life_ms <= now_ms

    @property
    def end_of_keeping_ms(self) -> int:
        """When the message that was completed first has been retained long enough; at once, if the queue
        retains none any more.
        """
        kept_ms = self.record.config.retain_completed_ms
        return self.first_done_ms + kept_ms if kept_ms else 0
