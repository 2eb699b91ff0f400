"""How one message moves on, for verbs and timers alike: rules decide, and a decision becomes a fact.

`release` and `fail` change nothing; `add_all` adds the facts of several of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

import msgspec

from fairlead.decide.release import after_release
from fairlead.decide.retry import Bury, Failure, after_failure
from fairlead.engine.memory import Queue
from fairlead.engine.transaction import Transaction
from fairlead.model.durations import show_ms
from fairlead.model.failure import FailureReason, FailureRecord, Progress
from fairlead.model.message import HELD, with_failure
from fairlead.records.facts import KeysForgotten, MessageGone, MessageMoved, Move, WindowsEnded
from fairlead.records.lease import GroupLease
from fairlead.records.state import OwnState

#: Messages that one step of the timer moves.
STEP_MESSAGES = 1000


class Moved(NamedTuple):
    """The outcome of a move, in the words of `SettleResult`, and the fact that carries it out."""

    outcome: str
    rule: str
    fact: MessageMoved | MessageGone
    due_ms: int = 0


def add_all(tx: Transaction, moves: Iterable[Moved]) -> None:
    """Messages that return to their places come first: their keys join the ring before keys whose messages take
    new places.
    """
    for moved in sorted(moves, key=lambda moved: moved.fact.why != "released"):
        tx.add(moved.fact)


def release(tx: Transaction, number: int, *, keep_order: bool = True) -> Moved:
    """Back to its place, with one delivery more; or dead, when it was delivered too often."""
    state = tx.memory.state_of(number)
    queue = tx.memory.by_id[state.queue_id]
    deliveries = state.deliveries + 1
    decision = after_release(
        queue.record.config,
        deliveries,
        in_stream=False,
        keep_order=keep_order,
        is_dead=queue.is_dead_letter_queue,
    )
    if isinstance(decision, Bury):
        record = _record(tx, number, state.attempts, FailureReason.UNKNOWN, decision.why, decision.rule)
        return Moved("dead", decision.rule, _bury(tx, number, _failed(state, record), queue))
    kept = msgspec.structs.replace(state, deliveries=deliveries)
    if is_over(tx, number):
        return expire(tx, number, kept, queue)
    return Moved("released", decision.rule, _move(number, "released", kept))


def fail(
    tx: Transaction,
    number: int,
    *,
    reason: FailureReason,
    error: str,
    progress: int = 0,
    retry_in_ms: int | None = None,
    dead: bool = False,
) -> Moved:
    """Another delivery, now or later, at the tail of its lane; or the dead letters. A dead letter that fails is
    released.
    """
    state = tx.memory.state_of(number)
    queue = tx.memory.by_id[state.queue_id]
    if queue.is_dead_letter_queue:
        return release(tx, number)._replace(rule="dead_letter_queue")
    attempts = state.attempts + 1
    failure = Failure(attempts, reason, retry_in_ms=retry_in_ms, dead=dead)
    decision = after_failure(failure, queue.record.config, now_ms=tx.now_ms, jitter=tx.random.random())
    if isinstance(decision, Bury):
        record = _record(tx, number, attempts, reason, error or decision.why, decision.rule)
        buried = _failed(state, record, progress)
        if decision.reason is not None:
            # The record of the last try keeps its own reason.
            buried = msgspec.structs.replace(buried, reason=int(decision.reason))
        return Moved("dead", decision.rule, _bury(tx, number, buried, queue))
    record = _record(tx, number, attempts, reason, error, decision.rule, decision.due_ms)
    failed = _failed(state, record, progress)
    if is_over(tx, number):
        return expire(tx, number, failed, queue)
    if decision.due_ms:
        fact = _move(number, "delayed", failed, place=0, due_ms=decision.due_ms)
    else:
        fact = _move(number, "retried", failed, place=tx.next_place())
    return Moved("retry", decision.rule, fact, decision.due_ms)


def make_due(tx: Transaction, number: int, state: OwnState) -> MessageMoved:
    """A wait ends, by itself or by an operator: ready at the tail of its lane."""
    return _move(number, "due", state, place=tx.next_place())


def hold(number: int, state: OwnState, *, is_leased: bool) -> MessageMoved:
    """Waiting without end, until an operator lets it go."""
    return _move(number, "held", state, place=0, due_ms=HELD, deliveries=state.deliveries + is_leased)


def bury(tx: Transaction, number: int, error: str, reason: FailureReason) -> MessageMoved:
    """By an operator: it is no attempt."""
    return _bury(
        tx, number, with_record(tx, tx.memory.state_of(number), error, reason), _queue_of(tx, number)
    )


def with_record(tx: Transaction, state: OwnState, error: str, reason: FailureReason) -> OwnState:
    """Add an operator's record to the failures of a message. It is no attempt."""
    record = FailureRecord(tx.now_ms, state.attempts, int(reason), error, "", "operator")
    recorded = with_failure(state, record)
    assert isinstance(recorded, OwnState)
    return recorded


def quarantine(tx: Transaction, number: int, queue: Queue, error: str, reason: FailureReason) -> MessageMoved:
    """A new message begins as a dead letter of `queue`."""
    record = FailureRecord(tx.now_ms, 0, int(reason), error, "", "quarantine")
    recorded = with_failure(OwnState(queue.record.queue_id), record)
    assert isinstance(recorded, OwnState)
    return _bury(tx, number, recorded, queue)


def redrive(tx: Transaction, number: int, state: OwnState) -> MessageMoved:
    """A dead letter begins a new life at the tail of its lane."""
    alive = OwnState(
        state.source_queue_id,
        progress=state.progress,
        carry=state.carry,
        failures=state.failures,
        failures_cut=state.failures_cut,
        redrives=state.redrives + 1,
    )
    return _move(number, "redriven", alive, place=tx.next_place())


def _queue_of(tx: Transaction, number: int) -> Queue:
    return tx.memory.by_id[tx.memory.state_of(number).queue_id]


def is_over(tx: Transaction, number: int) -> bool:
    """Whether its time to live ended."""
    return 0 < tx.memory.end_of_life(number) <= tx.now_ms


def expire(tx: Transaction, number: int, state: OwnState, queue: Queue) -> Moved:
    """Its time to live is over: gone, or dead where the queue says so."""
    if not queue.record.config.expired_to_dead:
        return Moved("expired", "ttl", MessageGone(number, "expired"))
    record = FailureRecord(
        tx.now_ms, state.attempts, FailureReason.UNKNOWN, "its time to live ended", "", "ttl"
    )
    dead = with_failure(state, record)
    assert isinstance(dead, OwnState)
    return Moved("dead", "ttl", _bury(tx, number, dead, queue))


def _record(
    tx: Transaction, number: int, attempts: int, reason: FailureReason, error: str, rule: str, due_ms: int = 0
) -> FailureRecord:
    consumer = tx.memory.held[number].terms.consumer
    return FailureRecord(tx.now_ms, attempts, int(reason), error, consumer, rule, due_ms)


def _failed(state: OwnState, record: FailureRecord, progress: int = 0) -> OwnState:
    changed = with_failure(
        state,
        record,
        attempts=record.attempt,
        deliveries=state.deliveries + 1,
        progress=state.progress | progress | Progress.FAILED,
    )
    assert isinstance(changed, OwnState)
    return changed


def _bury(tx: Transaction, number: int, state: OwnState, queue: Queue) -> MessageMoved:
    return _move(
        number,
        "buried",
        state,
        queue_id=queue.record.dlq_id,
        place=tx.next_place(),
        deliveries=0,
        source_queue_id=queue.record.queue_id,
        dead_since_ms=tx.now_ms,
    )


def _move(number: int, why: Move, state: OwnState, **changes: int) -> MessageMoved:
    moved = msgspec.structs.replace(state, **{"claim_id": 0, "due_ms": 0} | changes)
    return MessageMoved(number, moved, why)


# Due work, for the timer and for claims


def run_due(tx: Transaction) -> bool:
    """One bounded step of what time has made due; False when nothing was."""
    if expire_leases(tx):
        return True
    worked = [
        step(tx, queue) for queue in tx.memory.by_id.values() for step in (wake_due, end_lives, end_windows)
    ]
    return any(worked)


def expire_leases(tx: Transaction) -> bool:
    """A started delivery that was not settled in time has failed; an unstarted one is released."""
    memory = tx.memory
    overdue = [
        (memory.place_of(number), number, lease)
        for lease in memory.overdue(tx.now_ms, STEP_MESSAGES)
        for number in memory.members_of(lease)
    ]
    # Messages that expire together come back in the order they had.
    add_all(tx, [_expire(tx, number, lease) for _, number, lease in sorted(overdue, key=itemgetter(0, 1))])
    return bool(overdue)


def _expire(tx: Transaction, number: int, lease: GroupLease) -> Moved:
    if lease.terms.started:
        return fail(tx, number, reason=FailureReason.TIMEOUT_EXCEEDED, error=_expiry_error(lease))
    return release(tx, number)


def _expiry_error(lease: GroupLease) -> str:
    terms = lease.terms
    return f"not settled within its lease of {show_ms(terms.lease_ms)} (consumer {terms.consumer!r})"


def wake_due(tx: Transaction, queue: Queue) -> bool:
    """Messages whose wait is over become ready, in the order of their due times."""
    count = 0
    while count < STEP_MESSAGES and (number := tx.memory.next_due(queue, tx.now_ms)) is not None:
        tx.add(make_due(tx, number, tx.memory.own[number]))
        count += 1
    return count > 0


def end_lives(tx: Transaction, queue: Queue) -> bool:
    """Messages past their time to live go, unless a claim holds them."""
    count = 0
    while count < STEP_MESSAGES and (number := tx.memory.next_ended(queue, tx.now_ms)) is not None:
        tx.add(expire(tx, number, tx.memory.state_of(number), queue).fact)
        count += 1
    return count > 0


def end_windows(tx: Transaction, queue: Queue) -> bool:
    """Forget dedup keys whose windows are over. Only the timer does this: an enqueue ignores a window that is
    over.
    """
    if not 0 < queue.next_window_ms <= tx.now_ms:
        return False
    queue_id = queue.record.queue_id
    windows = tx.windows(queue_id, STEP_MESSAGES + 1)
    ended = [window for window in windows if window[0] <= tx.now_ms][:STEP_MESSAGES]
    later = windows[len(ended) :]
    rows = tx.dedup_rows(queue_id, [key for _, key in ended])
    tx.add(WindowsEnded(queue_id, ended, later[0][0] if later else 0))
    over = [key for until_ms, key in ended if key in rows and rows[key].until_ms == until_ms]
    if over:
        tx.add(KeysForgotten(queue_id, over))
    return bool(ended)
