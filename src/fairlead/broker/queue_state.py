"""What the broker holds in memory about one queue."""

from __future__ import annotations

import threading
from collections import deque

from fairlead.broker.engine_lock import EngineLock
from fairlead.decide.drr import QueueScheduler
from fairlead.model.queue import QueueConfig, QueueRecord

NEVER_MS = 1 << 62


class Waiter:
    """A claim that waits for messages of one or several queues."""

    __slots__ = ("condition", "consumer", "woken")

    def __init__(self, lock: EngineLock, consumer: str) -> None:
        self.condition = threading.Condition(lock)  # type: ignore[arg-type]
        self.consumer = consumer
        self.woken = False

    def wake(self) -> None:
        self.woken = True
        self.condition.notify_all()


class QueueState:
    """Wake-ups (`next_*_ms`) are never later than the first thing due; they may be early."""

    __slots__ = (
        "next_dedup_ms",
        "next_done_ms",
        "next_due_ms",
        "next_expiry_ms",
        "next_retention_ms",
        "purging",
        "queue_id",
        "record",
        "scheduler",
        "waiters",
    )

    def __init__(self, record: QueueRecord, scheduler: QueueScheduler) -> None:
        self.record = record
        self.queue_id = record.queue_id
        self.scheduler = scheduler
        self.waiters: deque[Waiter] = deque()
        self.next_due_ms = NEVER_MS
        self.next_expiry_ms = NEVER_MS
        self.next_dedup_ms = NEVER_MS
        self.next_retention_ms = NEVER_MS
        self.next_done_ms = NEVER_MS
        #: A purge is under way: nothing is handed out until its rows are gone.
        self.purging = False

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def config(self) -> QueueConfig:
        return self.record.config

    @property
    def is_dead_letter_queue(self) -> bool:
        return self.record.source_id != 0

    @property
    def closed_to_claims(self) -> bool:
        return self.record.paused or self.purging

    def next_wake_ms(self) -> int:
        return min(
            self.next_due_ms,
            self.next_expiry_ms,
            self.next_dedup_ms,
            self.next_retention_ms,
            self.next_done_ms,
        )

    def wake_waiters(self, count: int) -> None:
        """Messages became ready: as many waiting claims look again, the longest waiting first."""
        if self.config.max_unsettled_per_consumer:
            # Whoever waits longest may be at its limit: all of them look.
            self.wake_all()
            return
        for waiter in self.waiters:
            if count <= 0:
                return
            if not waiter.woken:
                waiter.wake()
                count -= 1

    def wake_all(self) -> None:
        for waiter in self.waiters:
            waiter.wake()
