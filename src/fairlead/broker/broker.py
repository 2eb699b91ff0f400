"""The broker in process: a `Surface` whose `do` runs a request on the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Literal

import fairlead.verbs  # noqa: F401 - fills the table
from fairlead.broker import looking, measures, staging
from fairlead.broker.audit import AuditTrail
from fairlead.broker.core import Core
from fairlead.broker.exchange import run_once
from fairlead.broker.intents import take_up
from fairlead.broker.keys import KeyRing
from fairlead.broker.room import check_growth
from fairlead.broker.runbooks import load_external
from fairlead.broker.runtime_config import apply_all
from fairlead.broker.timers import Timer, run_due
from fairlead.broker.transaction import Transaction
from fairlead.clock import Clock, SystemClock
from fairlead.config import Settings
from fairlead.engine.forks import watch
from fairlead.engine.observers import Observer, TimingObserver
from fairlead.errors import InvalidRequest
from fairlead.model.measures import Measures
from fairlead.model.shown_times import shown
from fairlead.request import LOCAL, Answer, Caller, Request, Room
from fairlead.store.port import Store
from fairlead.surface import Surface

Durability = Literal["fsync", "os"]


class Broker(Surface):
    """A durable, fair, throttled, fenced work queue in one thread-safe object.

    Enqueue, settle and all administration return when their effect is durable: synced to disk with `fsync`, handed to
    the operating system with `os`. A claim is not synced: losing one in a power cut means redelivery. `close` keeps
    leases; holders settle after the directory is opened again.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock | None = None,
        durability: Durability = "fsync",
        settings: Settings | None = None,
    ) -> None:
        if durability not in ("fsync", "os"):
            raise InvalidRequest("durability", '"fsync" or "os"', durability)
        self._core = Core(store, clock or SystemClock(), settings or Settings(), synced=durability == "fsync")
        apply_all(self._core)
        self._core.load()
        load_external(self._core)
        for intent in self._core.intents.values():
            take_up(self._core, intent)
        self._core.keys = KeyRing(self._core)
        self._core.audit = AuditTrail(self._core)
        self._timer = Timer(self._core)
        watch(self._core)

    def do(self, request: Request[Answer], caller: Caller = LOCAL) -> Answer:
        core = self._core
        if request.room is Room.GROWS:
            check_growth(core)
        tx = Transaction(core, caller)
        # Nearly all callers in process are LOCAL, which saves them a call.
        once = caller is not LOCAL and caller.is_once
        answer = run_once(request, tx) if once else request.run(tx)
        ahead_ms = core.time.ahead_ms
        return shown(answer, ahead_ms) if ahead_ms else answer

    def once(
        self, request: Request[Answer], request_id: str | None = None, *, answered: Sequence[str] = ()
    ) -> Answer:
        return self.do(request, LOCAL._replace(request_id=request_id, answered=answered))

    @property
    def clock(self) -> Clock:
        return self._core.clock

    def now_ms(self) -> int:
        """The time now, by the clock of all times in answers: a lease lasts `lease_until - now_ms()` longer."""
        return self._core.by_wall(self._core.now_ms())

    # For a server

    @property
    def key_ring(self) -> KeyRing:
        """The API keys themselves, for authentication."""
        return self._core.keys

    @property
    def audit_trail(self) -> AuditTrail:
        """Where acts are recorded."""
        return self._core.audit

    def observe(self, observer: Observer, *, timed: TimingObserver | None = None) -> None:
        """Tell `observer` the facts of each commit once it is made, and `timed` how long commits, syncs and
        hooks took.

        Both must be quick, keep nothing of what they get (leases go on changing) and not call the broker:
        facts are told under the engine lock. What they raise is logged once and harms nobody. The first facts
        told are a `QueueSaved` for each queue there is, so that an observer knows their names.
        """
        self._core.observe(observer, timed)

    def measures(self) -> Measures:
        """What metrics show of every queue at this moment. The lock is given back after each queue."""
        return measures.measures(self._core)

    def queue_names(self, queue_ids: Sequence[int]) -> list[str | None]:
        """None for one that is being deleted."""
        with self._core.lock:
            states = [self._core.by_id.get(queue_id) for queue_id in queue_ids]
        return [state.name if state is not None else None for state in states]

    def queues_of(self, ids: Sequence[bytes]) -> list[str | None]:
        """The queue that each message is in now, for one who must know before anything is done; None: there
        is no such message.
        """
        return looking.queues_of(self._core, ids)

    def full_id(self, text: str, queue: str | None, visible: Callable[[str], bool]) -> str:
        """What `find` would find among the queues that are visible, as if there were no others."""
        return looking.full_id(self._core, text, queue, visible)

    def answering(self) -> AbstractContextManager[None]:
        """For a door: what this thread's looks hold of the bytes that all looks may hold stays held until the
        end.

        Its answer is in memory until it is written.
        """
        return self._core.looks.keep()

    def kinds_of_write(self, token: str, queue: str) -> set[bool]:
        """Whether a staged write that is not published yet has dead letters (True) and other messages (False)."""
        return staging.kinds_of(self._core, token, queue)

    def run_due(self) -> None:
        """Do now whatever time has made due. The timer does this by itself."""
        run_due(self._core)

    def interrupt_waits(self) -> None:
        """For a server that is about to stop: claims that wait return empty, scans end at their next step,
        and later ones too.
        """
        with self._core.lock:
            self._core.interrupt_waits()

    def close(self) -> None:
        """Stop handing out; leases stay. Waiting claims get `BrokerClosed`. Closing twice is fine."""
        core = self._core
        with core.lock:
            if core.closed:
                return
            core.closed = True
            core.wake_all()
        core.hooks.close()
        self._timer.stop()
        with core.lock:
            try:
                core.mark_closed()
            finally:
                core.store.close()

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
