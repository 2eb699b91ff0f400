"""The engine: one lock, one open transaction at a time, `do(request) -> answer`."""

from __future__ import annotations

import contextlib
import gc
import logging
import random
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from time import perf_counter
from typing import Any, Literal, cast

from fairlead.clock import Clock, SystemClock
from fairlead.config import Settings
from fairlead.decide.sessions import check_numbers, check_session
from fairlead.engine.chunk_messages import ChunkMessages, is_much, with_bodies
from fairlead.engine.cold import load_lanes
from fairlead.engine.consumer_steps import run_consumers_due
from fairlead.engine.demotion import demote_idle
from fairlead.engine.due_times import latest_ms, next_event_ms
from fairlead.engine.evacuation import Evacuation
from fairlead.engine.fair_lock import FairLock
from fairlead.engine.forks import watch
from fairlead.engine.hooking import ASKS_ALWAYS, Hooking
from fairlead.engine.memory import Memory
from fairlead.engine.moves import may_be_due, run_due
from fairlead.engine.observers import FactObserver, Observers, TimingObserver
from fairlead.engine.operations import LongOperations
from fairlead.engine.queue import Queue
from fairlead.engine.read_ahead import read_for
from fairlead.engine.reduce.chunks import hold_scattered
from fairlead.engine.reduce.cooling import cool_chunks
from fairlead.engine.reduce.lanes import fill_lanes
from fairlead.engine.reduce.letting_go import let_go
from fairlead.engine.reduce.queues import forget_queue
from fairlead.engine.reduce.streams import place_fronts, update_fronts
from fairlead.engine.reduce.throttles import restart_probes
from fairlead.engine.room import check_growth
from fairlead.engine.sessions import SessionSweep
from fairlead.engine.short_ways import ShortWay, find_short_way
from fairlead.engine.store_time import MARK_KEY, StoreTime, find_mark
from fairlead.engine.tally import Tally
from fairlead.engine.timer import Timer
from fairlead.engine.transaction import NO_ANSWERS, Breakers, HookAnswers, StoredAhead, Transaction
from fairlead.engine.waiting import Waiters, wait_for
from fairlead.engine.work import WORK, WORK_IN_STEPS
from fairlead.engine.work.ahead import is_large_payload, stored_ahead
from fairlead.engine.work.config import forget_full_buckets
from fairlead.engine.work.large import IN_PARTS, is_large
from fairlead.engine.work.publish_steps import run_staging_due
from fairlead.engine.work.remembered import facts_at, find_place, run_numbered
from fairlead.errors import (
    BrokenInvariant,
    BrokerClosed,
    BrokerForked,
    FairleadError,
    InvalidRequest,
    ServerStopping,
    StaleEpoch,
    Unavailable,
)
from fairlead.look_budget import LookBudget
from fairlead.model.durations import show_ms
from fairlead.model.limits import MAX_LOOK_BYTES
from fairlead.model.timings import Timing
from fairlead.records.facts import (
    AnswerRemembered,
    BucketChanged,
    ChunkDemoted,
    ChunkEnqueued,
    ChunkGrown,
    ChunkThinned,
    Claimed,
    LeaseCompleted,
    LeaseSplit,
    QueueStored,
    RecordsChanged,
    ScatteredEnqueued,
    StateFact,
)
from fairlead.records.ids import COMMIT_SHIFT
from fairlead.records.lease import NEVER_EXPIRES_MS
from fairlead.request import LOCAL, Answer, Caller, Request, Room
from fairlead.store.changes import Changes
from fairlead.store.kv.port import Batch, KeyValueStore, Table
from fairlead.store.row_check import check_readable
from fairlead.store.rows import load, session_key, write_changes
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.sessions import Rule, check_accepted, session_rule

Durability = Literal["fsync", "os"]

_log = logging.getLogger("fairlead.engine")
_time_log = logging.getLogger("fairlead.time")


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
        settings: Settings | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.store = store
        self.settings = settings or Settings()
        self.clock = clock or SystemClock()
        self.random = rng or random.Random()
        self._must_sync = durability == "fsync"
        #: Reentrant: a layer opens a transaction that the verb inside it joins.
        self.lock = FairLock()
        self.waiters = Waiters()
        self._open: Transaction | None = None
        #: By the identity of an enqueue under way: its payload, which is stored already.
        self.stored_ahead: dict[int, StoredAhead] = {}
        #: Messages of the next answer whose payloads are not in memory, by block.
        self.unread: dict[int, ChunkMessages] = {}
        self.closed = False
        #: The server of this engine is stopping: a claim that finds nothing returns at once, and scans end.
        self.waits_over = False
        #: Why the engine answers nothing more: it lost the store, the store failed, or the process is a fork.
        self._over: FairleadError | None = None
        self.epoch = store.acquire()
        self._commit = store.last_commit
        self._synced = self._commit
        #: The last commit that a power cut must not undo.
        self._must_keep = self._commit
        self._id_ms = 0
        #: Whether memory may differ from the store, because loading it anew failed.
        self._is_stale = False
        self.memory = self._load_memory()
        self.tally = Tally()
        self.observers = Observers()
        #: The bytes of messages that all looks hold.
        self.looks = LookBudget(MAX_LOOK_BYTES, self.check_scan)
        self._session_sweep = SessionSweep(self.clock)
        self.time = StoreTime(self.clock, find_mark(store), self.epoch, not_before_ms=latest_ms(self.memory))
        self.breakers: Breakers = {}
        self.hooking = Hooking(self, self.settings.lua)
        self.operations = LongOperations(self)
        self.evacuation = Evacuation(self)
        self._timer = Timer(self)
        watch(self)
        if self.time.may_lack_commits:
            self._empty_buckets()
        self._timer.start()

    def do(self, request: Request[Answer], caller: Caller = LOCAL, *, gathered: bool = False) -> Answer:
        """Run a request as a transaction of its own, or as part of the transaction that this thread has open.

        `gathered`: for a door that waits for many requests at once. A claim that finds nothing returns, and
        the door calls `confirm` before it sends durable answers, and `read_bodies` for an answer with large
        payloads.
        """
        short_way, has_read = find_short_way(type(request)), False
        while short_way is not None:
            lock = self.lock
            # CPython looks up an attribute faster than a method where the object itself, not its class, has it.
            acquire_now, release = lock.acquire_now, lock.release
            if not acquire_now(False):
                lock.acquire()
            try:
                found = self._take(short_way, request, caller)
                commit = self._must_keep
            finally:
                release()
            if found is not None:
                if self._must_sync and request.durable and not gathered:
                    self.confirm(commit)
                return found
            # Once: memory may have no room to keep what was read.
            if has_read or not read_for(self, request):
                break
            has_read = True
        else:
            read_for(self, request)
        if caller is not LOCAL and caller.session is not None:
            caller = self._numbered_caller(request, caller)
        if request.room is Room.GROWS:
            self._check_open()
            check_growth(self.store)
        if type(request) not in WORK:
            return self._do_in_steps(request, caller)
        is_large_one = type(request) is Enqueue and is_large_payload(request)
        if is_large_one and not self.lock.is_owned and id(request) not in self.stored_ahead:
            with stored_ahead(self, cast(Any, request)):
                return self.do(request, caller, gathered=gathered)
        in_session = caller is not LOCAL and caller.session is not None
        if type(request) in IN_PARTS and is_large(request) and not in_session and not self.lock.is_owned:
            in_parts = IN_PARTS[type(request)](self, request, caller)
            if in_parts is not None:
                return cast(Answer, in_parts)
        with self.lock:
            if self._open is not None:
                answer = self._run(request, self._open, caller)
                unread = self.take_unread()
                if not unread or (gathered and is_much(unread)):
                    return answer
                return with_bodies(self, unread, answer)
            asks = self.hooking.is_used or type(request) in ASKS_ALWAYS
            if not asks:
                answer = self._transact(request, caller, NO_ANSWERS)
                answer = answer if answer or gathered else self._wait_for(request, answer, caller)
                commit, unread = self._must_keep, self.take_unread()
        if asks:
            self._check_open()
            answers = self.hooking.ask([request])
            with self.lock:
                answer = self._transact(request, caller, answers)
                answer = answer if answer or gathered else self._wait_for(request, answer, caller)
                commit, unread = self._must_keep, self.take_unread()
        if unread and not (gathered and is_much(unread)):
            answer = with_bodies(self, unread, answer)
        if request.durable and self._must_sync and not gathered:
            self.confirm(commit)
        return answer

    def _numbered_caller(self, request: Request[Answer], caller: Caller) -> Caller:
        """The caller with its session; without it, if the session simply runs the request."""
        check_session(caller.session)
        check_numbers(caller.number, caller.arrived)
        rule = _session_rule(type(request))
        if rule == "remembered":
            return caller
        check_accepted(request, rule)
        return caller._replace(session=None)

    def unconfirmed(self) -> int | None:
        """The last commit that durable answers wait for; None if `confirm` would wait for none."""
        return self._must_keep if self._must_sync and self._must_keep > self._synced else None

    def take_unread(self) -> Collection[ChunkMessages]:
        """Under the lock: messages of the answer whose payloads must be read. Without the lock, `unread`
        belongs to another request.
        """
        if not self.unread:
            return ()
        unread, self.unread = self.unread, {}
        return unread.values()

    def _do_in_steps(self, request: Request[Answer], caller: Caller) -> Answer:
        work = WORK_IN_STEPS.get(type(request))
        if work is None:
            raise InvalidRequest("request", "a verb of the engine", request.verb_name)
        answer: Answer = work(self, request, caller)
        return answer

    @contextmanager
    def transaction(self, hooks: HookAnswers = NO_ANSWERS) -> Iterator[Transaction]:
        """Several requests as one write: requests inside the block join it. Their answers count once it has
        ended without an error and `confirm` has returned. `hooks`: answers of hooks about the requests,
        obtained before.

        A refusal concerns its request alone, and may be caught inside. Any other exception ends the
        transaction: nothing is written, and every request inside gets `Unavailable`, also at the end. Waiting
        threads get the lock first.
        """
        self.lock.let_waiters_pass()
        with self.lock:
            if self._open is not None:
                yield from self._join(self._open)
                return
            tx = self._begin(hooks)
            tx.began_ms = self.clock.monotonic_ms()
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

    def confirm(self, commit: int | None = None, *, synced: bool = False) -> None:
        """Without the lock: return once that commit, or every commit so far, is as durable as configured.
        `synced=True` always waits for the sync.
        """
        covered = self._commit
        must_sync = self._must_sync or synced
        if not must_sync or (covered if commit is None else commit) <= self._synced:
            return
        began = perf_counter()
        try:
            self.store.sync()
        except BrokenInvariant as broken:
            with self.lock:
                self._stop(broken)
            raise
        self._synced = max(self._synced, covered)
        if self.observers:
            self.observers.timed(Timing("sync", perf_counter() - began))

    def run_due(self) -> None:
        """Do all due work, in bounded steps between which other threads get the lock."""
        self._notice_clock_step()
        is_worth_a_look = True
        while not self.closed:
            answers = self.hooking.ask_overdue()
            if is_worth_a_look or answers.failures:
                with self.transaction(answers) as tx:
                    worked = run_due(tx) or run_consumers_due(tx) or run_staging_due(tx)
                    worked = worked or self._session_sweep.run(tx)
                    worked = worked or forget_full_buckets(tx) or demote_idle(tx)
                if worked or answers.failures:
                    is_worth_a_look = self._may_have_due()
                    continue
            is_worth_a_look = True
            if self.operations.run_step():
                continue
            if not self.evacuation.run_step():
                return

    def _may_have_due(self) -> bool:
        """Whether a transaction of the timer may find work. One that finds none costs as much as many verbs.
        An engine in trouble discovers that in its transactions.
        """
        with self.lock:
            if self._open is not None or self._is_stale or self._over is not None or self.memory.idle_buckets:
                return True
            return may_be_due(self.memory, self.time.now_ms()) or self._session_sweep.is_due()

    def observe(self, observer: FactObserver, timed: TimingObserver | None = None) -> None:
        with self.lock:
            self._check_open()
            queues = [QueueStored(queue.record) for queue in self.memory.by_id.values()]
            self.observers.add(observer, timed, queues, self.memory)
            self.hooking.hooks.timed = self.observers.timed

    def wake_timer(self) -> None:
        """Under the lock: something is due as soon as the lock is free."""
        self._timer.wake_by(0)

    def interrupt_waits(self) -> None:
        """Waiting claims return empty and scans end at their next step, now and later."""
        with self.lock:
            self.waits_over = True
            self.waiters.wake_all()
        self.looks.wake()

    def check_scan(self) -> None:
        """For long reads, at every step: raises when they must end, because the engine is closed or its
        server is stopping.
        """
        self._check_open()
        if self.waits_over:
            raise ServerStopping

    def waiting_consumers(self, queue: Queue) -> set[str]:
        """Under the lock: consumers that wait in a claim of the queue."""
        return {waiter.consumer for waiter in self.waiters.of(queue.record.queue_id)}

    def stop_working(self) -> None:
        """Answer nothing more, and write nothing more. Waiting claims get `BrokerClosed`."""
        with self.lock:
            self.closed = True
            self.waiters.wake_all()
        self.looks.wake()
        self._timer.stop()

    def close(self) -> None:
        """Close the engine. Leases stay. Closing twice is allowed."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
        self.hooking.hooks.close()
        self.stop_working()
        with self.lock:
            try:
                self._mark_closed()
            finally:
                self.store.close()

    def _mark_closed(self) -> None:
        """Write the last commit of this life: if it is there, nothing before it is missing."""
        if self._over is None:
            with contextlib.suppress(FairleadError):
                tx = self._begin(NO_ANSWERS, is_last=True)
                self._open = None
                tx.add(self._mark(closed=True))
                self._write(tx.commit, tx.facts)

    def disown(self) -> None:
        """In a forked child: make every call fail with an error. The thread that held the lock at the fork
        does not exist here to release it.
        """
        self.lock = FairLock()
        self.closed = True
        self._over = BrokerForked()

    # One transaction

    def _join(self, tx: Transaction) -> Iterator[Transaction]:
        """A step of a verb inside the transaction that this thread has open already."""
        tx.start_request(tx.caller)
        try:
            tx.add_gathered()
            hold_scattered(self.memory)
            yield tx
            update_fronts(self.memory)
        except BaseException as trouble:
            self._judge(tx, trouble)
            raise

    def _transact(self, request: Request[Answer], caller: Caller, hooks: HookAnswers = NO_ANSWERS) -> Answer:
        tx = self._begin(hooks)
        tx.caller = caller
        if self.stored_ahead:
            tx.ahead = self.stored_ahead.get(id(request))
        try:
            answer: Answer = _carry_out(tx, request)
        except BaseException as trouble:
            self._judge(tx, trouble, request.verb_name)
            # Let go of what a refused request has read.
            let_go(self.memory)
            raise
        finally:
            self._open = None
        self._end(tx)
        return answer

    def _take(self, short_way: ShortWay, request: Request[Answer], caller: Caller) -> Answer | None:
        """Run a transaction of the one fact that `short_way` returns, and of the remembered answer if the
        request has a number. None: the request needs the general way.
        """
        if self._open is not None or self.closed or self._over is not None or self._is_stale:
            return None
        memory, now_ms = self.memory, self.time.now_ms()
        if self.hooking.is_used or now_ms >= self.time.next_mark_ms:
            return None
        in_session = caller is not LOCAL and caller.session is not None
        place = find_place(memory, caller) if in_session else None
        if in_session and place is None:
            return None
        if now_ms > self._id_ms:
            self._id_ms = now_ms
        commit = self._commit + 1
        facts: tuple[StateFact, ...] = ()
        try:
            token = caller.claim_token if in_session and type(request) is Claim else None
            found = short_way(self, request, commit, now_ms, self._id_ms, token)
            if found is None:
                return None
            fact, answer = found
            facts = (fact,)
            memory.apply(fact)
            if place is not None:
                facts += facts_at(place, caller, request, answer, now_ms)
                for fact in facts[1:]:
                    memory.apply(fact)
            if memory.touched_streams or memory.ended_deliveries:
                update_fronts(memory)
            if memory.changes.chunks:
                cool_chunks(memory)
        except BaseException as trouble:
            tx = Transaction(self, commit, self.epoch, now_ms, self._id_ms, NO_ANSWERS)
            tx.facts += facts
            self._judge(tx, trouble, request.verb_name)
            raise
        try:
            self._write(commit, facts)
        except BrokenInvariant as broken:
            self._stop(broken)
            raise
        except BaseException as trouble:
            self._abandon(Transaction(self, commit, self.epoch, now_ms, self._id_ms, NO_ANSWERS), trouble)
            raise
        self._written(commit, facts)
        return cast(Answer, answer)

    def _run(self, request: Request[Answer], tx: Transaction, caller: Caller) -> Answer:
        tx.start_request(caller)
        try:
            if type(request) not in _ENQUEUES:
                tx.add_gathered()
                if self.memory.changes.scattered:
                    hold_scattered(self.memory)
            answer: Answer = _carry_out(tx, request)
            update_fronts(self.memory)
            return answer
        except BaseException as trouble:
            self._judge(tx, trouble, request.verb_name)
            raise

    def _check_open(self) -> None:
        if self._over is not None:
            # A new error: one that is raised twice carries two tracebacks.
            again = type(self._over).__new__(type(self._over))
            FairleadError.__init__(again, self._over.message, **self._over.fields)
            raise again
        if self.closed:
            raise BrokerClosed

    def _begin(self, hooks: HookAnswers, *, is_last: bool = False) -> Transaction:
        """Begin a transaction. `is_last`: also if the engine is closed."""
        if (self.closed and not is_last) or self._over is not None:
            self._check_open()
        if self._is_stale:
            self._reload(None)
        now_ms = self.time.now_ms()
        if now_ms > self._id_ms:
            self._id_ms = now_ms
        tx = self._open = Transaction(self, self._commit + 1, self.epoch, now_ms, self._id_ms, hooks)
        return tx

    def _end(self, tx: Transaction) -> None:
        """Write the changes. Without facts there is no write."""
        self._open = None
        if tx.lost is not None:
            raise tx.lost_error()
        memory = self.memory
        if not tx.facts:
            let_go(memory)
            return
        is_marked = tx.now_ms >= self.time.next_mark_ms
        if is_marked:
            tx.add(self._mark())
        try:
            tx.add_gathered()
            if memory.touched_streams or memory.ended_deliveries or memory.thinned_lanes:
                update_fronts(memory)
            if memory.changes.chunks:
                cool_chunks(memory)
            self._write(tx.commit, tx.facts)
        except BrokenInvariant as broken:
            # It is unknown whether the batch was stored.
            self._stop(broken)
            raise
        except BaseException as trouble:
            self._abandon(tx, trouble)
            raise
        if is_marked:
            self.time.marked()
        self._written(tx.commit, tx.facts)

    def _written(self, commit: int, facts: Sequence[StateFact]) -> None:
        """Called after a transaction was written. `memory.changes` still has what it touched."""
        if (
            type(facts[0]) in _NEVER_LOST
            or not _may_be_lost(facts[0])
            or (len(facts) > 1 and not all(map(_may_be_lost, facts)))
        ):
            self._must_keep = commit
        memory = self.memory
        changes = memory.changes
        try:
            if changes.has_others and (changes.queues or changes.config):
                self.hooking.notice(facts)
            self.tally.note(facts, memory)
            if self.observers.of_facts:
                self.observers.committed(facts, memory)
            if changes.has_others or changes.new_leases or memory.demotion.next_look_ms is not None:
                self._wake_timer_in_time()
            if self.waiters.by_queue:
                self.waiters.notice(memory, facts)
        finally:
            try:
                let_go(memory, changes.new_chunks, changes.thinned)
            finally:
                changes.clear()

    def _wake_timer_in_time(self) -> None:
        """Wake the timer earlier if the last commit made something due before the end of its sleep."""
        memory, wakes_ms = self.memory, self._timer.wakes_ms
        changes = memory.changes
        if wakes_ms is None:
            return
        if changes.has_others or memory.demotion.next_look_ms is not None:
            of_queues = [id for one in changes.queues.values() for id in (one.queue_id, one.dlq_id)]
            event_ms = next_event_ms(memory, {*changes.counts, *of_queues})
        else:
            # Only the end of a new lease can be due earlier than everything before.
            event_ms = memory.expiries[0][0] if changes.new_leases and memory.expiries else None
        if event_ms is not None and event_ms < wakes_ms:
            self._timer.wake_by(event_ms)

    def _write(self, commit: int, facts: Sequence[StateFact]) -> None:
        """Write the batch. `facts` are for tests, which watch the steps on disk here."""
        is_timed = self.observers.of_facts
        began = perf_counter() if is_timed else 0.0
        batch = Batch()
        write_changes(batch, self.memory.changes)
        if not self.store.write(batch, self.epoch, commit):
            raise BrokenInvariant(f"expected commit {commit} to be new, but the store has it already")
        # First: a number that is used again would lose the next commit.
        self._commit = commit
        if is_timed:
            self.observers.timed(Timing("commit", perf_counter() - began))

    def _judge(self, tx: Transaction, trouble: BaseException, verb: str = "") -> None:
        """A refusal before any change concerns its request alone. Anything else ends the transaction."""
        is_refusal = isinstance(trouble, FairleadError) and not isinstance(trouble, BrokenInvariant)
        if tx.lost is None and (not is_refusal or tx.has_changed):
            self._abandon(tx, trouble, verb)

    def _abandon(self, tx: Transaction, trouble: BaseException, verb: str = "") -> None:
        """End a transaction of which nothing will be written: load what it touched anew, and raise
        `Unavailable` in place of the trouble, unless that is an `Unavailable` itself or an interrupt.
        """
        tx.lost = type(trouble).__name__
        if isinstance(trouble, FairleadError):
            tx.lost += f": {trouble}"
        elif isinstance(trouble, Exception):
            # The text is not for callers: it may quote another request of the transaction.
            _log.error(
                "a transaction was lost to a defect", exc_info=trouble, extra={"fields": {"verb": verb}}
            )
        if isinstance(trouble, StaleEpoch):
            self._stop(trouble)
        else:
            self._is_stale = True
            # If this fails too, the next transaction tries again.
            with contextlib.suppress(Exception):
                self._reload(_touched(self.memory))
        if isinstance(trouble, Exception) and not isinstance(trouble, Unavailable):
            raise tx.lost_error() from trouble

    def _stop(self, why: FairleadError) -> None:
        """From now on every call fails with this error, and so does every waiting claim."""
        self._over = why
        self.waiters.wake_all()

    def _load_memory(self) -> Memory:
        memory = memory_of(self.store)
        memory.max_body_bytes = self.settings.body_cache_bytes
        memory.wanted_hot_messages = self.settings.read_ahead_rows
        return memory

    def _reload(self, home_ids: set[int] | None) -> None:
        """Load memory from the store: for some queues and their dead letters, or for all."""
        if home_ids is None:
            self.memory = self._load_memory()
        else:
            self.memory.changes = Changes()
            self.memory.sessions.clear()
            for home_id in home_ids:
                forget_queue(self.memory, home_id)
            load_into(self.memory, self.store, home_ids)
            restart_probes(self.memory)
        self._is_stale = False

    def was_carried_out(self, caller: Caller) -> bool:
        """Under the lock, for a claim that has just found nothing: whether it is a repeat whose leases have
        ended. It will never find anything, so it must not wait.
        """
        if caller.session is None:
            return False
        session = self.memory.sessions.sessions.get(session_key(caller.key_id, caller.session))
        return session is not None and caller.number in session.rows

    def _wait_for(self, request: Request[Answer], empty: Answer, caller: Caller) -> Answer:
        """Under the lock: the answer of a request that has found nothing so far, once it finds something or
        has waited long enough.
        """
        patience_ms = request.patience_ms()
        if not patience_ms or self.was_carried_out(caller):
            return empty
        consumer = getattr(request, "consumer", "")
        take = partial(self._transact, request, caller)
        return wait_for(self, request.queues(), consumer, patience_ms, take, empty)

    # Time

    def _notice_clock_step(self) -> None:
        """Log a step of the wall clock, and store the new difference from the store's time."""
        step_ms = self.time.notice_step()
        if not step_ms:
            return
        step = f"{show_ms(abs(step_ms))} {'ahead' if step_ms > 0 else 'back'}"
        _time_log.warning(
            "the wall clock was stepped %s: leases and due times do not move, times are shown by the new clock",
            step,
        )
        # If there is no room for it, the next commit carries the mark.
        with contextlib.suppress(Unavailable), self.transaction() as tx:
            tx.add(self._mark())

    def _mark(self, *, closed: bool = False) -> RecordsChanged:
        return RecordsChanged(Table.META, {MARK_KEY: self.time.mark(closed=closed)})

    def _empty_buckets(self) -> None:
        """Empty all buckets: a power cut may have undone claims that took tokens, so their content is
        unknown, and none of it is granted.
        """
        with self.transaction() as tx:
            for is_idle, buckets in ((False, self.memory.buckets.all()), (True, self.memory.idle_buckets)):
                for key, bucket in list(buckets.items()):
                    empty = bucket._replace(tokens=0.0, at_ms=tx.now_ms)
                    tx.add(BucketChanged(key, empty, is_idle, tx.now_ms))


@cache
def _session_rule(kind: type[Request[Any]]) -> Rule:
    return session_rule(kind, is_one_transaction=kind in WORK)


def memory_of(store: KeyValueStore) -> Memory:
    """Load memory from a store. Raises `StoreCorrupt`, with table and key, for a row that cannot be decoded."""
    memory = Memory(store)
    try:
        with _without_collector():
            load_into(memory, store, None)
    except ValueError:
        check_readable(store)
        raise
    return memory


@contextmanager
def _without_collector() -> Iterator[None]:
    """Pause Python's garbage collector while many objects are created and none is freed; afterwards they
    count as old, so that it does not scan them again and again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():
                # All objects become old at once, without a scan.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def load_into(memory: Memory, store: KeyValueStore, home_ids: set[int] | None) -> None:
    for fact in load(store, home_ids):
        memory.apply(fact)
    fill_lanes(memory)
    memory.changes = Changes()
    queues = [queue for queue in memory.by_id.values() if home_ids is None or queue.home_id in home_ids]
    for queue in queues:
        if queue.is_ordered and not queue.is_dead_letter_queue:
            queue.streams.begin(unchecked_before=store.last_commit + 1 << COMMIT_SHIFT)
    for home_id in dict.fromkeys(queue.home_id for queue in queues):
        load_lanes(memory, store, home_id)
    place_fronts(memory, queues)
    memory.changes = Changes()
    for queue in queues:
        queue.schedule.order_ring()
    let_go(memory)


def _carry_out(tx: Transaction, request: Request[Answer]) -> Answer:
    work, caller = WORK[type(request)], tx.caller
    if caller is not LOCAL and caller.session is not None:
        return cast(Answer, run_numbered(tx, request, work))
    return cast(Answer, work(tx, request))


#: The most frequent facts for which `_may_be_lost` is False.
_NEVER_LOST = frozenset({ChunkEnqueued, ScatteredEnqueued, ChunkGrown, LeaseCompleted})
#: Requests that do not look for messages.
_ENQUEUES = frozenset({Enqueue, EnqueueMany})


def _may_be_lost(fact: StateFact) -> bool:
    """Whether a power cut may undo the fact without harm: the messages of a lost claim, start or extension
    are delivered again, and its remembered answer is not needed then.
    """
    if isinstance(fact, Claimed):
        return fact.lease.terms.expires_ms != NEVER_EXPIRES_MS
    if isinstance(fact, RecordsChanged):
        return fact.table in (Table.ANSWERS, Table.SESSION_ENDS, Table.META)
    return isinstance(fact, (AnswerRemembered, LeaseSplit, BucketChanged, ChunkDemoted, ChunkThinned))


def _touched(memory: Memory) -> set[int] | None:
    """The queues, with their dead letters, that a lost transaction changed. None: all of them, because they
    share configuration, buckets and the records in memory.
    """
    changes = memory.changes
    if changes.config or changes.buckets or any(table in memory.records for table, _ in changes.records):
        return None
    queue_ids = {*changes.counts, *changes.queues}
    queue_ids |= {
        lease.terms.queue_id for lease in [*changes.new_leases.values(), *changes.ended_leases.values()]
    }
    by_queue = (
        changes.own,
        changes.members,
        changes.due,
        changes.done,
        changes.lives,
        changes.dedup,
        changes.streams,
    )
    for rows in (*by_queue, changes.ended_windows, memory.touched_streams):
        queue_ids |= {key[0] for key in rows}
    queue_ids |= {before.queue_id for before, _ in changes.thinned}
    homes = {memory.by_id[queue_id].home_id for queue_id in queue_ids if queue_id in memory.by_id}
    return homes | {record.queue_id for record in changes.deleted_queues}
