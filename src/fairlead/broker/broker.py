"""The verbs. Nearly every method is one line on purpose: what it does is in the module of its group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from fairlead.broker import (
    browse,
    dead_letters,
    enqueue,
    exchange,
    explain,
    failure_metrics,
    looking,
    measures,
    operators,
    queues,
    settle,
)
from fairlead.broker import claim as claiming
from fairlead.broker.audit import AuditTrail
from fairlead.broker.checkpoints import checkpoint_target
from fairlead.broker.consumers import Consumers
from fairlead.broker.core import Core
from fairlead.broker.forks import watch
from fairlead.broker.intents import cancel_intent, take_up
from fairlead.broker.keys import KeyRing
from fairlead.broker.observers import Observer, TimingObserver
from fairlead.broker.requests import check_error
from fairlead.broker.room import stop_at_reserve
from fairlead.broker.runbooks import Runbooks, load_external
from fairlead.broker.runtime_config import RuntimeConfig, apply_all
from fairlead.broker.shown_times import Answer, shown
from fairlead.broker.staging import Staging
from fairlead.broker.timers import Timer, run_due
from fairlead.clock import Clock, SystemClock
from fairlead.config import Settings
from fairlead.decide.dead_filter import DeadFilter
from fairlead.errors import InvalidRequest
from fairlead.model.delivery import Delivery
from fairlead.model.durations import Duration
from fairlead.model.facts import Intent
from fairlead.model.failure import FailureReason
from fairlead.model.lane import DEFAULT_KEY
from fairlead.model.measures import Measures
from fairlead.model.message import NewMessage
from fairlead.model.settle import Complete, Extend, Fail, Settlement, SettleResult
from fairlead.model.views import (
    ExchangeResult,
    Explanation,
    FailureMetrics,
    MessageInfo,
    OperatorResult,
    QueueInfo,
    QueueStats,
    RedriveResult,
)
from fairlead.store.port import Store

Durability = Literal["fsync", "os"]


class Broker:
    """A durable, fair, throttled, fenced work queue in one thread-safe object.

    Enqueue, settle and all administration return when their effect is durable: synced to disk with `fsync`,
    handed to the operating system with `os`. A claim is not synced: losing one in a power cut means
    redelivery. `close` keeps leases; holders settle after the directory is opened again.
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
        self.config = RuntimeConfig(self._core)
        self.runbooks = Runbooks(self._core)
        self.keys = KeyRing(self._core)
        self.audit = AuditTrail(self._core)
        self.consumers = Consumers(self._core)
        self.staging = Staging(self._core)
        self._timer = Timer(self._core)
        watch(self._core)

    @property
    def clock(self) -> Clock:
        return self._core.clock

    def now_ms(self) -> int:
        """The time now, by the clock that all times in answers are told by: a lease lasts `lease_until -
        now_ms()` longer.
        """
        return self._core.by_wall(self._core.now_ms())

    def _shown(self, answer: Answer) -> Answer:
        return shown(answer, self._core.time.ahead_ms)

    # Queues

    def create_queue(self, /, name: str, **options: Any) -> QueueInfo:
        """Make a queue and its `<name>.dlq`. Options are described in docs/reference/queue-options.md."""
        return self._shown(queues.create_queue(self._core, name, options))

    def update_queue(self, /, name: str, **options: Any) -> QueueInfo:
        return self._shown(queues.update_queue(self._core, name, options))

    def pause(self, name: str) -> None:
        queues.set_paused(self._core, name, True)

    def resume(self, name: str) -> None:
        queues.set_paused(self._core, name, False)

    def purge(self, name: str) -> int:
        """Drop everything ready or waiting now; leased messages stay, and completed ones that are kept.
        Returns how many went.
        """
        return queues.purge(self._core, name)

    def delete_queue(self, name: str) -> None:
        """Delete a queue, its `.dlq` and all their messages."""
        queues.delete_queue(self._core, name)

    def queues(self, prefix: str = "") -> list[QueueInfo]:
        return self._shown(queues.list_queues(self._core, prefix))

    def stats(self, queue: str, *, keys: bool = False, key_limit: int = 1000) -> QueueStats:
        """Exact counts. `keys=True` adds weight, deficit and pending of up to `key_limit` active keys."""
        return looking.stats(self._core, queue, keys=keys, key_limit=key_limit)

    # Messages in

    def enqueue(
        self,
        queue: str,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        fairness_key: str = DEFAULT_KEY,
        weight: int = 1,
        throttle_keys: Sequence[str] = (),
        stream: str | None = None,
        delay: Duration | None = None,
        dedup_key: str | None = None,
        ttl: Duration | None = None,
    ) -> str:
        """Returns the message's id; for a duplicate, the id of the first."""
        message = NewMessage(
            payload, headers, fairness_key, weight, throttle_keys, stream, delay, dedup_key, ttl
        )
        return enqueue.enqueue_many(self._core, queue, [message])[0]

    def enqueue_many(self, queue: str, messages: Sequence[NewMessage]) -> list[str]:
        """All or none, in the order given, in one commit."""
        return enqueue.enqueue_many(self._core, queue, messages)

    def quarantine(
        self,
        queue: str,
        messages: Sequence[NewMessage],
        *,
        reason: FailureReason | str | int = FailureReason.UNKNOWN,
        error: str = "",
    ) -> list[str]:
        """Put messages straight into the dead letters of a queue, with a record of why."""
        return enqueue.quarantine(self._core, queue, messages, reason, error)

    # Messages out

    def claim(
        self,
        queue: str | Sequence[str],
        *,
        limit: int = 1,
        wait: Duration | None = None,
        consumer: str = "",
        max_per_stream: int = 1,
        token: str | None = None,
        started: bool = True,
    ) -> list[Delivery]:
        """Lease up to `limit` messages, waiting up to `wait` for the first.

        `max_per_stream` lets one claim take a run of a stream, in order. `token` makes the claim idempotent:
        while any of it is leased, the same token returns that instead of more. `started=False` is for
        prefetching: send `Start` before work begins; until then expiry counts as a release.
        """
        deliveries = claiming.claim(
            self._core,
            queue,
            limit=limit,
            wait=wait,
            consumer=consumer,
            token=token,
            started=started,
            max_per_stream=max_per_stream,
        )
        return self._shown(deliveries)

    def settle(self, items: Sequence[Settlement]) -> list[SettleResult]:
        """One commit for all items, one result for each. A stale lease changes nothing and says `lost_lease`."""
        return self._shown(settle.settle(self._core, items))

    def ack(self, queue: str, message_id: str) -> SettleResult:
        """Complete whatever lease is current: unfenced, so a late caller may settle another consumer's
        delivery.
        """
        return self._shown(settle.settle_current(self._core, queue, message_id, Complete))

    def nack(
        self,
        queue: str,
        message_id: str,
        error: str = "",
        *,
        reason: FailureReason | str | int = FailureReason.UNKNOWN,
    ) -> SettleResult:
        """Fail whatever lease is current; unfenced like `ack`."""
        return self._shown(
            settle.settle_current(self._core, queue, message_id, Fail, error=error, reason=reason)
        )

    def goodbye(self, consumer: str) -> int:
        """Release everything a consumer holds, back to its places. Returns how many."""
        return settle.goodbye(self._core, consumer)

    def exchange(
        self,
        consumer: str,
        *,
        extend: Sequence[Extend] = (),
        settle: Sequence[Settlement] = (),
        enqueue: Mapping[str, Sequence[NewMessage]] | None = None,
        claim: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        answered: Sequence[str] = (),
    ) -> ExchangeResult:
        """A whole turn of work in one call: extends, completes, fails, releases and enqueues in one commit,
        then a claim.

        The same `request_id` (a UUIDv7) within ten minutes gives the same answers with no second effect, and
        of the claim what is still leased. `claim` has the fields of `claim`: queue, limit, max_per_stream,
        started. `answered` are ids of earlier requests whose answers have arrived: they need not be
        remembered any longer, and must not be sent again.
        """
        result = exchange.exchange(
            self._core,
            consumer,
            extend=extend,
            settle=settle,
            enqueue={} if enqueue is None else enqueue,
            claim=claim,
            request_id=request_id,
            answered=answered,
        )
        return self._shown(result)

    # What operators do, by id or filter, with no lease token. `dry_run` says what would change, and changes
    # nothing.

    def retry(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        dry_run: bool = False,
    ) -> OperatorResult:
        """Dead, or waiting after a failure: again now, with a count of 0."""
        return operators.retry(self._core, queue, ids, filter, dry_run=dry_run)

    def drop(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        dry_run: bool = False,
    ) -> OperatorResult:
        """Gone for good, wherever it is; a lease on it is revoked."""
        return operators.act(self._core, queue, ids, filter, operators.drop, dry_run=dry_run)

    def done(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        dry_run: bool = False,
    ) -> OperatorResult:
        """Completed by hand; a lease on it is revoked."""
        return operators.act(self._core, queue, ids, filter, operators.done, dry_run=dry_run)

    def bury(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        error: str = "buried by an operator",
        reason: FailureReason | str | int = FailureReason.UNKNOWN,
        dry_run: bool = False,
    ) -> OperatorResult:
        """Into the dead letters; a lease on it is revoked."""
        return operators.act(
            self._core,
            queue,
            ids,
            filter,
            operators.bury(*check_error(error, reason)),
            dry_run=dry_run,
            grows=True,
        )

    def hold(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        dry_run: bool = False,
    ) -> OperatorResult:
        """Waiting without end, until `unhold`; a lease on it is revoked. In a stream it holds up the later
        ones.
        """
        return operators.act(self._core, queue, ids, filter, operators.hold, dry_run=dry_run, grows=True)

    def unhold(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        dry_run: bool = False,
    ) -> OperatorResult:
        """Held messages become ready now."""
        return operators.act(
            self._core,
            queue,
            ids,
            filter,
            operators.unhold,
            among=operators.WAITING,
            dry_run=dry_run,
            grows=True,
        )

    def fail(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        error: str = "failed by an operator",
        reason: FailureReason | str | int = FailureReason.UNKNOWN,
        dry_run: bool = False,
    ) -> OperatorResult:
        """What is leased fails as if its holder had said so; the lease is revoked."""
        return operators.fail(self._core, queue, ids, filter, *check_error(error, reason), dry_run=dry_run)

    def drain(self, queue: str, *, limit: int = 10_000) -> list[MessageInfo]:
        """Remove what is ready, and give it back."""
        return self._shown(operators.drain(self._core, queue, limit=limit))

    def prune(
        self,
        queue: str,
        *,
        older_than: Duration = "0s",
        which: Literal["all", "done", "dead"] = "all",
        dry_run: bool = False,
    ) -> OperatorResult:
        """Drop what has been dead, or done and kept (`retain_completed`), for so long."""
        return operators.prune(self._core, queue, older_than=older_than, which=which, dry_run=dry_run)

    def release_stream(self, queue: str, stream: str) -> bool:
        """Let later messages of a stream pass the one that waits at its head; said again, also the next one
        that waits.

        False when nothing waits at its head.
        """
        return operators.release_stream(self._core, queue, stream)

    # Dead letters

    def redrive(
        self,
        queue: str,
        *,
        ids: Sequence[str] | None = None,
        filter: DeadFilter | None = None,
        count: int | None = None,
        dry_run: bool = False,
        rate: float | None = None,
        clear_progress: bool = False,
    ) -> RedriveResult:
        """Bring dead letters back to their queue, the longest dead first, each with a new life of attempts.

        `dry_run` counts exactly what would go. With `rate` (a second) it goes on in the background, also
        after a restart.
        """
        return dead_letters.redrive(
            self._core,
            queue,
            ids=ids,
            filter=filter,
            count=count,
            dry_run=dry_run,
            rate=rate,
            clear_progress=clear_progress,
        )

    def intents(self) -> list[Intent]:
        """Long operations that are under way."""
        with self._core.lock:
            self._core.check_open()
            return self._shown(list(self._core.intents.values()))

    def cancel_intent(self, intent_id: int) -> bool:
        """Stop a redrive that is under way. False when there is none of that id."""
        return cancel_intent(self._core, intent_id)

    # Looking

    def find(self, message_id: str, queue: str | None = None) -> MessageInfo:
        """By full id, by a unique prefix, or, given a queue, by the last characters."""
        return self._shown(looking.find(self._core, message_id, queue))

    def twin(self, queue: str, dedup_key: str) -> str | None:
        """The id that an enqueue with this dedup key would be answered now; None: it would be a new message."""
        return looking.twin(self._core, queue, dedup_key)

    def peek(
        self,
        queue: str,
        *,
        limit: int = 10,
        where: str = "ready",
        key: str | None = None,
        after: str | None = None,
    ) -> list[MessageInfo]:
        """Look at messages without claiming them."""
        return self._shown(looking.peek(self._core, queue, limit=limit, where=where, key=key, after=after))

    def browse(
        self,
        queue: str,
        *,
        view: Literal["messages", "dead"] = "messages",
        low: str = "",
        high: str = "",
        limit: int = 1000,
        after: str = "",
    ) -> list[MessageInfo]:
        """Look at all of a queue without claiming, page by page in order of ids: from `low` on, before
        `high`, behind `after`.

        `view="dead"` is its dead letters. A page may be shorter than `limit`; an empty one is the end. A
        message that is there throughout is met exactly once, whatever happens to it meanwhile.
        """
        return self._shown(
            browse.browse(self._core, queue, view=view, low=low, high=high, limit=limit, after=after)
        )

    def browse_splits(
        self, queue: str, view: Literal["messages", "dead"] = "messages", n: int = 1
    ) -> list[tuple[str, str]]:
        """Up to `n` (low, high) for `browse`, about even, that together leave nothing out; "" is no bound."""
        return browse.browse_splits(self._core, queue, view, n)

    def failure_metrics(self, queue: str, *, streams: int = 100) -> FailureMetrics:
        """Attempts, reasons, the scheduled backlog, poison candidates, and up to `streams` streams that are
        held up.
        """
        return self._shown(failure_metrics.failure_metrics(self._core, queue, streams=streams))

    def explain(self, message_id: str, queue: str | None = None) -> Explanation:
        """Why is this message not being delivered?"""
        return explain.explain_message(self._core, message_id, queue)

    def explain_queue(self, name: str) -> Explanation:
        return explain.explain_queue(self._core, name)

    # The broker itself

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

    def run_due(self) -> None:
        """Do now whatever time has made due. The timer does this by itself."""
        run_due(self._core)

    def checkpoint(self, path: str | Path) -> None:
        """A consistent copy of everything, made while running, at a path that does not exist yet."""
        target = checkpoint_target(path, self._core.settings.checkpoint_dir)
        with self._core.lock:
            self._core.check_open()
            self._core.store.checkpoint(target)

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


stop_at_reserve(Broker)
stop_at_reserve(RuntimeConfig, "config")
stop_at_reserve(Runbooks, "runbooks")
stop_at_reserve(KeyRing, "keys")
