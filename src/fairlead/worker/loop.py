"""One worker: a loop that gives messages to slots and settles their outcomes.

The loop never waits for the broker: other threads call it, and their answers come back as events, like
everything else that happens. The way of a message: claimed unstarted; started, unless its step is known to be
quick; called in a slot; after each step but the last its progress is stored and the answer awaited; completed
or failed. Only then the next message of its stream begins.

A quick step of a message on its first delivery begins without a start: if the worker is killed, the message
comes back instead of losing an attempt. It is started once it takes longer, and before it begins on later
deliveries. So a message that kills its worker is counted from its second delivery on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn

from fairlead.errors import FairleadError, StepNotLoaded
from fairlead.model.failure import FailureReason
from fairlead.model.settle import Complete, Extend, Fail, Release, SettleResult, Start
from fairlead.surface import Doer
from fairlead.verbs.settle import Goodbye
from fairlead.worker.broker_threads import (
    BrokerFailed,
    BrokerThreads,
    ClaimAnswered,
    HeartbeatDue,
    Purpose,
    Settled,
)
from fairlead.worker.counts import WorkerCounts
from fairlead.worker.dispatch import Dispatcher
from fairlead.worker.estimates import Estimates
from fairlead.worker.fetching import Fetcher
from fairlead.worker.in_flight import InFlight
from fairlead.worker.items import StepBatch, Work, WorkItem, split
from fairlead.worker.job import Job
from fairlead.worker.mailbox import Mailbox
from fairlead.worker.outbox import Outbox
from fairlead.worker.plan import CarryTooLarge, CarryUnreadable
from fairlead.worker.pool import SlotPool
from fairlead.worker.protocol import BatchDone, CallDone, CallFailed
from fairlead.worker.reasons import bounded
from fairlead.worker.slots import CallAnswered, SlotDied, StepsNotLoaded

_log = logging.getLogger("fairlead.worker")

_TICK_S = 0.25
#: While every slot has plenty of quick calls, answers gather this long before they are taken in.
_GATHER_S = 0.001
#: How long the end of the worker waits for answers that may never come.
_LEAVING_S = 5.0
#: The same when only a claim is under way.
_LEAVING_CLAIM_S = 0.5


class _Stop(NamedTuple):
    hurry: bool


class _Resize(NamedTuple):
    concurrency: int


class WorkerLoop:
    """Runs in a thread of its own from `start` until a stop, the end of a burst, or an error, kept in
    `error`.

    All methods are thread-safe. `join` returns when everything that the worker holds is settled.
    """

    def __init__(
        self,
        target: Doer,
        job: Job,
        *,
        consumer: str,
        burst: bool = False,
        grace_s: float = 30.0,
        concurrency: int | None = None,
    ) -> None:
        self.job = job
        self.counts = WorkerCounts()
        self.error: BaseException | None = None
        self.in_flight = InFlight()
        self._target = target
        self._consumer = consumer
        self._grace_s = grace_s
        #: A concurrency that overrides the job's.
        self._concurrency = concurrency
        #: The job before a change, until the changed pipeline has answered a call.
        self._before: Job | None = None
        self._estimates = Estimates()
        self._stop_by: float | None = None
        self._stopping = False
        #: Whether the grace is over and everything is released.
        self._releasing = False
        self._leave_by = self._quiet_by = 0.0
        self._mailbox = Mailbox()
        self._post = self._mailbox.post
        self._outbox = Outbox()
        self._settle = self._outbox.add
        self._pool = SlotPool(
            job,
            concurrency or job.spec.concurrency,
            self._post,
            self.in_flight.put_back,
            self._mailbox.selector,
        )
        self._fetcher = Fetcher(self.in_flight, self._pool, self._outbox, self._estimates, burst=burst)
        self._dispatcher = Dispatcher(
            self.in_flight, self._pool, self._outbox, self._estimates, self._needs_call
        )
        self._handlers: dict[type, Callable[[Any], None]] = {
            CallAnswered: self._answered,
            Settled: self._settled_all,
            ClaimAnswered: self._fetcher.claimed,
            SlotDied: self._slot_died,
            StepsNotLoaded: self._not_loaded,
            HeartbeatDue: self._extend_all,
            BrokerFailed: _raise,
            Job: self._take_up,
            _Resize: lambda event: self._pool.resize(event.concurrency),
            _Stop: self._set_stop,
        }
        self._thread = threading.Thread(target=self._run, name=f"fairlead-worker-{job.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, hurry: bool = False) -> None:
        """Claim nothing more, release what has not begun, and finish the rest within the grace.

        `hurry` releases the rest too, at once.
        """
        self._post(_Stop(hurry))

    def resize(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._post(_Resize(concurrency))

    def change(self, job: Job) -> None:
        """Continue with another pipeline or other options. Calls under way end as they began; nothing is
        dropped.

        If the steps of the changed pipeline cannot be loaded, the worker continues with the one before.
        """
        self._post(job)

    def join(self, timeout_s: float | None = None) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def concurrency(self) -> int:
        return self._pool.size

    # The loop

    def _run(self) -> None:
        self._broker = BrokerThreads(self._target, self.job.queue, self._consumer, self._post)
        try:
            self._pool.add()
            while not self._is_over():
                self._sleep()
                for event in self._mailbox.take():
                    self._handlers[type(event)](event)
                self._check_stop()
                self._dispatcher.dispatch(self.job.plan, only_begun=self._stopping)
                self._watch()
                self._outbox.flush(self._broker.settle, may_wait=self._pool.is_busy())
                if not self._stopping:
                    self._fetcher.fetch(self.job, self._broker)
        except BaseException as error:
            self.error = error
            # A FairleadError is raised by `Workers.check` and explains itself.
            if not isinstance(error, FairleadError):
                fields = {"worker": self.job.name}
                _log.error("the worker has failed", exc_info=error, extra={"fields": fields})
        finally:
            self._end()

    def _sleep(self) -> None:
        if self._pool.has_plenty():
            time.sleep(_GATHER_S)
        wait_s = self._dispatcher.until_due(self._outbox.until_due(_TICK_S))
        self._mailbox.wait(self._pool.until_next(wait_s))

    def _is_over(self) -> bool:
        if self.in_flight.held or not self._outbox.is_empty:
            return self._releasing and time.monotonic() > self._leave_by
        if self._fetcher.drained:
            return True
        return self._stopping and (not self._fetcher.is_claiming or time.monotonic() > self._quiet_by)

    def _end(self) -> None:
        # Also after an error: work whose outcome is not settled would be done again.
        self._outbox.flush(self._broker.settle, may_wait=False)
        self._pool.close()
        self._broker.close(_LEAVING_CLAIM_S if self._fetcher.is_claiming else _LEAVING_S)
        if self._fetcher.is_claiming or self.in_flight.held:
            # Release now what is still held, or what a claim under way delivers, instead of when leases
            # expire.
            goodbye = threading.Thread(target=self._say_goodbye, name="fairlead-goodbye", daemon=True)
            goodbye.start()
            goodbye.join(_LEAVING_S)
        self._mailbox.close()

    def _say_goodbye(self) -> None:
        try:
            self._target.do(Goodbye(self._consumer))
        except Exception as error:
            fields = {"error": type(error).__name__}
            _log.warning("could not release what is held; its leases will expire", extra={"fields": fields})

    # From messages to calls

    def _needs_call(self, item: WorkItem, fresh: bool) -> bool:
        """Find the next step. Settles the item and returns False if no step is left or its carry is
        unreadable.

        Called again before each step, because the pipeline may have changed since the last one.
        """
        plan, unreadable = self.job.plan, ""
        try:
            if fresh:
                item.prepare(plan)
            else:
                item.step = plan.next_step(item.done)
        except CarryUnreadable as error:
            unreadable = str(error)
        if not unreadable and item.step < len(plan.steps):
            return True
        if fresh:
            self.in_flight.take_up(item)
        if unreadable:
            self._fail(item, FailureReason.SERIALIZATION_ERROR, unreadable)
        else:
            self._complete(item)
        return False

    def _answered(self, answer: CallAnswered) -> None:
        slot, work, result = answer
        if not slot.accept(work):
            return
        self._pool.answered(slot)
        if self._before is not None and slot.plan is self.job.plan:
            self._before = None  # the changed pipeline works
        step = slot.plan.steps[work.step].name
        self._estimates.record(step, result.took_us)
        if isinstance(work, WorkItem):
            self._take_outcome(work, step, result)
        elif isinstance(result, BatchDone):
            self._take_outcomes(work, step, result)
        elif isinstance(result, CallFailed) and result.close:
            # Smaller batches would call the same provider again.
            for item in work.items:
                self._take_outcome(item, step, result)
        elif split(work.items):
            self.in_flight.put_back([work])
        else:
            self._take_outcome(work.items[0], step, result)

    def _take_outcome(self, item: WorkItem, step: str, result: CallDone | CallFailed | BatchDone) -> None:
        if item.lost:
            self.in_flight.end(item)
        elif isinstance(result, CallDone):
            self.counts.steps += 1
            self._step_done(item, step, result.value)
        elif isinstance(result, CallFailed) and result.close:
            self._close_throttle_key(item, result)
        elif isinstance(result, CallFailed):
            retry_in = None if result.retry_in_ms is None else timedelta(milliseconds=result.retry_in_ms)
            self._fail(item, FailureReason(result.reason), result.error, retry_in, result.dead)

    def _take_outcomes(self, batch: StepBatch, step: str, result: BatchDone) -> None:
        failed = {failure.ticket: failure for failure in result.failed}
        # Most rows have no step after and none before this one: they are completed together.
        is_only_step = self.job.plan.is_whole({}, step)
        completed = []
        for row, item in enumerate(batch.items):
            if item.lost or row in failed:
                self._take_outcome(item, step, failed.get(row, result))
            elif is_only_step:
                completed.append(item)
            else:
                self.counts.steps += 1
                self._step_done(item, step, result.values[row] if result.values else b"")
        self.counts.steps += len(completed)
        self._outbox.add_completions(completed, self.job.plan.all_masks)

    def _step_done(self, item: WorkItem, step: str, value: bytes) -> None:
        plan = self.job.plan
        if plan.is_whole(item.done, step):
            self._complete(item)
            return
        try:
            carry = item.confirm(plan, step, value)
        except CarryTooLarge as error:
            self._fail(item, FailureReason.SERIALIZATION_ERROR, f"step {step!r}: {error}")
            return
        self._settle(Extend(item.delivery, progress=plan.progress(item.done), carry=carry), "progress", item)

    def _complete(self, item: WorkItem) -> None:
        self._settle(Complete(item.delivery, self.job.plan.all_masks), "complete", item)

    def _fail(
        self,
        item: WorkItem,
        reason: FailureReason,
        error: str,
        retry_in: timedelta | None = None,
        dead: bool = False,
    ) -> None:
        """Fail the message and release the rest of its run: in order, or free to pass if the queue allows
        that.
        """
        progress = self.job.plan.progress(item.done)
        self._settle(Fail(item.delivery, error, reason, progress, retry_in, dead), "fail", item)
        self._release_rest(item, keep_order=self.job.spec.on_stream_failure == "wait")

    def _close_throttle_key(self, item: WorkItem, result: CallFailed) -> None:
        """Release the rest of the run in order: it would call the same provider."""
        throttle_keys = item.delivery.throttle_keys
        if result.close not in throttle_keys:
            got = ", ".join(throttle_keys) or "none"
            wrong = f"the message has no throttle key {result.close!r}, only {got}"
            self._fail(item, FailureReason(result.reason), f"{result.error}\n{wrong}")
            return
        failure = Fail(
            item.delivery,
            result.error,
            FailureReason(result.reason),
            self.job.plan.progress(item.done),
            retry_after=timedelta(milliseconds=result.retry_after_ms),
            close=result.close,
        )
        self._settle(failure, "fail", item)
        self._release_rest(item, keep_order=True)

    def _release(self, item: WorkItem) -> None:
        self._settle(Release(item.delivery, keep_order=True), "release", item)
        self._release_rest(item, keep_order=True)

    def _release_rest(self, item: WorkItem, *, keep_order: bool) -> None:
        for delivery in self.in_flight.take_rest(item):
            self._settle(Release(delivery, keep_order=keep_order), "release rest", item)

    # Answers of the broker

    def _settled_all(self, event: Settled) -> None:
        self._outbox.unanswered -= len(event.requests)
        # Completions are taken in together, because there are so many of them.
        completed = []
        for request, result in zip(event.requests, event.results, strict=True):
            if request.purpose == "complete" and result.ok:
                completed.append(request.item)
            else:
                self._settled(request.purpose, request.item, result)
        self.counts.completed += len(completed)
        self.in_flight.end_all(completed)
        for item in completed:
            if item.rest:
                self.in_flight.follow(item)

    def _settled(self, purpose: Purpose, item: WorkItem, result: SettleResult) -> None:
        match purpose:
            case "start" | "progress":
                self._confirmed(purpose, item, result)
            case "extend" | "late start":
                if not result.ok and item in self.in_flight.held:
                    self._lose(item)
            case "release rest":
                self.counts.released += result.outcome == "released"
            case "complete" | "fail" | "release":
                self._ended(purpose, item, result)
            case "extend rest":
                pass  # the item is released or lost with its own result

    def _confirmed(self, purpose: Purpose, item: WorkItem, result: SettleResult) -> None:
        """A start or the progress of a step was recorded: the item may go on."""
        if result.outcome == "store_full":
            # The value was not stored. The work continues without it: completing the message makes room, and
            # if the worker dies before, the step runs again.
            _log.warning("a step's value was not stored: %s", result.error)
        elif not result.ok:
            self._lose(item)
            return
        if self._releasing:
            self._release(item)
        elif purpose == "start":
            item.started = True
            self.in_flight.next.appendleft(item)
        else:
            self.in_flight.next.append(item)

    def _ended(self, purpose: Purpose, item: WorkItem, result: SettleResult) -> None:
        self.in_flight.end(item)
        if not result.ok:
            if not item.lost:
                self.counts.lost += 1
                fields = {
                    "worker": self.job.name,
                    "id": item.delivery.id,
                    "outcome": result.outcome,
                    "error": result.error,
                }
                _log.warning("a lease was lost before its work ended", extra={"fields": fields})
            self._release_rest(item, keep_order=True)
            return
        if purpose == "release" or result.outcome == "returned":
            self.counts.released += 1
            return
        self.counts.dead += result.outcome == "dead"
        self.counts.failed += result.outcome != "dead"
        continues = item.rest is not None and self.job.spec.on_stream_failure == "continue"
        if continues and result.outcome == "retry":
            # Later messages of the stream that this worker does not hold may pass too.
            self._broker.release_stream(item.delivery.message.stream)

    def _extend_all(self, event: HeartbeatDue) -> None:
        for item in self.in_flight.held:
            self._settle(Extend(item.delivery), "extend", item)
            for delivery in item.rest or ():
                self._settle(Extend(delivery), "extend rest", item)

    def _lose(self, item: WorkItem) -> None:
        """Stop working on an item whose lease is over."""
        if item.lost:
            return  # reported twice, by an extension and by the progress beside it
        self.counts.lost += 1
        self.in_flight.lose(item)
        self._release_rest(item, keep_order=True)
        if not self._pool.kill_under(item):
            self.in_flight.busy.discard(item)

    # Slots

    def _watch(self) -> None:
        for item in self._pool.watch():
            if not item.started:
                item.started = True
                self._settle(Start(item.delivery), "late start", item)

    def _slot_died(self, event: SlotDied) -> None:
        self.in_flight.put_back(event.others)
        try:
            self._pool.died(event)
        except StepNotLoaded as error:
            self._restore_pipeline(error)
        if event.begun is not None:
            self._died_in(event.begun, event)
        if not self._pool.slots and not self._releasing:
            self._pool.add()

    def _died_in(self, work: Work, event: SlotDied) -> None:
        """Blame a single item for the death of its slot; a batch comes again in smaller batches."""
        step = event.slot.plan.steps[work.step].name
        if all(item.lost for item in work.items):
            for item in work.items:
                self.in_flight.end(item)
        elif self._releasing:
            for item in work.items:
                self._release(item)
        elif split(work.items):
            self.counts.restarts += 1
            self.in_flight.put_back([work])
        else:
            self.counts.restarts += 1
            self._fail(work.items[0], event.slot.reason, bounded(f"step {step!r}: {event.how}"))

    def _take_up(self, job: Job) -> None:
        self._before, self.job = self.job, job
        try:
            self._pool.change(job)
        except StepNotLoaded as error:
            self._restore_pipeline(error)
        self._pool.resize(self._concurrency or self.job.spec.concurrency)

    def _not_loaded(self, event: StepsNotLoaded) -> None:
        if event.slot not in self._pool.slots:
            return  # of a pipeline that was replaced since
        run = next((step.run or "" for step in self.job.plan.steps if step.name == event.step), "")
        self._restore_pipeline(StepNotLoaded(event.step, run, event.what))

    def _restore_pipeline(self, error: StepNotLoaded) -> None:
        """Go back to the pipeline before the change. Raises the error if there was no change."""
        if self._before is None:
            raise error
        fields = {"worker": self.job.name, "error": str(error)}
        _log.error("the changed pipeline cannot be used, going on with the old one", extra={"fields": fields})
        before, self._before = self._before, None
        self._take_up(before)
        self._before = None

    # The end

    def _set_stop(self, event: _Stop) -> None:
        now = time.monotonic()
        if event.hurry:
            self._stop_by = now
        elif self._stop_by is None:
            self._stop_by = now + self._grace_s

    def _check_stop(self) -> None:
        if self._stop_by is None:
            return
        now = time.monotonic()
        if not self._stopping:
            self._stopping = True
            self._leave_by, self._quiet_by = now + self._grace_s + _LEAVING_S, now + _LEAVING_S
            self.in_flight.ungather()
            self._pool.recall_all()
        self.in_flight.return_unbegun()
        # Not while a claim waits at the broker: it would be delivered what is released.
        if not self._fetcher.is_claiming or self._releasing:
            self._release_unbegun()
        if not self._releasing and now >= self._stop_by:
            self._releasing = True
            self._leave_by = now + _LEAVING_S
            self.in_flight.ungather()
            self._broker.hurry()
            self._pool.kill_busy("the worker was told to stop")
        while self._releasing and self.in_flight.next:
            self._release(self.in_flight.next.popleft())

    def _release_unbegun(self) -> None:
        for item in self.in_flight.take_fresh():
            self._release(item)
        for item in self.in_flight.busy:
            self._release_rest(item, keep_order=True)


def _raise(event: BrokerFailed) -> NoReturn:
    raise event.error
