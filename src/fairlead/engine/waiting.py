"""Waiting claims: which of them is woken, and in which order.

A message that becomes ready wakes one claim, the one that has waited longest; a hundred idle workers do not
all look for one message. A claim that was woken and leaves messages behind wakes the next one. A claim waits
in a thread (`wait_for`), or, at a door with an event loop, as an entry with a callback (`Listening` with a
waiter of its own).
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fairlead.engine.fair_lock import FairLock
from fairlead.engine.memory import Memory
from fairlead.engine.queue import Queue
from fairlead.model.limits import MAX_CLAIM
from fairlead.records.facts import (
    BucketChanged,
    ChunkEnqueued,
    Claimed,
    ConfigChanged,
    MessageMoved,
    MessagesMoved,
    QueueDeleted,
    QueueStored,
    RecordsChanged,
    ScatteredEnqueued,
    StateFact,
)
from fairlead.request import Answer
from fairlead.store.kv.port import Table

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine


class Waiter:
    """A waiting claim. Used under the engine's lock."""

    __slots__ = ("consumer", "woken")

    def __init__(self, consumer: str) -> None:
        self.consumer = consumer
        self.woken = False

    def wake(self) -> None:
        """May be called again before the claim has looked."""
        raise NotImplementedError


class ThreadWaiter(Waiter):
    """Its thread sleeps until it is woken."""

    __slots__ = ("condition",)

    def __init__(self, lock: FairLock, consumer: str) -> None:
        super().__init__(consumer)
        self.condition = threading.Condition(lock)  # type: ignore[arg-type]

    def wake(self) -> None:
        self.woken = True
        self.condition.notify_all()


class Waiters:
    """False while no claim waits. Used under the engine's lock."""

    def __init__(self) -> None:
        self.by_queue: dict[int, deque[Waiter]] = {}

    def __bool__(self) -> bool:
        return bool(self.by_queue)

    def of(self, queue_id: int) -> Sequence[Waiter]:
        """The waiting claims of a queue, the longest waiting first."""
        return self.by_queue.get(queue_id, ())

    def listen(self, waiter: Waiter, queue_ids: Sequence[int]) -> None:
        for queue_id in queue_ids:
            self.by_queue.setdefault(queue_id, deque()).append(waiter)

    def leave(self, waiter: Waiter, queue_ids: Sequence[int]) -> None:
        for queue_id in queue_ids:
            waiters = self.by_queue[queue_id]
            waiters.remove(waiter)
            if not waiters:
                del self.by_queue[queue_id]

    def wake(self, queue_id: int, count: int) -> None:
        for waiter in self.of(queue_id):
            if count <= 0:
                return
            if not waiter.woken:
                waiter.wake()
                count -= 1

    def wake_all(self) -> None:
        for waiters in self.by_queue.values():
            for waiter in waiters:
                waiter.wake()

    def notice(self, memory: Memory, facts: Sequence[StateFact]) -> None:
        """Called after a transaction was written: wake as many claims as messages became ready, and all of
        them if more than that changed for a claim. `memory.changes` still has what the transaction
        touched.
        """
        ready: Counter[int] = Counter()
        for fact in facts:
            match fact:
                case ChunkEnqueued():
                    ready[fact.chunk.queue_id] += fact.chunk.count
                case ScatteredEnqueued():
                    ready[fact.queue_id] += len(fact.numbers)
                case Claimed():
                    ready[fact.lease.terms.queue_id] -= len(fact.numbers)
                case MessageMoved() if not (fact.state.due_ms or fact.state.done_ms):
                    ready[fact.state.queue_id] += 1
                case MessagesMoved() if fact.why != "delayed":
                    ready[fact.queue_id] += len(fact.numbers)
                case QueueStored() | QueueDeleted() | ConfigChanged() | BucketChanged():
                    self.wake_all()
                    return
                case RecordsChanged(table=Table.CLOSED | Table.API_KEYS):
                    # A throttle key was closed or opened, or the API key of a waiting claim was revoked.
                    self.wake_all()
                    return
        for queue_id in memory.changes.counts:
            queue = memory.by_id.get(queue_id)
            if queue is None or _depends_on_leases(queue):
                self.wake(queue_id, len(self.of(queue_id)))
            elif ready[queue_id] > 0:
                self.wake(queue_id, ready[queue_id])


def _depends_on_leases(queue: Queue) -> bool:
    """Whether the end of a lease lets a claim take more: the next message of a stream, or one within a limit.
    The longest waiting claim may still be at its limit, so all of them look.
    """
    config = queue.record.config
    return bool(config.max_unsettled_per_consumer or config.max_unsettled_per_key or queue.streams.has_any)


def allowance(memory: Memory, queue: Queue, consumer: str) -> int:
    """How many more messages of the queue the consumer may hold."""
    most = queue.record.config.max_unsettled_per_consumer
    if not most:
        return MAX_CLAIM
    leases = memory.by_consumer.get(consumer, ())
    return most - sum(lease.live for lease in leases if lease.terms.queue_id == queue.record.queue_id)


def wait_for(
    engine: Engine,
    names: Sequence[str],
    consumer: str,
    patience_ms: int,
    take: Callable[[], Answer],
    empty: Answer,
) -> Answer:
    """Under the lock, which is free while the call waits: call `take` again whenever these queues may have
    something for the consumer, and return its first non-empty result. The last result may be empty; the
    result is `empty` if the wait was interrupted.
    """
    deadline_ms = engine.clock.monotonic_ms() + patience_ms
    waiter = ThreadWaiter(engine.lock, consumer)
    listening = Listening(engine, names, waiter)
    try:
        while True:
            token_ms = listening.listen()
            left_ms = deadline_ms - engine.clock.monotonic_ms()
            if left_ms > 0 and not engine.waits_over:
                engine.clock.wait(waiter.condition, left_ms if token_ms is None else min(left_ms, token_ms))
                if engine.waits_over:
                    # Its server is stopping: messages that arrived meanwhile stay for others.
                    return empty
            answer = take()
            if answer or left_ms <= 0 or engine.waits_over:
                return answer
    finally:
        listening.leave()


class Listening:
    """From `listen` to `leave`, a claim is woken whenever these queues may have something for it. Used under
    the engine's lock.
    """

    __slots__ = ("_engine", "_names", "_queue_ids", "_waiter")

    def __init__(self, engine: Engine, names: Sequence[str], waiter: Waiter) -> None:
        self._engine = engine
        self._names = names
        self._waiter = waiter
        self._queue_ids: list[int] = []

    def listen(self) -> int | None:
        """Be woken from now on. Returns after how many milliseconds the claim should look by itself, because
        a token may be available then; None if it need not.
        """
        engine, waiter = self._engine, self._waiter
        # Looked up each time: a queue may be deleted and created again while the claim waits.
        present_ids = _present(engine.memory, self._names)
        if present_ids != self._queue_ids:
            engine.waiters.leave(waiter, self._queue_ids)
            self._queue_ids = present_ids
            engine.waiters.listen(waiter, present_ids)
        waiter.woken = False
        return _next_token_ms(engine, present_ids, waiter.consumer)

    def leave(self) -> None:
        """Stop being woken. Calling it twice is allowed."""
        engine, queue_ids = self._engine, self._queue_ids
        self._queue_ids = []
        engine.waiters.leave(self._waiter, queue_ids)
        for queue_id in queue_ids if self._waiter.woken else ():
            queue = engine.memory.by_id.get(queue_id)
            if queue is not None and queue.counts.ready:
                # It was woken for this queue, and took from another or left some: the next claim must not
                # sleep beside a message.
                engine.waiters.wake(queue_id, 1)


def _present(memory: Memory, names: Sequence[str]) -> list[int]:
    found = [memory.by_name[name].record.queue_id for name in names if name in memory.by_name]
    return list(dict.fromkeys(found))


def _next_token_ms(engine: Engine, queue_ids: Sequence[int], consumer: str) -> int | None:
    """How long until a parked lane may get a token; only if this consumer could take it, because otherwise it
    would look again forever.
    """
    memory = engine.memory
    open_to_it = [
        queue
        for queue in [memory.by_id[queue_id] for queue_id in queue_ids]
        if not queue.record.paused and allowance(memory, queue, consumer) > 0
    ]
    times = [at_ms for queue in open_to_it if (at_ms := queue.schedule.next_wake_ms()) is not None]
    return max(1, min(times) - engine.time.now_ms()) if times else None
