"""One worker: a loop that hands messages to its slots and says how they fared.

The loop never waits for the broker: what it says is settled by another thread, and the answers come back as events, like
everything else that happens. A message's way: claimed unstarted into `_fresh`; started, unless its step is known to be quick;
called in a slot; after each step its progress is told and the answer awaited (`_next` holds those that may go on); at the end
completed or failed. Only then comes the next of its stream.

A quick step of a message that was never handed out before begins without a start: a kill of the worker then gives it back
instead of counting a failure. It is started as soon as it takes longer, and before it begins the next time it is delivered, so
that a message that kills its worker is counted from its second delivery on.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from fairlead.errors import StepNotLoaded
from fairlead.model.failure import FailureReason
from fairlead.model.settle import Complete, Extend, Fail, Release, Settlement, SettleResult, Start
from fairlead.worker.calling import Calling
from fairlead.worker.estimates import SLOW_US, Estimates
from fairlead.worker.frames import Done, Failed
from fairlead.worker.items import Item, in_runs
from fairlead.worker.job import Job
from fairlead.worker.plan import CarryTooLarge, CarryUnreadable
from fairlead.worker.process_slot import ProcessSlot
from fairlead.worker.reasons import bounded
from fairlead.worker.slots import Answer, Died, NotLoaded, Slot, ThreadSlot
from fairlead.worker.tally import Tally
from fairlead.worker.voice import Ask, Broken, Claimed, QueueSeen, Said, Target, Told, Voice

_log = logging.getLogger("fairlead.worker")

#: What a slot may have in hand of quick calls, in expected microseconds.
_BUDGET_US = 10_000
#: After so long a call that was thought to be quick counts as slow: it is started, and what waits behind it goes elsewhere.
_LATE_S = 0.02
#: Expected work fetched ahead.
_AHEAD_US = 100_000
_MOST_AHEAD = 2000
_MOST_BUSY = 4000
_LONGEST_RUN = 64
_POLL = "1s"
_TICK_S = 0.25
#: A command's own time limit comes first, so that its output is in the failure record.
_COMMAND_GRACE_S = 2.0
#: How long the end waits for answers that may never come.
_LEAVING_S = 5.0
_STILLBORN = 3


class Crew:
    """Start it, and stop it; `join` returns when everything in its hands is settled. Its other methods are thread-safe too."""

    def __init__(
        self, target: Target, job: Job, *, consumer: str, burst: bool = False, grace_s: float = 30.0, concurrency: int | None = None
    ) -> None:
        self.job = job
        self.tally = Tally()
        self.error: BaseException | None = None
        self._target = target
        self._consumer = consumer
        self._burst = burst
        self._grace_s = grace_s
        self._override = concurrency
        self._size = concurrency or job.spec.concurrency
        self._plan = job.plan
        self._before: Job | None = None
        self._calling: Calling | None = None
        self._estimates = Estimates()
        self._slots: list[Slot] = []
        self._stillborn = 0
        #: In hand and not begun, heads of runs; confirmed and waiting for a slot; taken up and not settled; all of these.
        self._fresh: deque[Item] = deque()
        self._next: deque[Item] = deque()
        self._busy: set[Item] = set()
        self._held: set[Item] = set()
        #: Started, and not in a slot yet.
        self._starting: set[Item] = set()
        self._ahead = 0
        self._saying: list[Said] = []
        self._untold = 0
        self._asking = False
        self._asked_clean = False
        self._drained = False
        self._strict = False
        self._stop_by: float | None = None
        self._stopping = False
        self._giving_back = False
        self._leave_by = 0.0
        self._events: deque[Any] = deque()
        self._asleep = False
        self._selector = selectors.DefaultSelector()
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wakes, False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._swallow)
        self._thread = threading.Thread(target=self._run, name=f"fairlead-worker-{job.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, hurry: bool = False) -> None:
        """Take no more, give back what has not begun, finish the rest within the grace. `hurry`: give that back too, at once."""
        self._post(_Stop(hurry))

    def resize(self, concurrency: int) -> None:
        self._override = concurrency
        self._post(_Resize(concurrency))

    def change(self, job: Job) -> None:
        """Go on with another pipeline or other options. What is under way is finished as it began; nothing is dropped."""
        self._post(_Change(job))

    def join(self, timeout_s: float | None = None) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def concurrency(self) -> int:
        return self._size

    @property
    def busy(self) -> int:
        return len(self._busy)

    @property
    def ahead(self) -> int:
        """Messages fetched and not begun."""
        return self._ahead

    # The loop

    def _run(self) -> None:
        self._voice = Voice(self._target, self.job.queue, self._consumer, self._post)
        try:
            self._add_slot()
            while not self._is_over():
                self._sleep()
                while self._events:
                    self._take_in(self._events.popleft())
                self._check_stop()
                self._dispatch()
                self._watch()
                self._flush()
                self._fetch()
        except BaseException as error:
            self.error = error
            _log.error("the worker has failed", exc_info=error, extra={"fields": {"worker": self.job.name}})
        finally:
            self._end()

    def _sleep(self) -> None:
        self._asleep = True
        try:
            ready = self._selector.select(0 if self._events else self._until_next())
        finally:
            self._asleep = False
        for key, _ in ready:
            key.data()

    def _until_next(self) -> float:
        """Until some call is late or over its time."""
        times = [_TICK_S]
        now = time.monotonic()
        for slot in self._slots:
            if slot.pending:
                age, limit = now - slot.since, self._limit_of(slot)
                times += [_LATE_S - age] if age < _LATE_S else []
                times += [limit - age] if limit is not None else []
        return max(0.0, min(times))

    def _post(self, event: Any) -> None:
        self._events.append(event)
        if self._asleep:
            try:
                os.write(self._wakes, b"!")
            except OSError:
                return  # full: it wakes anyway; closed: it is over

    def _swallow(self) -> None:
        os.read(self._woken, 4096)

    def _take_in(self, event: Any) -> None:
        match event:
            case Answer():
                self._answered(event)
            case Told():
                self._untold -= len(event.said)
                for said, result in zip(event.said, event.results, strict=True):
                    self._told(said, result)
            case Claimed():
                self._claimed(event)
            case Died():
                self._died(event)
            case NotLoaded():
                self._not_loaded(event)
            case QueueSeen():
                self._strict = event.ordering == "strict"
                self._beat()
            case _Resize():
                self._set_size(event.concurrency)
            case _Change():
                self._take_up(event.job)
            case _Stop():
                now = time.monotonic()
                self._stop_by = now if event.hurry else min(self._stop_by or now + self._grace_s, now + self._grace_s)
            case Broken():
                raise event.error

    def _is_over(self) -> bool:
        if self._busy or self._untold or self._saying or self._fresh:
            return self._giving_back and time.monotonic() > self._leave_by
        if self._drained:
            return True
        return self._stopping and (not self._asking or time.monotonic() > self._leave_by)

    def _end(self) -> None:
        for slot in list(self._slots):
            if slot.pending:
                slot.kill("the worker ended")
            else:
                slot.close()
        asking = self._asking
        self._voice.close(_LEAVING_S if not asking else 0.5)
        if asking or self.error is not None:
            # A claim may still be answered, and nobody would hear of it.
            try:
                self._target.goodbye(self._consumer)
            except Exception as error:
                _log.warning("could not say goodbye; leases end by themselves", extra={"fields": {"error": type(error).__name__}})
        self._selector.close()
        os.close(self._woken)
        os.close(self._wakes)

    # From messages to calls

    def _dispatch(self) -> None:
        if not self._next and (not self._fresh or self._stopping):
            return
        slots = [slot for slot in self._slots if slot.ready and not slot.retiring]
        lots: dict[Slot, list[Item]] = {}
        most = -(-(len(self._next) + len(self._fresh)) // max(1, len(slots)))
        stuck = self._deal(self._next, slots, lots, most)
        if not stuck and not self._stopping:
            stuck = self._deal(self._fresh, slots, lots, most)
        for slot, items in lots.items():
            slot.hand(items)
        if stuck:
            self._grow()

    def _deal(self, line: deque[Item], slots: list[Slot], lots: dict[Slot, list[Item]], most: int) -> bool:
        """From the front of a line, as far as there is room. True when there is work that waits for a slot."""
        fresh = line is self._fresh
        while line:
            item = line[0]
            if item.lost or (fresh and not self._needs_call(item)):
                line.popleft()
                continue
            expected_us = self._estimates.of(self._plan.steps[item.step].name)
            slow = expected_us >= SLOW_US
            if fresh and len(self._busy) >= (len(slots) if slow else _MOST_BUSY):
                return True
            if not item.started and (slow or item.delivery.deliveries > 1):
                if len(self._starting) >= sum(not slot.pending and slot not in lots for slot in slots):
                    return True
                line.popleft()
                self._take(item, fresh)
                self._starting.add(item)
                self._say(Start(item.delivery), "start", item)
                continue
            slot = _find_room(slots, lots, expected_us, slow, most)
            if slot is None:
                return True
            line.popleft()
            self._take(item, fresh)
            self._starting.discard(item)
            slot.load_us += expected_us
            lots.setdefault(slot, []).append(item)
        return False

    def _take(self, item: Item, fresh: bool) -> None:
        if fresh:
            self._ahead -= 1
            self._busy.add(item)

    def _needs_call(self, item: Item) -> bool:
        """False when it is settled without one: all its steps are done, or nobody can tell which are."""
        try:
            item.prepare(self._plan)
        except CarryUnreadable as error:
            self._take(item, True)
            self._fail(item, FailureReason.SERIALIZATION_ERROR, str(error))
            return False
        if item.step < len(self._plan.steps):
            return True
        self._take(item, True)
        self._complete(item)
        return False

    def _answered(self, answer: Answer) -> None:
        slot, item, result = answer
        left = len(slot.pending)
        if isinstance(slot, ThreadSlot):
            if slot not in self._slots:
                return
            slot.pending.popleft()
            slot.since = time.monotonic()
            left -= 1
        slot.load_us = slot.load_us * left // (left + 1)
        self._stillborn = 0
        if slot.retiring and not slot.pending:
            self._close(slot)
        if item.lost:
            self._busy.discard(item)
            return
        step = slot.plan.steps[item.step].name
        self._estimates.saw(step, result.took_us)
        if isinstance(result, Done):
            self.tally.steps += 1
            self._step_done(item, step, result.value)
        else:
            self._step_failed(item, result)

    def _step_done(self, item: Item, step: str, value: bytes) -> None:
        plan = self._plan
        if len(plan.steps) == 1 or plan.next_step({**item.done, step: value}) == len(plan.steps):
            self._complete(item)
            return
        try:
            carry = item.confirm(plan, step, value)
        except CarryTooLarge as error:
            self._fail(item, FailureReason.SERIALIZATION_ERROR, f"step {step!r}: {error}")
            return
        self._say(Extend(item.delivery, progress=plan.progress(item.done), carry=carry), "step", item)

    def _complete(self, item: Item) -> None:
        self._say(Complete(item.delivery, sum(self._plan.masks)), "done", item)

    def _step_failed(self, item: Item, failed: Failed) -> None:
        retry_in = None if failed.retry_in_ms is None else timedelta(milliseconds=failed.retry_in_ms)
        self._fail(item, FailureReason(failed.reason), failed.error, retry_in, failed.dead)

    def _fail(
        self, item: Item, reason: FailureReason, error: str, retry_in: timedelta | None = None, dead: bool = False
    ) -> None:
        """And the rest of its run goes back: in order, or with leave to go on. What that leave means is for the queue to say."""
        self._say(Fail(item.delivery, error, reason, self._plan.progress(item.done), retry_in, dead), "fail", item)
        self._give_back_rest(item, keep_order=self.job.spec.on_stream_failure == "wait")

    def _give_back(self, item: Item) -> None:
        self._say(Release(item.delivery, keep_order=True), "back", item)
        self._give_back_rest(item, keep_order=True)

    def _give_back_rest(self, item: Item, *, keep_order: bool) -> None:
        rest = item.rest
        while rest:
            self._ahead -= 1
            self._say(Release(rest.popleft(), keep_order=keep_order), "rest", item)

    # What the broker says

    def _told(self, said: Said, result: SettleResult) -> None:
        kind, item = said.kind, said.item
        if kind == "rest" or kind == "beat rest":
            self.tally.released += result.outcome == "released"
        elif kind == "beat" or kind == "late":
            if not result.ok and item in self._held:
                self._lose(item)
        elif kind in ("start", "step"):
            if not result.ok:
                self._lose(item)
            elif self._giving_back:
                self._give_back(item)
            elif kind == "start":
                item.started = True
                self._next.appendleft(item)
            else:
                self._next.append(item)
        else:
            self._settled(kind, item, result)

    def _settled(self, kind: str, item: Item, result: SettleResult) -> None:
        self._busy.discard(item)
        self._held.discard(item)
        self._starting.discard(item)
        if not result.ok:
            if not item.lost:
                self.tally.lost += 1
                _log.warning(
                    "a lease was over before the work was",
                    extra={"fields": {"worker": self.job.name, "id": item.delivery.id, "outcome": result.outcome, "error": result.error}},
                )
            self._give_back_rest(item, keep_order=True)
        elif kind == "done":
            self.tally.completed += 1
            if item.rest:
                following = Item(item.rest.popleft(), item.rest)
                self._held.add(following)
                self._fresh.appendleft(following)
                if self._stopping:
                    self._drop_fresh()
        elif kind == "back":
            self.tally.released += 1
        else:
            self.tally.dead += result.outcome == "dead"
            self.tally.failed += result.outcome != "dead"
            self._go_on_without(item, result)

    def _go_on_without(self, item: Item, result: SettleResult) -> None:
        """With `continue`, what comes later in the stream and is not in our hands may pass too, where the queue leaves it to us."""
        stream = item.delivery.message.stream
        if stream and self.job.spec.on_stream_failure == "continue" and result.outcome == "retry" and not self._strict:
            self._voice.let_by(stream)

    def _claimed(self, event: Claimed) -> None:
        self._asking = False
        deliveries = event.deliveries
        if not deliveries:
            self._drained = self._burst and self._asked_clean and not self._stopping
            return
        items = in_runs(deliveries)
        self._ahead += len(deliveries)
        self._held.update(items)
        self._fresh.extend(items)
        if self._stopping:
            self._drop_fresh()

    def _fetch(self) -> None:
        if self._asking or self._stopping or self._drained:
            return
        ahead = self._wanted_ahead()
        room = ahead + max(0, self._size - len(self._busy)) - self._ahead
        if room < 1 or self._ahead > ahead // 2:
            return
        self._asked_clean = not (self._busy or self._untold or self._held)
        self._asking = True
        run = max(1, min(_LONGEST_RUN, ahead // self._size))
        self._voice.ask(Ask(min(room, _MOST_AHEAD), run, None if self._burst else _POLL))

    def _wanted_ahead(self) -> int:
        if self.job.spec.prefetch is not None:
            return self.job.spec.prefetch
        each_us = max(1, sum(self._estimates.of(step.name) for step in self._plan.steps))
        return max(self._size, min(_MOST_AHEAD, self._size * _AHEAD_US // each_us)) if each_us < SLOW_US * len(self._plan.steps) else self._size

    def _say(self, settlement: Settlement, kind: str, item: Item) -> None:
        self._saying.append(Said(settlement, kind, item))

    def _flush(self) -> None:
        if self._saying:
            self._untold += len(self._saying)
            self._voice.say(self._saying)
            self._saying = []

    def _beat(self) -> None:
        """Keep alive what is in hand. Whoever is told that a lease is over stops working on it."""
        for item in self._held:
            self._say(Extend(item.delivery), "beat", item)
            for delivery in item.rest or ():
                self._say(Extend(delivery), "beat rest", item)

    def _lose(self, item: Item) -> None:
        item.lost = True
        self.tally.lost += 1
        self._held.discard(item)
        self._starting.discard(item)
        self._give_back_rest(item, keep_order=True)
        if item in self._fresh:
            self._ahead -= 1
        for slot in self._slots:
            if slot.pending and slot.pending[0] is item:
                slot.kill("its lease is over")
                return
        self._busy.discard(item)

    # Slots

    def _add_slot(self) -> None:
        job = self.job
        if job.spec.isolate == "thread":
            if self._calling is None:
                self._calling = Calling(job.setup)
            self._slots.append(ThreadSlot(self._plan, job.setup, self._post, self._calling))
        else:
            self._slots.append(ProcessSlot(self._plan, job.setup, self._post, self._selector))

    def _grow(self) -> None:
        active = [slot for slot in self._slots if not slot.retiring]
        starting = sum(not slot.ready for slot in active)
        waiting = len(self._next) + len(self._fresh)
        for _ in range(min(self._size - len(active), waiting - starting, max(1, (os.cpu_count() or 1) - starting))):
            self._add_slot()

    def _set_size(self, concurrency: int) -> None:
        self._size = concurrency
        active = sorted((slot for slot in self._slots if not slot.retiring), key=lambda slot: bool(slot.pending))
        self._retire(active[: max(0, len(active) - concurrency)])

    def _retire(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            slot.retiring = True
            self._next.extendleft(reversed(slot.recall()))
            if not slot.pending:
                self._close(slot)

    def _close(self, slot: Slot) -> None:
        self._slots.remove(slot)
        slot.close()

    def _take_up(self, job: Job) -> None:
        same_steps = job.plan == self.job.plan and job.setup == self.job.setup and job.spec.isolate == self.job.spec.isolate
        self._before, self.job = self.job, job
        if not same_steps:
            self._plan, self._calling = job.plan, None
            self._retire(list(self._slots))
            for item in self._next:
                item.step = self._plan.next_step(item.done)
            self._add_slot()
        self._set_size(self._override or job.spec.concurrency)

    def _not_loaded(self, news: NotLoaded) -> None:
        run = next((step.run or "" for step in self._plan.steps if step.name == news.step), "")
        error = StepNotLoaded(news.step, run, news.what)
        if self._before is None:
            raise error
        _log.error("the changed pipeline cannot be used, going on with the old one", extra={"fields": {"worker": self.job.name, "error": str(error)}})
        before, self._before = self._before, None
        self._take_up(before)
        self._before = None

    def _died(self, news: Died) -> None:
        slot, item = news.slot, news.begun
        if slot in self._slots:
            self._slots.remove(slot)
            if not slot.ready:
                self._stillborn += 1
                if self._stillborn >= _STILLBORN:
                    raise StepNotLoaded(self._plan.steps[0].name, self._plan.steps[0].run or "", f"{news.how} before its steps were loaded")
        self._next.extendleft(reversed(news.others))
        if item is None or item.lost:
            if item is not None:
                self._busy.discard(item)
        elif self._giving_back:
            self._give_back(item)
        else:
            self.tally.restarts += 1
            step = slot.plan.steps[item.step].name
            self._estimates.saw(step, SLOW_US)
            self._fail(item, slot.reason, bounded(f"step {step!r}: {news.how}"))
        if not self._slots and not self._stopping:
            self._add_slot()

    def _watch(self) -> None:
        now = time.monotonic()
        for slot in list(self._slots):
            slot.check()
            if not slot.pending:
                continue
            item, age, limit = slot.pending[0], now - slot.since, self._limit_of(slot)
            if limit is not None and age > limit:
                slot.kill(f"it took longer than {slot.plan.steps[item.step].timeout_ms} ms", FailureReason.TIMEOUT_EXCEEDED)
            elif age > _LATE_S:
                self._next.extendleft(reversed(slot.recall()))
                slot.load_us = _BUDGET_US if slot.pending else 0
                if slot.pending and not item.started:
                    item.started = True
                    self._say(Start(item.delivery), "late", item)

    def _limit_of(self, slot: Slot) -> float | None:
        step = slot.plan.steps[slot.pending[0].step]
        if step.timeout_ms is None:
            return None
        return step.timeout_ms / 1000 + (_COMMAND_GRACE_S if step.command is not None else 0)

    # The end

    def _check_stop(self) -> None:
        if self._stop_by is None:
            return
        if not self._stopping:
            self._stopping = True
            self._leave_by = time.monotonic() + self._grace_s + _LEAVING_S
            self._drop_fresh()
            for slot in self._slots:
                self._next.extendleft(reversed(slot.recall()))
            for item in list(self._next):
                if not item.started:
                    self._next.remove(item)
                    self._give_back(item)
            for item in self._busy:
                self._give_back_rest(item, keep_order=True)
        if not self._giving_back and time.monotonic() >= self._stop_by:
            self._giving_back = True
            self._leave_by = time.monotonic() + _LEAVING_S
            self._voice.hurry()
            for slot in list(self._slots):
                if slot.pending:
                    slot.kill("the worker was told to stop")
            while self._next:
                self._give_back(self._next.popleft())

    def _drop_fresh(self) -> None:
        while self._fresh:
            item = self._fresh.popleft()
            if not item.lost:
                self._ahead -= 1
                self._give_back(item)


class _Stop:
    def __init__(self, hurry: bool) -> None:
        self.hurry = hurry


class _Resize:
    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency


class _Change:
    def __init__(self, job: Job) -> None:
        self.job = job


def _find_room(slots: list[Slot], lots: dict[Slot, list[Item]], expected_us: int, slow: bool, most: int) -> Slot | None:
    for slot in slots:
        lot = lots.get(slot)
        if slow or expected_us >= _BUDGET_US:
            if not slot.pending and not lot:
                return slot
        elif slot.load_us + expected_us <= _BUDGET_US and (lot is None or len(lot) < most):
            return slot
    return None

