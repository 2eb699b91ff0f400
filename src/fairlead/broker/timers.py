"""What happens because time has passed: leases expire, waiting messages become due, lives and windows end.

Each step is one bounded commit under the lock. The timer runs them from a thread of its own; claims run those
of their queue first, so that neither can starve the other.
"""

from __future__ import annotations

import logging
import threading

from fairlead.broker.consumer_close import end_those_away, run_left_alone
from fairlead.broker.core import Core
from fairlead.broker.hooking import Answers, FailedTry, ask_on_failure, has_failure_hook
from fairlead.broker.intents import (
    Chosen,
    choose_for_background_steps,
    next_background_ms,
    run_background_step,
)
from fairlead.broker.locate import locate
from fairlead.broker.moves import Moves
from fairlead.broker.publish import finish_publishes, next_staging_ms, run_staging_step
from fairlead.broker.queue_state import NEVER_MS, QueueState
from fairlead.broker.room import step_of
from fairlead.broker.states import states_of
from fairlead.decide.exchange import REQUEST_KEPT_MS
from fairlead.decide.retry import HookAnswer
from fairlead.errors import BrokerClosed, FairleadError
from fairlead.model.durations import show_ms
from fairlead.model.facts import DedupForgotten, InLease, InReady, RequestsForgotten, TtlForgotten
from fairlead.model.failure import FailureReason
from fairlead.model.ids import first_id_of
from fairlead.model.lane import DEAD_LETTER_LANE, ROW_BYTES, Flag, row_flags, row_id, row_place
from fairlead.model.lease import Lease
from fairlead.model.message import HELD, MessageState

STEP = 1000
#: A slow script may take its full time in each call, and nobody else's due work is done meanwhile.
HOOKED_STEP = 100
#: However far off the next wake-up is: a step of the wall clock is noticed within this time.
LONGEST_SLEEP_MS = 30_000

#: After a failure, so that a full disk does not fill the log too.
PAUSE_MS = 100

_log = logging.getLogger("fairlead.timers")


def run_due(core: Core) -> None:
    """Everything that is due now, step by step, letting others have the lock in between."""
    while True:
        expired = _expire_with_hooks(core)
        chosen = choose_for_background_steps(core)
        with core.step():
            if core.closed:
                return
            core.check_open()
            core.notice_clock_step()
            worked = run_step(core, chosen) or expired
        # Last: what others left behind and cannot be finished, as on a full disk, must not keep leases from
        # ending.
        if not worked and not run_left_alone(core) | finish_publishes(core):
            return


def run_step(core: Core, chosen: dict[int, Chosen]) -> bool:
    """One bounded step; False when nothing was due. `chosen` has the dead letters that redrives in the
    background may move.
    """
    if expire_leases(core):
        return True
    now_ms = core.now_ms()
    if any(
        run_queue_due(core, state) for state in list(core.by_id.values()) if state.next_wake_ms() <= now_ms
    ):
        return True
    if _forget_requests(core) or end_those_away(core) or run_staging_step(core, now_ms):
        return True
    return run_background_step(core, chosen)


def _expire_with_hooks(core: Core) -> bool:
    """Leases of queues with an `on_failure` hook: the hook is asked without the lock, then what still holds
    is committed.
    """
    with core.lock:
        if core.closed or not any(has_failure_hook(state) for state in core.by_id.values()):
            return False
        core.check_open()
        monotonic_ms = core.clock.monotonic_ms()
        found = {lease.id: lease for lease in core.leases.overdue(monotonic_ms, step_of(core, STEP))}
        worked = _expire_all(core, [lease for lease in found.values() if not _asks_hook(core, lease)], {})
        overdue = (core.leases.unasked | found).values()
        unasked = [
            lease
            for lease in overdue
            if _asks_hook(core, lease) and _still_overdue(core, lease, monotonic_ms)
        ]
        hooked = _some_runs(unasked, HOOKED_STEP)
        asked = {lease.id for lease in hooked}
        core.leases.unasked = {lease.id: lease for lease in unasked if lease.id not in asked}
        tries = []
        for lease, state in zip(hooked, states_of(core, hooked), strict=True):
            message = core.message(lease.id)
            if message is not None and core.leases.first_of_run(lease):
                error = expiry_error(core, lease)
                tries.append(
                    FailedTry(
                        lease,
                        core.by_id[lease.queue_id],
                        message,
                        state,
                        error,
                        FailureReason.TIMEOUT_EXCEEDED,
                        0,
                    )
                )
    if not hooked:
        return worked
    answers = ask_on_failure(core, tries)
    with core.lock:
        if core.closed:
            return False
        core.check_open()
        monotonic_ms = core.clock.monotonic_ms()
        return (
            _expire_all(
                core, [lease for lease in hooked if _still_overdue(core, lease, monotonic_ms)], answers
            )
            or worked
        )


def _some_runs(leases: list[Lease], most: int) -> list[Lease]:
    """So many runs, each whole: only its first message has failed, and who comes first must not change in
    between.
    """
    runs: dict[tuple[int, bytes], list[Lease]] = {}
    for lease in leases:
        runs.setdefault((lease.claim_id, lease.row[ROW_BYTES:] or lease.id), []).append(lease)
    return [lease for run in list(runs.values())[:most] for lease in run]


def _still_overdue(core: Core, lease: Lease, monotonic_ms: int) -> bool:
    return core.leases.find(lease.id) is lease and lease.deadline_ms <= monotonic_ms


def _asks_hook(core: Core, lease: Lease) -> bool:
    return lease.started and has_failure_hook(core.by_id.get(lease.queue_id))


def run_queue_due(core: Core, queue: QueueState, *, expire: bool = True) -> bool:
    """What is due in one queue, at most a step of each kind."""
    expired = expire and expire_leases(core)
    now_ms = core.now_ms()
    if queue.next_wake_ms() > now_ms:
        return expired
    worked = False
    if queue.next_due_ms <= now_ms:
        worked |= _become_due(core, queue, now_ms)
    if queue.next_expiry_ms <= now_ms:
        worked |= _end_lives(core, queue, now_ms)
    if queue.next_dedup_ms <= now_ms:
        worked |= _end_windows(core, queue, now_ms)
    if queue.next_retention_ms <= now_ms:
        worked |= _end_retention(core, queue, now_ms)
    if queue.next_done_ms <= now_ms:
        worked |= _forget_done(core, queue, now_ms)
    core.look_ahead(queue)
    return worked or expired


def expire_leases(core: Core) -> bool:
    """A started delivery that was not settled in time has failed; an unstarted one is given back.

    Under the lock, so those that a hook must be asked about are left to the timer.
    """
    monotonic_ms = core.clock.monotonic_ms()
    deadline_ms = core.leases.next_deadline_ms()
    if deadline_ms is None or deadline_ms > monotonic_ms:
        return False
    overdue = core.leases.overdue(monotonic_ms, step_of(core, STEP))
    core.leases.unasked.update((lease.id, lease) for lease in overdue if _asks_hook(core, lease))
    return _expire_all(core, [lease for lease in overdue if not _asks_hook(core, lease)], {})


def _expire_all(core: Core, overdue: list[Lease], answers: Answers) -> bool:
    moves = Moves(core, core.now_ms(), "lease_expiry")
    # What expires together comes back in the order it had, also when the leases were read back at open.
    overdue = sorted(overdue, key=lambda late: late.row)
    for lease, state in zip(overdue, states_of(core, overdue), strict=True):
        _expire(core, moves, lease, state, answers.get((lease.id, lease.claim_id)))
    moves.commit()
    return bool(overdue)


def expiry_error(core: Core, lease: Lease) -> str:
    lease_ms = core.leases.claim(lease.claim_id).lease_ms
    return f"not settled within its lease of {show_ms(lease_ms)} (consumer {lease.consumer!r})"


def _expire(
    core: Core, moves: Moves, lease: Lease, state: MessageState | None, hook: HookAnswer | None
) -> None:
    if lease.queue_id not in core.by_id:
        # Its queue was deleted; the steps of that may not have come to it yet.
        moves.drop(InLease(lease))
    elif lease.started and core.leases.first_of_run(lease):
        moves.fail(
            lease, state, reason=FailureReason.TIMEOUT_EXCEEDED, error=expiry_error(core, lease), hook=hook
        )
    else:
        moves.release(lease, state)


def _become_due(core: Core, queue: QueueState, now_ms: int) -> bool:
    due = core.store.due(queue.queue_id, now_ms, step_of(core, STEP))
    moves = Moves(core, now_ms)
    touched = [row_id(waiting.row) for waiting in due if row_flags(waiting.row) & Flag.STATE]
    states = dict(zip(touched, core.store.states(touched), strict=True)) if touched else {}
    for waiting in due:
        moves.become_due(waiting, states.get(row_id(waiting.row)))
    moves.commit()
    return bool(due)


def _end_lives(core: Core, queue: QueueState, now_ms: int) -> bool:
    """Messages past their time to live go, unless they are leased: those are looked at again when their lease
    ends.
    """
    ended = core.store.expired(queue.queue_id, now_ms, STEP)
    moves = Moves(core, now_ms)
    for expires_ms, message_id in ended:
        lease = core.leases.find(message_id)
        spot = None if lease is not None else locate(core, message_id)
        if spot is None:
            moves.facts.append(TtlForgotten(queue.queue_id, expires_ms, message_id))
        else:
            moves.expire(spot, core.store.states([message_id])[0], queue)
    moves.commit()
    return bool(ended)


def _end_windows(core: Core, queue: QueueState, now_ms: int) -> bool:
    rows = core.store.dedup_over(queue.queue_id, now_ms, STEP)
    if rows:
        core.commit([DedupForgotten(rows)])
    return bool(rows)


def _forget_requests(core: Core) -> bool:
    """Outcomes of requests too old to be asked for again; looked at once a minute, and not soon after a step
    of the clock.

    By the wall clock, because an id carries that of its caller. An id from ahead, of a clock that was set
    back since, is kept until its own time is over: it will be in time again.
    """
    monotonic_ms = core.clock.monotonic_ms()
    if monotonic_ms < core.next_request_sweep_ms:
        return False
    core.next_request_sweep_ms = monotonic_ms + 60_000
    old = core.store.requests_before(first_id_of(max(0, core.clock.now_ms() - REQUEST_KEPT_MS)), STEP)
    if old:
        core.commit([RequestsForgotten(old)])
        core.next_request_sweep_ms = monotonic_ms
    return bool(old)


def _forget_done(core: Core, queue: QueueState, now_ms: int) -> bool:
    """Completed messages that were kept long enough; all of them, when the queue keeps none any more."""
    kept_ms = queue.config.retain_completed_ms
    done = core.store.done(queue.queue_id, None, now_ms - kept_ms if kept_ms else HELD, STEP)
    moves = Moves(core, now_ms, "retention")
    for spot in done:
        moves.drop(spot, "expired")
    moves.commit()
    return bool(done)


def _end_retention(core: Core, dead_letters: QueueState, now_ms: int) -> bool:
    """Dead letters older than their queue keeps them, oldest first; a leased one waits for its release."""
    source = core.by_id.get(dead_letters.record.source_id)
    retention_ms = source.config.dead_retention_ms if source else 0
    head = dead_letters.scheduler.head(DEAD_LETTER_LANE)
    if not retention_ms or head is None:
        return False
    place = row_place(head) - 1
    rows = core.store.rows_after(dead_letters.queue_id, DEAD_LETTER_LANE, place, STEP)
    moves = Moves(core, now_ms, "retention")
    for row, state in zip(rows, core.store.states([row_id(row) for row in rows]), strict=True):
        if state is None or state.dead_since_ms + retention_ms > now_ms:
            break
        moves.drop(InReady(dead_letters.queue_id, DEAD_LETTER_LANE, row), "expired")
    worked = bool(moves.facts)
    moves.commit()
    return worked


class Timer:
    """The thread that runs what is due, when it is due. With a clock that is moved by hand there is no
    thread.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._unsubscribe = core.clock.subscribe(lambda: run_due(core))
        self._thread: threading.Thread | None = None
        if core.clock.ticks:
            self._thread = threading.Thread(target=self._run, name="fairlead-timer", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Called without the lock, after `core.closed` was set."""
        self._unsubscribe()
        with self._core.lock:
            self._core.timer.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        core = self._core
        while True:
            pause_ms = 0
            try:
                run_due(core)
            except BrokerClosed:
                return
            except FairleadError as error:
                # A full disk passes; a broken store has stopped the broker and every caller is told.
                _log.warning("due work is put off: %s", error)
                pause_ms = PAUSE_MS
            except Exception:
                # Without this thread no lease would end and nothing would become due.
                _log.exception("due work is put off by an error that nobody foresaw")
                pause_ms = PAUSE_MS
            with core.lock:
                if core.closed:
                    return
                sleep_ms = max(pause_ms, _sleep_ms(core))
                core.timer_wakes_ms = core.now_ms() + sleep_ms
                core.clock.wait(core.timer, sleep_ms)
                core.timer_wakes_ms = NEVER_MS


def _sleep_ms(core: Core) -> int:
    queues_ms = min((state.next_wake_ms() for state in core.by_id.values()), default=NEVER_MS)
    due_ms = min(queues_ms, next_staging_ms(core)) - core.now_ms()
    deadline_ms = core.leases.next_deadline_ms()
    lease_ms = NEVER_MS if deadline_ms is None else deadline_ms - core.clock.monotonic_ms()
    step_ms = next_background_ms(core)
    rated_ms = NEVER_MS if step_ms is None else step_ms - core.clock.monotonic_ms()
    consumer_ms = (
        0 if core.consumer_book.left_alone() else core.consumer_book.next_end_ms() - core.clock.monotonic_ms()
    )
    return max(1, min(due_ms, lease_ms, rated_ms, consumer_ms, LONGEST_SLEEP_MS))
