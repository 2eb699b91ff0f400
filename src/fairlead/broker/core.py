"""The engine's shared state, and the one way to change it: commit facts, then bring memory in line.

Everything here is used under `lock`, except `confirm`. A failed commit leaves memory in doubt (a claim has
taken rows from the scheduler, say), so it is rebuilt from the store: there is no undo code.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import threading
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from fairlead.broker.bodies import BodyCache
from fairlead.broker.consumer_book import ConsumerBook
from fairlead.broker.engine_lock import EngineLock
from fairlead.broker.leases import LeaseBook
from fairlead.broker.queue_state import NEVER_MS, QueueState
from fairlead.broker.staged_book import StagedBook
from fairlead.broker.tally import Tally
from fairlead.clock import Clock
from fairlead.config import Settings
from fairlead.decide.drr import QueueScheduler
from fairlead.decide.exchange import REQUEST_KEPT_MS
from fairlead.decide.failure_breaker import BreakerState
from fairlead.decide.lanes import Memory
from fairlead.decide.throttle import Buckets
from fairlead.engine.observers import Observer, Observers, TimingObserver
from fairlead.engine.store_time import StoreTime
from fairlead.errors import (
    BrokenInvariant,
    BrokerClosed,
    BrokerForked,
    ExternalQueue,
    FairleadError,
    QueueNotFound,
    ServerStopping,
    StoreFailed,
    Unavailable,
)
from fairlead.hooks import Hooks
from fairlead.look_budget import LookBudget
from fairlead.model.answered import Answered
from fairlead.model.clock_mark import BucketLevel
from fairlead.model.durations import show_ms
from fairlead.model.facts import BucketsSaved, ClockMarked, Fact, Intent, QueueSaved
from fairlead.model.failure import FailureReason
from fairlead.model.ids import IdSource, first_id_of
from fairlead.model.lane import DEAD_LETTER_LANE, first_place, lane_key, row_id
from fairlead.model.lease import Claim, Lease
from fairlead.model.limits import MAX_LOOK_BYTES
from fairlead.model.message import Message
from fairlead.model.names import check_queue_name, taken_name
from fairlead.model.queue import QueueConfig, QueueRecord
from fairlead.model.shown_times import shown_ms
from fairlead.model.timings import Timing
from fairlead.store.port import Store

if TYPE_CHECKING:
    from fairlead.broker.audit import AuditTrail
    from fairlead.broker.intents import Pace
    from fairlead.broker.keys import KeyRing

_LAST_ID = b"\xff" * 16

_time_log = logging.getLogger("fairlead.time")


class Core:
    def __init__(self, store: Store, clock: Clock, settings: Settings, *, synced: bool) -> None:
        self.store = store
        self.clock = clock
        self.settings = settings
        self.synced = synced
        self.lock = EngineLock()
        self.ids = IdSource()
        self.bodies = BodyCache(settings.body_cache_bytes)
        self.hooks = Hooks(settings.lua, clock)
        self.time = StoreTime(clock, store.clock_mark(), store.boot)
        #: The store's time: for everything that is stored, or compared with what is.
        self.now_ms = self.time.now_ms
        self.buckets = Buckets()
        self.weights: dict[tuple[str, str], int] = {}
        self.rng = random.Random()
        self._breakers: dict[tuple[int, FailureReason], BreakerState] = {}
        self.epochs: dict[int, int] = {}
        self.timer = threading.Condition(self.lock)  # type: ignore[arg-type]
        self.timer_wakes_ms = NEVER_MS
        self.closed = False
        #: The server of this broker stops: a claim that finds nothing returns at once, and scans end.
        self.waits_over = False
        self._broken: FairleadError | None = None
        self._claim_numbers = itertools.count(1)
        self.memory = Memory()
        self.leases = LeaseBook()
        self.consumer_book = ConsumerBook()
        self.by_name: dict[str, QueueState] = {}
        self.by_id: dict[int, QueueState] = {}
        #: Queues that keep what was completed; empty is the usual, and then nobody asks.
        self.retaining: set[int] = set()
        #: By project, the queues that its runbook says live elsewhere.
        self.external: dict[str, frozenset[str]] = {}
        self.intents: dict[int, Intent] = {}
        #: Intents whose caller runs their steps; the timer leaves them alone.
        self.foreground: set[int] = set()
        self.last_intent_id = 0
        self.paces: dict[int, Pace] = {}
        #: Claims over several queues start each with the next one.
        self.claim_turn = 0
        self.next_request_sweep_ms = clock.monotonic_ms() + REQUEST_KEPT_MS
        self.answered = Answered()
        #: Set by the broker once the store is loaded.
        self.keys: KeyRing
        self.audit: AuditTrail
        self.looks = LookBudget(MAX_LOOK_BYTES, self.check_scan)
        self.staged = StagedBook()
        self.observers = Observers()
        self.tally = Tally()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """The lock for one step of a long operation: callers that wait for it already go first."""
        self.lock.let_waiters_pass()
        with self.lock:
            yield

    # Queues

    def queue(self, name: object) -> QueueState:
        """The queue of that name, or `QueueNotFound`, `ExternalQueue`; also refuses when the broker no longer
        works.
        """
        self.check_open()
        state = self.by_name.get(name) if isinstance(name, str) else None
        if state is None:
            missing = check_queue_name(name)
            if any(missing in names for names in self.external.values()):
                raise ExternalQueue(missing, taken_name(missing))
            raise QueueNotFound(missing)
        return state

    def add_queue(self, record: QueueRecord) -> QueueState:
        """Bring a queue that is in the store into memory."""
        self.epochs[record.queue_id] = self.store.acquire(record.queue_id)
        state = QueueState(record, self._scheduler(record))
        self.by_name[record.name] = state
        self.by_id[record.queue_id] = state
        self.set_scripts(record.queue_id, record.config)
        self.note_retaining(record)
        return state

    def note_retaining(self, record: QueueRecord) -> None:
        if record.config.retain_completed_ms:
            self.retaining.add(record.queue_id)
        else:
            self.retaining.discard(record.queue_id)

    def set_scripts(self, queue_id: int, config: QueueConfig) -> None:
        self.hooks.set_script(queue_id, "on_enqueue", config.on_enqueue or None)
        self.hooks.set_script(queue_id, "on_failure", config.on_failure or None)

    def reload_queue(self, state: QueueState) -> None:
        """Build the queue's scheduling state anew from what is stored."""
        state.scheduler.discard()
        state.scheduler = self._scheduler(state.record)
        self._fill_scheduler(state)
        if state.config.max_unsettled_per_key:
            for lease in self.leases.of_queue(state.queue_id):
                state.scheduler.note_unsettled(lane_key(lease.lane))
        self.look_ahead(state)

    def look_ahead(self, state: QueueState) -> None:
        """Read from the store when something of the queue is due next."""
        store, queue_id = self.store, state.queue_id
        state.next_due_ms = _or_never(store.next_due(queue_id))
        state.next_expiry_ms = _or_never(store.next_expiry(queue_id))
        state.next_dedup_ms = _or_never(store.next_dedup_end(queue_id))
        state.next_retention_ms = self._next_retention(state)
        first_done_ms = store.next_done(queue_id)
        kept_ms = state.config.retain_completed_ms
        # A queue that keeps none any more lets all of them go.
        state.next_done_ms = NEVER_MS if first_done_ms is None else first_done_ms + kept_ms if kept_ms else 0

    # Committing

    def places(self) -> Iterator[int]:
        """Fresh places at the tail, for the next commit only."""
        return itertools.count(first_place(self.store.last_commit + 1))

    def by_wall(self, at_ms: int) -> int:
        """A time of the store as it is shown."""
        return shown_ms(at_ms, self.time.ahead_ms)

    def commit(self, facts: Sequence[Fact]) -> int:
        """All facts, and beside them what the buckets hold that were charged for them."""
        marks, buckets = self.time.mark_due(), self.buckets
        if marks or buckets.unsaved or buckets.forgotten:
            facts = [*facts, *self._own_facts(marks)]
        began = perf_counter() if self.observers else 0.0
        try:
            # Every queue this broker owns: a store that several brokers share refuses the commit of one that
            # lost a queue.
            number = self.store.commit(facts, self.epochs)
        except BrokenInvariant as broken:
            self._stop(broken)
            raise
        except Exception:
            self._load_again()
            raise
        if buckets.unsaved or buckets.forgotten:
            buckets.saved()
        if marks:
            self.time.marked()
        self.tally.note(facts)
        if began:
            self.observers.timed(Timing("commit", perf_counter() - began))
            self.observers.committed(facts)
        return number

    def _load_again(self) -> None:
        """After a failed commit. A broker that cannot do so knows only a part of what is stored, and takes no
        more work.
        """
        try:
            self.load()
        except Exception as trouble:
            self._stop(StoreFailed(f"could not be read again after a failed commit: {trouble}"))

    def _own_facts(self, marks: bool) -> list[Fact]:
        facts: list[Fact] = []
        buckets = self.buckets
        if marks:
            buckets.forget_full(self.clock.monotonic_ms())
            facts.append(ClockMarked(self.time.mark()))
        if buckets.unsaved or buckets.forgotten:
            from_steady = self.time.from_steady
            levels = [
                BucketLevel(key, one.tokens, from_steady(one.at_ms), one.rate, one.burst)
                for key, one in buckets.to_save()
            ]
            facts.append(BucketsSaved(levels, sorted(buckets.forgotten - buckets.unsaved)))
        return facts

    def notice_clock_step(self) -> None:
        """Under the lock: log a step of the wall clock, and remember by how much it differs from the store's
        time now.
        """
        step_ms = self.time.notice_step()
        if not step_ms:
            return
        step = f"{show_ms(abs(step_ms))} {'ahead' if step_ms > 0 else 'back'}"
        _time_log.warning(
            "the wall clock was stepped %s: leases and due times do not move, times are shown by the new clock",
            step,
        )
        # Ids of requests are by the clocks of their callers: by a clock that is wrong for a while they would
        # be forgotten too early.
        self.next_request_sweep_ms = self.clock.monotonic_ms() + REQUEST_KEPT_MS
        # Should there be no room for it, the next commit carries the mark.
        with contextlib.suppress(Unavailable):
            self.commit([])

    def mark_closed(self) -> None:
        """The last commit of this life: nothing of it is missing when this one is there."""
        if self._broken is None:
            with contextlib.suppress(FairleadError):
                self.store.commit(
                    [*self._own_facts(False), ClockMarked(self.time.mark(closed=True))], self.epochs
                )

    def observe(self, observer: Observer, timed: TimingObserver | None) -> None:
        with self.lock:
            self.check_open()
            self.observers.add(observer, timed, [QueueSaved(state.record) for state in self.by_id.values()])
            self.hooks.timed = self.observers.timed

    def confirm(self, commit: int | None = None, *, synced: bool = False) -> None:
        """Without the lock: return once everything up to the commit is as durable as was asked for, or
        `synced` whatever was.
        """
        if not self.synced and not synced:
            return
        began = perf_counter() if self.observers else 0.0
        try:
            self.store.sync(self.store.last_commit if commit is None else commit)
        except BrokenInvariant as broken:
            with self.lock:
                self._stop(broken)
            raise
        if began:
            self.observers.timed(Timing("sync", perf_counter() - began))

    def _stop(self, broken: BrokenInvariant) -> None:
        """From here on every call is told, and so is whoever waits."""
        self._broken = broken
        self.wake_all()

    def interrupt_waits(self) -> None:
        self.waits_over = True
        self.wake_all()

    def wake_all(self) -> None:
        """Every call that waits looks again whether it may."""
        for state in self.by_id.values():
            state.wake_all()
        self.looks.wake()

    def disown(self) -> None:
        """In a forked child: every call is told. Whoever held the lock at the fork is not here to let it go."""
        self.lock = EngineLock()
        self.closed = True
        self._broken = BrokerForked()

    def check_open(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self.closed:
            raise BrokerClosed()

    def check_scan(self) -> None:
        """For long reads, at every step: raises when they are to end, because the broker is closed or its
        server stops.
        """
        self.check_open()
        if self.waits_over:
            raise ServerStopping()

    def next_claim(self, consumer: str, token: str, now_ms: int, lease_ms: int) -> Claim:
        return Claim(self.store.boot << 32 | next(self._claim_numbers), consumer, token, now_ms, lease_ms)

    def breaker(self, queue_id: int, reason: FailureReason) -> BreakerState:
        return self._breakers.setdefault((queue_id, reason), BreakerState())

    # Timers

    def wake_timer(self, wake_ms: int) -> None:
        """Something is due at that instant: the timer sleeps no longer than that."""
        if wake_ms < self.timer_wakes_ms:
            self.timer.notify_all()

    def note_dead_letter(self, queue: QueueState, dead_since_ms: int) -> None:
        """A dead letter came in: its retention may be the queue's next wake-up."""
        source = self.by_id.get(queue.record.source_id)
        if source is not None and source.config.dead_retention_ms:
            queue.next_retention_ms = min(
                queue.next_retention_ms, dead_since_ms + source.config.dead_retention_ms
            )
            self.wake_timer(queue.next_retention_ms)

    # Messages that are in memory anyway

    def message(self, message_id: bytes) -> Message | None:
        return self.bodies.find(message_id) or self.store.messages([message_id])[0]

    def messages(self, ids: Sequence[bytes]) -> list[Message | None]:
        found = [self.bodies.find(message_id) for message_id in ids]
        missing = [at for at, message in enumerate(found) if message is None]
        if missing:
            for at, message in zip(missing, self.store.messages([ids[at] for at in missing]), strict=True):
                found[at] = message
        return found

    # Opening

    def load(self) -> None:
        """Build everything in memory from the store: queues, lanes, leases, intents. Cost follows the active
        part.
        """
        before = self.by_name
        deadlines = {lease.id: lease for lease in self.leases.all()}
        settings = self.settings
        self.memory = Memory(
            row_limit=settings.read_ahead_rows,
            lane_limit=settings.active_lanes,
            lanes_per_queue=settings.lanes_per_queue,
        )
        self.leases = LeaseBook()
        self.by_name, self.by_id, self.epochs, self.retaining = {}, {}, {}, set()
        self.bodies.clear()
        self.intents = {intent.intent_id: intent for intent in self.store.intents()}
        # A step that was not committed had moved its cursor on.
        self.paces.clear()
        for record in self.store.queues():
            if not record.name:
                continue
            state = self.add_queue(record)
            self._fill_scheduler(state)
            if record.name in before:
                state.waiters = before[record.name].waiters
        for intent in self.intents.values():
            if intent.kind == "purge" and intent.queue_id in self.by_id:
                self.by_id[intent.queue_id].purging = True
        self.staged.load(self.store)
        self._load_leases(deadlines)
        self.consumer_book.load(self.store, self.time)
        for state in self.by_id.values():
            self.look_ahead(state)
        self._continue_ids()

    def _continue_ids(self) -> None:
        """New ids sort after every stored one, also when the clock was set back while the broker was down."""
        low_ms, high_ms = self.now_ms(), (1 << 48) - 2
        if not self.store.ids_between(first_id_of(low_ms), _LAST_ID, 1):
            return
        while low_ms < high_ms:
            middle_ms = (low_ms + high_ms + 1) // 2
            if self.store.ids_between(first_id_of(middle_ms), _LAST_ID, 1):
                low_ms = middle_ms
            else:
                high_ms = middle_ms - 1
        self.ids.skip_to(low_ms + 1)

    def _load_leases(self, known: dict[bytes, Lease]) -> None:
        monotonic_ms = self.clock.monotonic_ms()
        claims = {(expires_ms, claim.claim_id): claim for expires_ms, claim in self.store.claims()}
        for lease in self.store.leases():
            claim = claims[lease.expires_ms, lease.claim_id]
            lease.consumer = claim.consumer
            earlier = known.get(lease.id)
            if earlier is not None and (earlier.claim_id, earlier.expires_ms) == (
                lease.claim_id,
                lease.expires_ms,
            ):
                lease.deadline_ms = earlier.deadline_ms
            else:
                # A mark may be some seconds old: whatever it says, no lease gets longer than it was granted,
                # or last extended, for.
                lease.deadline_ms = min(self.time.to_steady(lease.expires_ms), monotonic_ms + claim.lease_ms)
            self.leases.load(claim, lease)
            state = self.by_id.get(lease.queue_id)
            if state is not None and state.config.max_unsettled_per_key:
                state.scheduler.note_unsettled(lane_key(lease.lane))

    def _scheduler(self, record: QueueRecord) -> QueueScheduler:
        store, queue_id, name, weights = self.store, record.queue_id, record.name, self.weights
        return QueueScheduler(
            lambda lane, place, limit: store.rows_after(queue_id, lane, place, limit),
            self.buckets,
            self.memory,
            quantum=record.config.quantum,
            max_unsettled_per_key=record.config.max_unsettled_per_key,
            weight_of=lambda key: weights.get((name, key)),
        )

    def _fill_scheduler(self, state: QueueState) -> None:
        for lane, first, last in self.store.lanes(state.queue_id):
            state.scheduler.load(lane, first, last)

    def _next_retention(self, state: QueueState) -> int:
        source = self.by_id.get(state.record.source_id)
        if source is None or not source.config.dead_retention_ms:
            return NEVER_MS
        head = state.scheduler.head(DEAD_LETTER_LANE)
        if head is None:
            return NEVER_MS
        dead = self.store.states([row_id(head)])[0]
        return NEVER_MS if dead is None else dead.dead_since_ms + source.config.dead_retention_ms


def _or_never(at_ms: int | None) -> int:
    return NEVER_MS if at_ms is None else at_ms
