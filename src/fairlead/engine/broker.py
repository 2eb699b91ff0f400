"""The broker in process: a `Surface` whose `do` runs a request."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import fairlead.verbs  # noqa: F401 - fills the table
from fairlead.clock import Clock, SystemClock
from fairlead.config import Settings
from fairlead.engine.audit_trail import AuditTrail
from fairlead.engine.engine import Durability as Durability
from fairlead.engine.engine import Engine
from fairlead.engine.find_ids import full_id, queues_of, queues_of_leases
from fairlead.engine.key_ring import KeyRing
from fairlead.engine.measures import measure
from fairlead.engine.observers import FactObserver, TimingObserver
from fairlead.engine.work.staging import kinds_of
from fairlead.errors import InvalidRequest
from fairlead.model.measures import Measures
from fairlead.model.shown_times import shown, shown_ms, shown_pages
from fairlead.request import LOCAL, Answer, Caller, Request
from fairlead.store.kv.port import KeyValueStore
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.surface import Surface


class Broker(Surface):
    """A durable, fair, throttled, fenced work queue in one thread-safe object.

    Enqueues, settles and all administration return when their effect is durable: synced to disk with `fsync`,
    handed to the operating system with `os`. A claim is not synced: losing it in a power cut means
    redelivery. `close` keeps leases; consumers settle after the store is opened again.
    """

    def __init__(
        self,
        store: KeyValueStore,
        *,
        clock: Clock | None = None,
        durability: Durability = "fsync",
        settings: Settings | None = None,
        rng: random.Random | None = None,
    ) -> None:
        if durability not in ("fsync", "os"):
            raise InvalidRequest("durability", '"fsync" or "os"', durability)
        self.settings = settings or Settings()
        self.engine = Engine(
            store, clock=clock or SystemClock(), durability=durability, settings=self.settings, rng=rng
        )
        #: The API keys themselves, for authentication.
        self.key_ring = KeyRing(self.engine)
        #: Where acts are recorded.
        self.audit_trail = AuditTrail(self.engine)

    def do(self, request: Request[Answer], caller: Caller = LOCAL, *, gathered: bool = False) -> Answer:
        """Carry out a request. `gathered`: see `Engine.do`."""
        engine = self.engine
        answer = engine.do(request, caller, gathered=gathered) if gathered else engine.do(request, caller)
        ahead_ms = engine.time.ahead_ms
        if not ahead_ms:
            return answer
        moved: Any = answer
        return cast(Answer, shown_pages(moved, ahead_ms) if request.paged else shown(moved, ahead_ms))

    def kinds_of_write(self, token: str, queue: str) -> set[bool]:
        """The kinds of messages in a staged write: dead letters (True) and others (False)."""
        return kinds_of(self.engine, token, queue)

    def once(self, request: Request[Answer], *, session: str, number: int, arrived: int = 0) -> Answer:
        return self.do(request, LOCAL._replace(session=session, number=number, arrived=arrived))

    @property
    def clock(self) -> Clock:
        return self.engine.clock

    def now_ms(self) -> int:
        """The current time in the clock of all answers: a lease lasts `lease_until - now_ms()` longer."""
        return shown_ms(self.engine.time.now_ms(), self.engine.time.ahead_ms)

    # For a server

    def observe(self, observer: FactObserver, *, timed: TimingObserver | None = None) -> None:
        """Call `observer` with the facts of each commit after it was made, and with memory; and `timed` with
        the durations of commits, syncs and hooks.

        Both must be quick, must keep nothing that they receive (leases continue to change) and must not call
        the broker: facts arrive under the engine lock. An exception of theirs is logged once and harms no
        commit. The first facts are a `QueueStored` for each existing queue, so that an observer knows their
        names.
        """
        self.engine.observe(observer, timed)

    def measures(self) -> Measures:
        """The current measurements of every queue for metrics. The lock is released after each queue."""
        return measure(self.engine)

    def queue_names(self, queue_ids: Sequence[int]) -> list[str | None]:
        """The names of queues; None for one that is being deleted."""
        with self.engine.lock:
            found = [self.engine.memory.by_id.get(queue_id) for queue_id in queue_ids]
        return [None if queue is None else queue.name for queue in found]

    def queues_of(self, ids: Sequence[bytes]) -> list[str | None]:
        """The queue that each message is in now, for a layer that must know before anything is done; None if
        there is no such message.
        """
        return queues_of(self.engine, ids)

    def queues_of_leases(self, ids: Sequence[bytes]) -> set[str]:
        """The queues of these messages if all of them are leased; empty otherwise."""
        return queues_of_leases(self.engine, ids)

    def full_id(self, text: str, queue: str | None, visible: Callable[[str], bool]) -> str:
        """The result of `find` among the visible queues, as if there were no others."""
        return full_id(self.engine, text, queue, visible)

    def answering(self) -> AbstractContextManager[None]:
        """For a door: the room that this thread's looks hold stays held until the end of the block, because
        its answer is in memory until it is written.
        """
        return self.engine.looks.keep()

    def run_due(self) -> None:
        """Do all due work now. The timer does this by itself."""
        self.engine.run_due()

    def interrupt_waits(self) -> None:
        """For a server that is about to stop: waiting claims return empty and scans end at their next step,
        now and later.
        """
        self.engine.interrupt_waits()

    def close(self) -> None:
        """Stop deliveries; leases stay. Waiting claims get `BrokerClosed`. Closing twice is allowed."""
        self.engine.close()

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_directory(path: Path, *, clock: Clock | None, durability: Durability, settings: Settings) -> Broker:
    store = RocksKeyValueStore.open(
        path, cache_bytes=settings.block_cache_bytes, disk_reserve_bytes=settings.disk_reserve_bytes
    )
    try:
        return Broker(store, clock=clock, durability=durability, settings=settings)
    except BaseException:
        store.close()
        raise
