"""One worker: a loop that hands messages to its slots and says how they fared.

The loop never waits for the broker: what it says is settled by another thread, and the answers come back as
events, like everything else that happens. A message's way: claimed unstarted; started, unless its step is
known to be quick; called in a slot; after each step its progress is told and the answer awaited; at the end
completed or failed. Only then comes the next of its stream.

A quick step of a message that was never handed out before begins without a start: a kill of the worker then
gives it back instead of counting a failure. It is started as soon as it takes longer, and before it begins
the next time it is delivered, so that a message that kills its worker is counted from its second delivery on.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from typing import Any, NamedTuple

from fairlead.errors import FairleadError, StepNotLoaded
from fairlead.model.failure import FailureReason
from fairlead.model.settle import Complete, Extend, Fail, Release, SettleResult, Start
from fairlead.surface import Doer
from fairlead.verbs.settle import Goodbye
from fairlead.worker.batches import StepBatch, Work, split
from fairlead.worker.broker_threads import (
    BrokerFailed,
    BrokerThreads,
    ClaimAnswered,
    HeartbeatDue,
    Purpose,
    Settled,
    SettleRequest,
)
from fairlead.worker.counts import WorkerCounts
from fairlead.worker.dispatch import Dispatcher
from fairlead.worker.estimates import Estimates
from fairlead.worker.fetching import Fetcher
from fairlead.worker.in_flight import InFlight
from fairlead.worker.items import WorkItem
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
#: While slots have quick calls in plenty, answers gather for so long before they are read.
_GATHER_S = 0.001
#: How long the end waits for answers that may never come.
_LEAVING_S = 5.0


class _Stop(NamedTuple):
    hurry: bool


class _Resize(NamedTuple):
    concurrency: int


class WorkerLoop:
    """Start it, and stop it; `join` returns when everything in its hands is settled. Its other methods are
    thread-safe too.
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
        self._override = concurrency
        self._before: Job | None = None
        self._estimates = Estimates()
        self._stop_by: float | None = None
        self._stopping = False
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
        self._thread = threading.Thread(target=self._run, name=f"fairlead-worker-{job.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, hurry: bool = False) -> None:
        """Take no more, give back what has not begun, finish the rest within the grace. `hurry`: give that
        back too, at once.
        """
        self._post(_Stop(hurry))

    def resize(self, concurrency: int) -> None:
        self._override = concurrency
        self._post(_Resize(concurrency))

    def change(self, job: Job) -> None:
        """Go on with another pipeline or other options. What is under way is finished as it began; nothing is
        dropped.
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
                    self._handle(event)
                self._check_stop()
                self._dispatcher.dispatch(self.job.plan, only_begun=self._stopping)
                self._watch()
                self._outbox.flush(self._broker.settle, may_wait=self._pool.is_busy())
                if not self._stopping:
                    self._fetcher.fetch(self.job, self._broker)
        except BaseException as error:
            self.error = error
            if not isinstance(
                error, FairleadError
            ):  # which says all there is to say to whoever asks `Workers.check`
                _log.error(
                    "the worker has failed", exc_info=error, extra={"fields": {"worker": self.job.name}}
                )
        finally:
            self._end()

    def _sleep(self) -> None:
        if self._pool.has_plenty():
            # Every slot has enough to do: let answers gather, and take them together.
            time.sleep(_GATHER_S)
        self._mailbox.wait(self._pool.until_next(self._dispatcher.until_due(self._outbox.until_due(_TICK_S))))

    def _handle(self, event: Any) -> None:
        match event:
            case CallAnswered():
                self._answered(event)
            case Settled():
                self._outbox.unanswered -= len(event.requests)
                self._settled_all(event)
            case ClaimAnswered():
                self._fetcher.claimed(event)
            case SlotDied():
                self._died(event)
            case StepsNotLoaded():
                self._not_loaded(event)
            case HeartbeatDue():
                self._extend_all()
            case _Resize():
                self._pool.resize(event.concurrency)
            case Job():
                self._take_up(event)
            case _Stop():
                now = time.monotonic()
                self._stop_by = (
                    now if event.hurry else min(self._stop_by or now + self._grace_s, now + self._grace_s)
                )
            case BrokerFailed():
                raise event.error

    def _is_over(self) -> bool:
        if self.in_flight.held or not self._outbox.is_empty:
            return self._releasing and time.monotonic() > self._leave_by
        return self._fetcher.drained or (
            self._stopping and (not self._fetcher.asking or time.monotonic() > self._quiet_by)
        )

    def _end(self) -> None:
        # Also after a failure: what has been done and is not told would be done again.
        self._outbox.flush(self._broker.settle, may_wait=False)
        self._pool.close()
        self._broker.close(0.5 if self._fetcher.asking else _LEAVING_S)
        if self._fetcher.asking or self.in_flight.held:
            # What is still in hand, or a claim that nobody will hear of, goes back now and not when its lease
            # is over.
            going = threading.Thread(target=self._say_goodbye, name="fairlead-goodbye", daemon=True)
            going.start()
            going.join(_LEAVING_S)
        self._mailbox.close()

    def _say_goodbye(self) -> None:
        try:
            self._target.do(Goodbye(self._consumer))
        except Exception as error:
            _log.warning(
                "could not say goodbye; leases end by themselves",
                extra={"fields": {"error": type(error).__name__}},
            )

    # From messages to calls

    def _needs_call(self, item: WorkItem, fresh: bool) -> bool:
        """False when it is settled without one: all its steps are done, or nobody can tell which are.

        Asked also of one that has been on its way: the pipeline may have been changed since its last step.
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
            self._before = None  # the new pipeline works
        step = slot.plan.steps[work.step].name
        self._estimates.record(step, result.took_us)
        if isinstance(work, WorkItem):
            self._has_outcome(work, step, result)
        elif isinstance(result, BatchDone):
            self._have_outcomes(work, step, result)
        elif isinstance(result, CallFailed) and result.close:
            # Smaller batches would call the same provider again.
            for item in work.items:
                self._has_outcome(item, step, result)
        elif split(work.items):
            self.in_flight.put_back([work])
        else:
            self._has_outcome(work.items[0], step, result)

    def _has_outcome(self, item: WorkItem, step: str, result: CallDone | CallFailed | BatchDone) -> None:
        if item.lost:
            self.in_flight.end(item)
        elif isinstance(result, CallDone):
            self.counts.steps += 1
            self._step_done(item, step, result.value)
        elif isinstance(result, CallFailed) and result.close:
            self._close(item, result)
        elif isinstance(result, CallFailed):
            retry_in = None if result.retry_in_ms is None else timedelta(milliseconds=result.retry_in_ms)
            self._fail(item, FailureReason(result.reason), result.error, retry_in, result.dead)

    def _have_outcomes(self, batch: StepBatch, step: str, result: BatchDone) -> None:
        failed = {failure.ticket: failure for failure in result.failed}
        # Most rows have nothing behind them and nothing before them: those are completed together.
        is_all = self.job.plan.is_whole({}, step)
        completed = []
        for place, item in enumerate(batch.items):
            if item.lost or place in failed:
                self._has_outcome(item, step, failed.get(place, result))
            elif is_all:
                completed.append(item)
            else:
                self.counts.steps += 1
                self._step_done(item, step, result.values[place] if result.values else b"")
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
        """And the rest of its run goes back: in order, or with leave to go on. What that leave means is for
        the queue to say.
        """
        self._settle(
            Fail(item.delivery, error, reason, self.job.plan.progress(item.done), retry_in, dead),
            "fail",
            item,
        )
        self._release_rest(item, keep_order=self.job.spec.on_stream_failure == "wait")

    def _close(self, item: WorkItem, result: CallFailed) -> None:
        """And the rest of its run goes back in order: it would call the same provider."""
        throttle_keys = item.delivery.throttle_keys
        if result.close not in throttle_keys:
            told = (
                f"the message has no throttle key {result.close!r}, only {', '.join(throttle_keys) or 'none'}"
            )
            self._fail(item, FailureReason(result.reason), f"{result.error}\n{told}")
            return
        said = Fail(
            item.delivery,
            result.error,
            FailureReason(result.reason),
            self.job.plan.progress(item.done),
            retry_after=timedelta(milliseconds=result.retry_after_ms),
            close=result.close,
        )
        self._settle(said, "fail", item)
        self._release_rest(item, keep_order=True)

    def _release(self, item: WorkItem) -> None:
        self._settle(Release(item.delivery, keep_order=True), "release", item)
        self._release_rest(item, keep_order=True)

    def _release_rest(self, item: WorkItem, *, keep_order: bool) -> None:
        for delivery in self.in_flight.take_rest(item):
            self._settle(Release(delivery, keep_order=keep_order), "release rest", item)

    # What the broker says

    def _settled_all(self, event: Settled) -> None:
        """Those that are completed together, because there are so many of them."""
        completed = []
        for request, result in zip(event.requests, event.results, strict=True):
            if request.purpose == "complete" and result.ok:
                completed.append(request.item)
            else:
                self._settled(request, result)
        self.counts.completed += len(completed)
        self.in_flight.end_all(completed)
        for item in completed:
            if item.rest:
                self.in_flight.follow(item)

    def _settled(self, request: SettleRequest, result: SettleResult) -> None:
        purpose, item = request.purpose, request.item
        if purpose in ("start", "progress"):
            if result.outcome == "store_full":
                # The value was not stored. The work goes on without it: completing the message makes room,
                # and should the worker die before, the step runs again.
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
        elif purpose in ("extend", "late start"):
            if not result.ok and item in self.in_flight.held:
                self._lose(item)
        elif purpose == "release rest":
            self.counts.released += result.outcome == "released"
        elif purpose in ("complete", "fail", "release"):
            self._ended(purpose, item, result)

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
                _log.warning("a lease was over before the work was", extra={"fields": fields})
            self._release_rest(item, keep_order=True)
        elif purpose == "release" or result.outcome == "returned":
            self.counts.released += 1
        else:
            self.counts.dead += result.outcome == "dead"
            self.counts.failed += result.outcome != "dead"
            if (
                item.rest is not None
                and self.job.spec.on_stream_failure == "continue"
                and result.outcome == "retry"
            ):
                # What comes later in the stream and is not in our hands may pass too.
                self._broker.release_stream(item.delivery.message.stream)

    def _extend_all(self) -> None:
        """Keep alive what is in hand. Whoever is told that a lease is over stops working on it."""
        for item in self.in_flight.held:
            self._settle(Extend(item.delivery), "extend", item)
            for delivery in item.rest or ():
                self._settle(Extend(delivery), "extend rest", item)

    def _lose(self, item: WorkItem) -> None:
        if item.lost:
            return  # told twice, of a beat and of the step beside it
        self.counts.lost += 1
        self.in_flight.lose(item)
        self._release_rest(item, keep_order=True)
        if not self._pool.kill_under(item):
            self.in_flight.busy.discard(item)

    # What slots go through

    def _watch(self) -> None:
        for item in self._pool.watch():
            if not item.started:
                item.started = True
                self._settle(Start(item.delivery), "late start", item)

    def _died(self, event: SlotDied) -> None:
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
        """Whoever is alone is to blame; a batch comes again in smaller ones."""
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
        self._pool.resize(self._override or self.job.spec.concurrency)

    def _not_loaded(self, event: StepsNotLoaded) -> None:
        if event.slot not in self._pool.slots:
            return  # of a pipeline that was taken back, or changed again
        run = next((step.run or "" for step in self.job.plan.steps if step.name == event.step), "")
        self._restore_pipeline(StepNotLoaded(event.step, run, event.what))

    def _restore_pipeline(self, error: StepNotLoaded) -> None:
        """To the pipeline before the change that cannot be used, if there was one."""
        if self._before is None:
            raise error
        _log.error(
            "the changed pipeline cannot be used, going on with the old one",
            extra={"fields": {"worker": self.job.name, "error": str(error)}},
        )
        before, self._before = self._before, None
        self._take_up(before)
        self._before = None

    # The end

    def _check_stop(self) -> None:
        if self._stop_by is None:
            return
        now = time.monotonic()
        if not self._stopping:
            self._stopping = True
            self._leave_by, self._quiet_by = now + self._grace_s + _LEAVING_S, now + _LEAVING_S
            self.in_flight.ungather()
            self._pool.recall_all()
        self.in_flight.put_down()
        # A claim that still waits at the broker would be given what goes back.
        if not self._fetcher.asking or self._releasing:
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
