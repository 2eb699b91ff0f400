"""The engine: one lock, one open transaction at a time, `do(request) -> answer`."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, cast

from fairlead.clock import Clock, SystemClock
from fairlead.engine.memory import Memory
from fairlead.engine.moves import run_due
from fairlead.engine.transaction import Transaction
from fairlead.engine.work import WORK
from fairlead.errors import (
    BrokenInvariant,
    BrokerClosed,
    FairleadError,
    InvalidRequest,
    StaleEpoch,
    Unavailable,
)
from fairlead.request import LOCAL, Answer, Caller, Request
from fairlead.store.changes import Changes
from fairlead.store.kv.port import KeyValueStore
from fairlead.store.rows import load, write_changes

Durability = Literal["fsync", "os"]


class Engine:
    """A set of queues with one owner: one lock, one sequence of commits. Thread-safe.

    `do` returns when the effect of a durable request is synced (`fsync`) or handed to the operating system
    (`os`). After a stale epoch the engine has stepped down: it answers nothing more, and never acquires the
    store again by itself.
    """

    def __init__(
        self,
        store: KeyValueStore,
        *,
        clock: Clock | None = None,
        durability: Durability = "fsync",
        rng: random.Random | None = None,
    ) -> None:
        self.store = store
        self.clock = clock or SystemClock()
        self._random = rng or random.Random()
        self._must_sync = durability == "fsync"
        # Reentrant: a layer opens a transaction that the verb inside it joins.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiters = 0
        self._open: Transaction | None = None
        self._closed = False
        #: Why the engine answers nothing more; None while it owns the store.
        self._stepped_down: StaleEpoch | None = None
        self._epoch = store.acquire()
        self._commit = store.last_commit
        self._synced = self._commit
        self._id_ms = 0
        #: Whether memory may differ from the store, because loading it anew failed.
        self._is_stale = False
        self.memory = memory_of(store)
        self._unsubscribe = self.clock.subscribe(self.run_due)

    def do(self, request: Request[Answer], caller: Caller = LOCAL) -> Answer:
        """Run a request as a transaction of its own, or as a part of the one that this thread has open."""
        if type(request) not in WORK:
            raise InvalidRequest("request", "a verb that the new engine can do", request.verb_name)
        with self._lock:
            if self._open is not None:
                return self._run(request, self._open)
            answer = self._transact(request)
            patience_ms = request.patience_ms()
            if not answer and patience_ms:
                answer = self._wait_for(request, patience_ms)
            commit = self._commit
        if request.durable:
            self.confirm(commit)
        return answer

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Several requests as one write: requests inside join it. Their answers count once it has ended without
        an error and `confirm` has returned.

        A refusal is for its request alone, and may be caught inside. Anything else that is raised ends the
        transaction: nothing is written, and everybody inside gets `Unavailable`, also at the end.
        """
        with self._lock:
            if self._open is not None:
                yield self._open
                return
            tx = self._begin()
            try:
                yield tx
            except BaseException as trouble:
                self._judge(tx, trouble)
                if tx.lost is None:
                    self._end(tx)
                raise
            finally:
                self._open = None
            self._end(tx)

    def confirm(self, commit: int | None = None) -> None:
        """Without the lock: return once that commit, or every commit so far, is as durable as was asked for."""
        covered = self._commit
        if not self._must_sync or (covered if commit is None else commit) <= self._synced:
            return
        self.store.sync()
        self._synced = max(self._synced, covered)

    def run_due(self) -> None:
        """Do whatever time has made due, in bounded steps that let others have the lock in between."""
        while not self._closed:
            with self.transaction() as tx:
                if not run_due(tx):
                    return

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._unsubscribe()
            self._changed.notify_all()
            self.store.close()

    # One transaction

    def _transact(self, request: Request[Answer]) -> Answer:
        tx = self._begin()
        try:
            answer = self._run(request, tx)
        finally:
            self._open = None
        self._end(tx)
        return answer

    def _run(self, request: Request[Answer], tx: Transaction) -> Answer:
        tx.start_request()
        try:
            return cast(Answer, WORK[type(request)](tx, request))
        except BaseException as trouble:
            self._judge(tx, trouble)
            raise

    def _begin(self) -> Transaction:
        if self._closed:
            raise BrokerClosed
        if self._stepped_down is not None:
            raise StaleEpoch(**self._stepped_down.fields)
        if self._is_stale:
            self._reload(None)
        now_ms = self.clock.now_ms()
        self._id_ms = max(self._id_ms, now_ms)
        self._open = Transaction(
            self.memory,
            self.store,
            commit=self._commit + 1,
            epoch=self._epoch,
            now_ms=now_ms,
            id_ms=self._id_ms,
            random=self._random,
        )
        return self._open

    def _end(self, tx: Transaction) -> None:
        """Write what changed. No facts, no write."""
        self._open = None
        tx.check_lost()
        if not tx.facts:
            return
        try:
            batch = self.store.batch()
            write_changes(batch, self.memory.changes)
            self.store.write(batch, self._epoch, tx.commit)
        except BaseException as trouble:
            self._abandon(tx, trouble)
            raise
        self.memory.changes = Changes()
        self._commit = tx.commit
        if self._waiters:
            self._changed.notify_all()

    def _judge(self, tx: Transaction, trouble: BaseException) -> None:
        """A refusal that came before any change is for its request alone. Anything else ends the transaction."""
        is_refusal = isinstance(trouble, FairleadError) and not isinstance(trouble, BrokenInvariant)
        if tx.lost is None and (not is_refusal or tx.has_changed):
            self._abandon(tx, trouble)

    def _abandon(self, tx: Transaction, trouble: BaseException) -> None:
        """Nothing of the transaction will be written. Loads anew what it touched, and raises `Unavailable` in
        place of the trouble, unless that is an `Unavailable` itself or an interrupt.
        """
        tx.lost = f"{type(trouble).__name__}: {trouble}"
        if isinstance(trouble, StaleEpoch):
            self._stepped_down = trouble
        else:
            self._is_stale = True
            # If this fails too, the next transaction tries again.
            with contextlib.suppress(Exception):
                self._reload(_touched(self.memory))
        if isinstance(trouble, Exception) and not isinstance(trouble, Unavailable):
            raise tx.lost_error() from trouble

    def _reload(self, home_ids: set[int] | None) -> None:
        """Make memory what the store says: of some queues and their dead letters, or of all."""
        if home_ids is None:
            self.memory = memory_of(self.store)
        else:
            self.memory.changes = Changes()
            for home_id in home_ids:
                self.memory.forget(home_id)
            load_into(self.memory, self.store, home_ids)
        self._is_stale = False

    def _wait_for(self, request: Request[Answer], patience_ms: int) -> Answer:
        """Under the lock: try again after each change, and when something is due, until the answer is not
        empty.
        """
        deadline_ms = self.clock.monotonic_ms() + patience_ms
        self._waiters += 1
        try:
            while True:
                left_ms = deadline_ms - self.clock.monotonic_ms()
                if left_ms > 0:
                    self.clock.wait(self._changed, self._until_next_event(left_ms))
                answer = self._transact(request)
                if answer or left_ms <= 0:
                    return answer
        finally:
            self._waiters -= 1

    def _until_next_event(self, left_ms: int) -> int:
        event_ms = self.memory.next_event_ms()
        return left_ms if event_ms is None else max(1, min(left_ms, event_ms - self.clock.now_ms()))


def memory_of(store: KeyValueStore) -> Memory:
    memory = Memory()
    load_into(memory, store, None)
    return memory


def load_into(memory: Memory, store: KeyValueStore, home_ids: set[int] | None) -> None:
    for fact in load(store, home_ids):
        memory.apply(fact)
    memory.changes = Changes()


def _touched(memory: Memory) -> set[int] | None:
    """The queues, with their dead letters, of which a lost transaction changed anything. None: all of them, as
    they share configuration and buckets.
    """
    changes = memory.changes
    if changes.config or changes.buckets:
        return None
    queue_ids = {*changes.counts, *changes.queues}
    queue_ids |= {
        lease.terms.queue_id for lease in [*changes.new_leases.values(), *changes.ended_leases.values()]
    }
    homes = {memory.by_id[queue_id].home_id for queue_id in queue_ids}
    return homes | {home_id for home_id, _ in changes.own}
