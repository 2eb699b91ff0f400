"""How messages change state, for verbs and timers alike: rules decide, and a decision becomes a fact.

`release`, `fail` and `fail_together` change nothing; `add_all` adds the facts of several of the first two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, takewhile
from operator import itemgetter
from typing import Literal, NamedTuple

import msgspec

from fairlead.decide.closing import bounds_of
from fairlead.decide.failure_breaker import BreakerState, put_off
from fairlead.decide.fronts import has_room_to_pass, waits_before
from fairlead.decide.release import after_release
from fairlead.decide.retry import DeadLetter, Failure, RetryAt, after_failure
from fairlead.engine.due_times import end_of_retention, find_overdue, next_event_ms
from fairlead.engine.memory import Memory
from fairlead.engine.queue import DEAD_LANE, Queue
from fairlead.engine.reduce.streams import update_fronts
from fairlead.engine.room import is_low, step_of
from fairlead.engine.transaction import Transaction
from fairlead.model.durations import show_ms
from fairlead.model.failure import FailureReason, FailureRecord, Progress, short_error
from fairlead.model.handles import CheckedFail
from fairlead.model.lane import lane_key, lane_throttle_keys, pack_lane
from fairlead.model.message import HELD, with_failure
from fairlead.model.queue import QueueConfig
from fairlead.records.facts import (
    Cause,
    DoneRead,
    DueRead,
    End,
    KeysForgotten,
    LeaseCompleted,
    LivesEnded,
    MessageGone,
    MessageMoved,
    MessagesMoved,
    Move,
    PassAllowed,
    WindowsEnded,
)
from fairlead.records.ids import BLOCK_SHIFT
from fairlead.records.lease import GroupLease
from fairlead.records.state import OwnState

#: Messages that one step of the timer moves, and chunks that it visits. A move writes several rows, so fifty
#: of them hold the lock for a few milliseconds.
STEP_MESSAGES = 50
STEP_CHUNKS = 10
#: Messages without streams that move together, in a fraction of that time.
STEP_PLAIN_MESSAGES = 200
#: Keys without messages that a claim may pass over; one step forgets as many.
MAX_EMPTY_KEYS = 1000


#: Setting a flag of an enumeration takes longer than setting a number.
_FAILED = int(Progress.FAILED)

#: The place, the number and the lease of a message.
_Overdue = tuple[int, int, GroupLease]


class Moved(NamedTuple):
    """The outcome of a move, in the words of `SettleResult`, and the fact that carries it out."""

    outcome: str
    rule: str
    fact: MessageMoved | MessageGone
    due_ms: int = 0
    asks_to_pass: bool = False


def add_all(tx: Transaction, moves: Iterable[Moved]) -> None:
    """Add the facts. Messages that return to their places come first: their keys join the ring before keys
    whose messages take new places.
    """
    for moved in sorted(moves, key=lambda moved: moved.fact.why != "released"):
        tx.add(moved.fact)


def release(tx: Transaction, number: int, *, keep_order: bool = True, is_delivery: bool = True) -> Moved:
    """Return a message to its place, with one delivery more; or make it dead if it was delivered too often.

    `is_delivery=False`: it was only a member of a numbered claim, which no worker started; it does not count
    towards `max_deliveries`. No release counts as an attempt. In a stream, without `keep_order`, the message
    asks to pass earlier messages that wait: `let_pass` decides that once all moves are known.
    """
    state = tx.memory.state_of(number)
    queue = tx.memory.by_id[state.queue_id]
    deliveries = state.deliveries + is_delivery
    decision = after_release(
        queue.record.config,
        deliveries,
        in_stream=bool(tx.memory.stream_of(number, state.queue_id)),
        keep_order=keep_order,
        is_dead=queue.is_dead_letter_queue,
    )
    if isinstance(decision, DeadLetter):
        record = _record(tx, number, state.attempts, FailureReason.UNKNOWN, decision.why, decision.rule)
        return Moved("dead", decision.rule, _bury(tx, number, _failed(state, record), queue))
    kept = msgspec.structs.replace(state, deliveries=deliveries)
    if is_over(tx, number):
        return expire(tx, number, kept, queue)
    # Without `place`: a released message keeps its place.
    fact = _move(tx, number, "released", kept)
    return Moved("released", decision.rule, fact, asks_to_pass=decision.asks_to_pass)


def let_pass(tx: Transaction, number: int) -> str:
    """After a release, let the message pass earlier messages of its stream that wait. Returns the rule that
    applied.
    """
    memory = tx.memory
    queue_id = memory.state_of(number).queue_id
    name = memory.stream_of(number, queue_id)
    stream = memory.by_id[queue_id].streams.find_up_to(name, number)
    assert stream is not None, "a released message is in its stream"
    if not waits_before(stream, number, memory.seq_of, memory.waits):
        return "release.order_kept"
    if not has_room_to_pass(stream):
        return "release.let_by_limit"
    tx.add(PassAllowed(queue_id, name, [number], 0))
    return "release.let_by"


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
    """Another delivery, now or later, at the tail of its lane; or the dead letters. A dead letter that fails
    is released.
    """
    state = tx.memory.state_of(number)
    queue = tx.memory.by_id[state.queue_id]
    if queue.is_dead_letter_queue:
        return release(tx, number)._replace(rule="dead_letter_queue")
    attempts = state.attempts + 1
    in_stream = bool(tx.memory.stream_of(number, state.queue_id))
    hook = tx.hooks.failures.get((number, tx.memory.held[number].terms.claim_id))
    failure = Failure(attempts, reason, in_stream, retry_in_ms, dead, hook)
    decision = after_failure(failure, queue.record.config, now_ms=tx.now_ms, jitter=tx.random.random())
    decision = _behind_breaker(tx, queue, reason, decision)
    if isinstance(decision, DeadLetter):
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
        fact = _move(tx, number, "delayed", failed, place=0, due_ms=decision.due_ms)
    else:
        fact = _move(tx, number, "retried", failed, place=_tail(tx, number))
    return Moved("retry", decision.rule, fact, decision.due_ms)


def return_closed(tx: Transaction, number: int, said: CheckedFail) -> Moved:
    """Return the message to the tail of its lane, because its throttle key was closed: no attempt and no
    delivery is counted. A message that returned too often has failed instead, and so has every dead
    letter.
    """
    state = tx.memory.state_of(number)
    queue = tx.memory.by_id[state.queue_id]
    bounds = bounds_of(tx.memory.config, said.close)
    if queue.is_dead_letter_queue or state.returns >= bounds.max_returns:
        return fail(tx, number, reason=said.reason, error=said.error, progress=said.progress)
    returned = msgspec.structs.replace(
        state, returns=state.returns + 1, progress=state.progress | said.progress
    )
    if is_over(tx, number):
        return expire(tx, number, returned, queue)
    # Behind the others: a message that its provider always refuses must not be every probe.
    fact = _move(tx, number, "returned", returned, place=_tail(tx, number))
    return Moved("returned", "closed", fact)


class FailedTogether(NamedTuple):
    """Messages that failed and get another try, and the decision about each."""

    fact: MessagesMoved
    decisions: Sequence[RetryAt]


def fail_together(
    memory: Memory,
    lease: GroupLease,
    numbers: Sequence[int],
    said: Sequence[CheckedFail],
    *,
    now_ms: int,
    next_place: Callable[[], int],
) -> FailedTogether | None:
    """`fail` for different members of one lease, if only the queue's policy matters. None: decide about each
    separately.
    """
    queue = memory.by_id[lease.terms.queue_id]
    config, own = queue.record.config, memory.own
    if queue.is_dead_letter_queue or config.failure_breaker.failures or queue.has_jitter:
        return None
    for block in {number >> BLOCK_SHIFT for number in numbers}:
        columns = memory.chunk_of(block << BLOCK_SHIFT).columns
        if columns.expires is not None or (columns.streams is not None and queue.is_ordered):
            return None
    #: Messages that fail for the first time and in the same way differ only in their places.
    alike: dict[int, tuple[RetryAt, OwnState]] = {}
    outcomes: list[tuple[RetryAt, OwnState]] = []
    for number, one in zip(numbers, said, strict=True):
        before = own.get(number)
        outcome = alike.get(id(one)) if before is None else None
        if outcome is None:
            known = OwnState(queue.record.queue_id) if before is None else before
            outcome = _outcome(config, lease, known, one, now_ms)
            if outcome is None:
                return None
            if before is None:
                alike[id(one)] = outcome
        outcomes.append(outcome)
    decisions = [decision for decision, _ in outcomes]
    is_delayed = decisions[0].due_ms != 0
    if len(outcomes) > 1 and {decision.due_ms != 0 for decision in decisions} != {is_delayed}:
        return None
    states = [state for _, state in outcomes]
    if not is_delayed:
        states = [msgspec.structs.replace(state, place=next_place()) for state in states]
    why: Literal["retried", "delayed"] = "delayed" if is_delayed else "retried"
    return FailedTogether(MessagesMoved(queue.record.queue_id, numbers, states, why, lease), decisions)


def _outcome(
    config: QueueConfig, lease: GroupLease, before: OwnState, said: CheckedFail, now_ms: int
) -> tuple[RetryAt, OwnState] | None:
    """The decision about a member without a stream when no chance is involved, and its state without a place.
    None: it is dead.
    """
    attempts, reason = before.attempts + 1, said.reason
    failure = Failure(attempts, reason, False, said.retry_in_ms, said.dead)
    decision = after_failure(failure, config, now_ms=now_ms, jitter=0)
    if isinstance(decision, DeadLetter):
        return None
    due_ms, consumer = decision.due_ms, lease.terms.consumer
    record = FailureRecord(now_ms, attempts, int(reason), said.error, consumer, decision.rule, due_ms)
    return decision, _failed(before, record, said.progress, claim_id=0, place=0, due_ms=due_ms)


def _behind_breaker(
    tx: Transaction, queue: Queue, reason: FailureReason, decision: RetryAt | DeadLetter
) -> RetryAt | DeadLetter:
    """Count the failure for the queue's failure breaker, even if the message dies."""
    settings = queue.record.config.failure_breaker
    if not settings.failures:
        return decision
    breaker = tx.breakers.setdefault((queue.record.queue_id, reason), BreakerState())
    return put_off(decision, breaker.after_failure(settings, tx.now_ms), tx.now_ms)


def make_due(tx: Transaction, number: int, state: OwnState) -> MessageMoved:
    """End a wait, because it is over or by an operator: ready at the tail of its lane, or at its place in its
    stream.
    """
    return _move(tx, number, "due", state, place=_tail(tx, number))


def _tail(tx: Transaction, number: int) -> int:
    """The tail of the lane; a message of a stream keeps its place, which is its order there."""
    memory = tx.memory
    is_in_stream = memory.chunk_of(number).columns.streams is not None
    if is_in_stream and memory.stream_of(number, memory.state_of(number).queue_id):
        return memory.seq_of(number)
    return tx.next_place()


def complete(tx: Transaction, number: int, queue: Queue, progress: int = 0) -> MessageMoved | MessageGone:
    """Complete a message: it is gone, or retained as long as the queue retains completed messages."""
    config = queue.record.config
    if not config.retain_completed_ms:
        return gone(tx, number, "completed")
    state = tx.memory.state_of(number)
    return _move(
        tx,
        number,
        "completed",
        state,
        place=0,
        done_ms=tx.now_ms,
        deliveries=state.deliveries + (number in tx.memory.held),
        progress=state.progress | progress,
        keeps_key=config.dedup_kept,
    )


def complete_members(
    tx: Transaction, lease: GroupLease, numbers: Sequence[int], progress: Mapping[int, int]
) -> None:
    """Complete members of a lease, each with its reported progress."""
    queue = tx.memory.by_id[lease.terms.queue_id]
    if not queue.record.config.retain_completed_ms:
        tx.add(LeaseCompleted(lease, numbers))
        return
    for number in numbers:
        tx.add(complete(tx, number, queue, progress.get(number, 0)))


def hold(tx: Transaction, number: int, state: OwnState) -> MessageMoved:
    """Make the message wait without an end, until an operator acts."""
    deliveries = state.deliveries + (number in tx.memory.held)
    return _move(tx, number, "held", state, place=0, due_ms=HELD, deliveries=deliveries)


def bury(tx: Transaction, number: int, error: str, reason: FailureReason) -> MessageMoved:
    """Move the message to the dead letters for an operator. It counts no attempt."""
    return _bury(
        tx, number, with_record(tx, tx.memory.state_of(number), error, reason), _queue_of(tx, number)
    )


def with_record(tx: Transaction, state: OwnState, error: str, reason: FailureReason) -> OwnState:
    """Add an operator's record to the failures of a message. It counts no attempt."""
    record = FailureRecord(tx.now_ms, state.attempts, int(reason), error, "", "operator")
    recorded = with_failure(state, record)
    assert isinstance(recorded, OwnState)
    return recorded


def quarantine(tx: Transaction, number: int, queue: Queue, error: str, reason: FailureReason) -> OwnState:
    """Make a new message a dead letter of `queue`."""
    record = FailureRecord(tx.now_ms, 0, int(reason), error, "", "quarantine")
    recorded = with_failure(OwnState(queue.record.queue_id), record)
    assert isinstance(recorded, OwnState)
    return _bury(tx, number, recorded, queue).state


def redrive(tx: Transaction, number: int, state: OwnState) -> MessageMoved:
    """Begin a new life of a dead letter at the tail of its lane and of its stream."""
    memory, place = tx.memory, tx.next_place()
    queue, stream = memory.by_id[state.source_queue_id], memory.stream_of(number, state.source_queue_id)
    chunk = memory.chunk_of(number)
    plain = pack_lane(chunk.lane_of(number)[0], chunk.lane_of(number)[1:])
    lane, weight = tx.hooks.lanes.get(number, (plain, chunk.weight_of(number)))
    if stream:
        opener = tx.reopened.setdefault((queue.record.queue_id, stream), lane_key(lane))
        key = queue.streams.key_of(stream)
        lane = pack_lane(opener if key is None else key, lane_throttle_keys(lane))
    alive = OwnState(
        state.source_queue_id,
        lane=b"" if lane == plain else lane,
        weight=0 if weight == chunk.weight_of(number) else weight,
        seq=place if stream else 0,
        progress=state.progress,
        carry=state.carry,
        failures=state.failures,
        failures_cut=state.failures_cut,
        redrives=state.redrives + 1,
    )
    return _move(tx, number, "redriven", alive, place=place)


def _queue_of(tx: Transaction, number: int) -> Queue:
    return tx.memory.by_id[tx.memory.state_of(number).queue_id]


def is_over(tx: Transaction, number: int) -> bool:
    """Whether its time to live has ended."""
    return 0 < tx.memory.end_of_life(number) <= tx.now_ms


def expire(tx: Transaction, number: int, state: OwnState, queue: Queue) -> Moved:
    """End its life after its time to live: gone, or dead if the queue says so."""
    if not queue.record.config.expired_to_dead:
        return Moved("expired", "ttl", gone(tx, number, "expired"))
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
    if is_low(tx):
        error = short_error(error)
    return FailureRecord(tx.now_ms, attempts, int(reason), error, consumer, rule, due_ms)


def _failed(state: OwnState, record: FailureRecord, progress: int = 0, **changes: int) -> OwnState:
    changed = with_failure(
        state,
        record,
        attempts=record.attempt,
        deliveries=state.deliveries + 1,
        progress=state.progress | progress | _FAILED,
        **changes,
    )
    assert isinstance(changed, OwnState)
    return changed


def _bury(tx: Transaction, number: int, state: OwnState, queue: Queue) -> MessageMoved:
    return _move(
        tx,
        number,
        "buried",
        state,
        queue_id=queue.record.dlq_id,
        place=tx.next_place(),
        deliveries=0,
        source_queue_id=queue.record.queue_id,
        dead_since_ms=tx.now_ms,
        seq=0,
    )


def _move(
    tx: Transaction, number: int, why: Move, state: OwnState, *, due_ms: int = 0, **changes: int
) -> MessageMoved:
    moved = msgspec.structs.replace(state, claim_id=0, due_ms=due_ms, **changes)
    return MessageMoved(number, moved, why, claim_of(tx, number))


def gone(tx: Transaction, number: int, why: End, cause: Cause = "") -> MessageGone:
    return MessageGone(number, why, tx.memory.state_of(number).queue_id, claim_of(tx, number), cause)


def claim_of(tx: Transaction, number: int) -> int:
    lease = tx.memory.held.get(number)
    return 0 if lease is None else lease.terms.claim_id


# Due work, for the timer and for claims


def may_be_due(memory: Memory, now_ms: int) -> bool:
    """Whether `run_due`, or a step of consumers and staged writes, may find work."""
    event_ms = next_event_ms(memory)
    if event_ms is not None and event_ms <= now_ms:
        return True
    return any(map(_has_empty_keys, memory.by_id.values()))


def run_due(tx: Transaction) -> bool:
    """One bounded step of due work; False if there was none."""
    if expire_leases(tx):
        return True
    return any(_run_due_of(tx, queue) for queue in tx.memory.by_id.values())


def _run_due_of(tx: Transaction, queue: Queue) -> bool:
    if queue.may_have_due(tx.now_ms):
        for step in (wake_due, end_lives, end_retention, end_keeping):
            if step(tx, queue):
                return True
    return (queue.next_window_ms != 0 and end_windows(tx, queue)) or forget_keys(tx, queue)


def expire_leases(tx: Transaction) -> bool:
    """End expired leases: a started delivery has failed, an unstarted one is released. Those for which a hook
    must be called first are left to the timer.
    """
    memory = tx.memory
    if not memory.expiries or memory.expiries[0][0] > tx.now_ms:
        return False
    most = step_of(tx, STEP_MESSAGES)
    leases = find_overdue(memory, tx.now_ms, most)
    if not leases:
        # Most leases are settled long before they would expire.
        return False
    tx.bring_chunks([number for lease in leases for number in memory.members_of(lease)])
    overdue = [
        (memory.place_of(number), number, lease) for lease in leases for number in _may_expire(tx, lease)
    ]
    # Messages that expire together return in the order they had.
    overdue.sort(key=itemgetter(0, 1))
    chosen = overdue[:most] + _rest_of_runs(memory, overdue[:most], overdue[most:])
    add_all(tx, [_expire(tx, number, lease) for _, number, lease in chosen])
    update_fronts(memory)
    return bool(overdue)


def _rest_of_runs(memory: Memory, chosen: Iterable[_Overdue], others: Iterable[_Overdue]) -> list[_Overdue]:
    """The others that are in a run with a chosen one: only the first message of a run has failed."""

    def run_of(one: _Overdue) -> tuple[int, str]:
        return one[2].terms.claim_id, memory.stream_of(one[1], one[2].terms.queue_id)

    runs = {run for run in map(run_of, chosen) if run[1]} if others else set()
    return [one for one in others if run_of(one) in runs] if runs else []


def _may_expire(tx: Transaction, lease: GroupLease) -> list[int]:
    queue = tx.memory.by_id[lease.terms.queue_id]
    if not lease.terms.started or not queue.record.config.on_failure:
        return tx.memory.members_of(lease)
    asked = [run for run in runs_of(tx.memory, lease) if (run[0], lease.terms.claim_id) in tx.hooks.failures]
    return [number for run in asked for number in run]


def runs_of(memory: Memory, lease: GroupLease) -> list[list[int]]:
    """The members of a lease that fail together: only the first of a run of a stream has failed, and the
    others are released with it.
    """
    runs: dict[str | int, list[int]] = {}
    for number in sorted(memory.members_of(lease), key=lambda number: not memory.is_first_of_run(number)):
        runs.setdefault(memory.stream_of(number, lease.terms.queue_id) or number, []).append(number)
    return list(runs.values())


def _expire(tx: Transaction, number: int, lease: GroupLease) -> Moved:
    if lease.terms.started and tx.memory.is_first_of_run(number):
        moved = fail(tx, number, reason=FailureReason.TIMEOUT_EXCEEDED, error=expiry_error(lease))
    else:
        moved = release(tx, number)
    return moved._replace(fact=msgspec.structs.replace(moved.fact, cause="lease_expiry"))


def expiry_error(lease: GroupLease) -> str:
    terms = lease.terms
    return f"not settled within its lease of {show_ms(terms.lease_ms)} (consumer {terms.consumer!r})"


def wake_due(tx: Transaction, queue: Queue) -> bool:
    """Make messages ready whose wait is over, in the order of their due times."""
    if not 0 < queue.next_due_ms <= tx.now_ms:
        return False
    most = step_of(tx, STEP_MESSAGES if queue.streams.has_any else STEP_PLAIN_MESSAGES)
    waiting = tx.due(queue, most + 1)
    over = [number for due_ms, number in waiting[:most] if due_ms <= tx.now_ms]
    later = waiting[len(over) :]
    if over:
        states = [
            msgspec.structs.replace(state, claim_id=0, due_ms=0, place=_tail(tx, number))
            for number, state in zip(over, tx.states_of(over), strict=True)
        ]
        tx.add(MessagesMoved(queue.record.queue_id, over, states, "due"))
    tx.memory.apply(DueRead(queue.record.queue_id, later[0][0] if later else 0))
    update_fronts(tx.memory)
    return bool(over)


def end_lives(tx: Transaction, queue: Queue) -> bool:
    """End messages past their time to live, unless a claim holds them: those are checked when their lease
    ends.
    """
    if not 0 < queue.next_life_ms <= tx.now_ms:
        return False
    rows = tx.lives(queue, STEP_CHUNKS + 1)
    over = [row for row in rows[:STEP_CHUNKS] if row[0] <= tx.now_ms]
    later = rows[len(over) :]
    tx.bring_chunks([first for _, first in over])
    ended: list[int] = []
    for end_ms, first in over:
        if len(ended) <= STEP_MESSAGES:
            ended += _ended(tx, end_ms, first, STEP_MESSAGES + 1 - len(ended))
    for number in ended[:STEP_MESSAGES]:
        tx.add(expire(tx, number, tx.memory.state_of(number), queue).fact)
    if len(ended) <= STEP_MESSAGES:
        tx.add(LivesEnded(queue.record.queue_id, over, later[0][0] if later else 0))
    update_fronts(tx.memory)
    return bool(over)


def _ended(tx: Transaction, end_ms: int, first: int, limit: int) -> list[int]:
    """The first messages of a chunk whose lives end at that time and that no claim holds."""
    memory, chunk = tx.memory, tx.memory.chunk_of(first)
    held = memory.held
    left = iter([number for number in chunk.ending(end_ms) if number not in held])
    found: list[int] = []
    while len(found) < limit and (some := list(islice(left, limit))):
        tx.bring(some)
        found += [number for number in some if memory.end_of_life(number) == end_ms]
    return found[:limit]


def end_retention(tx: Transaction, queue: Queue) -> bool:
    """Delete dead letters that are older than their queue keeps them, the oldest first. One that a claim
    holds waits for its release.
    """
    end_ms = end_of_retention(tx.memory, queue)
    while end_ms == 0:
        # The first dead letter is on disk.
        tx.read_on(queue, {DEAD_LANE: 1})
        end_ms = end_of_retention(tx.memory, queue)
    if end_ms is None or end_ms > tx.now_ms:
        return False
    retention_ms = tx.memory.by_id[queue.home_id].record.config.dead_retention_ms
    numbers = tx.lane_after(queue, DEAD_LANE, 0, STEP_MESSAGES)
    states = zip(numbers, tx.states_of(numbers), strict=True)
    over = takewhile(lambda one: one[1].dead_since_ms + retention_ms <= tx.now_ms, states)
    for number, _ in list(over):
        tx.add(gone(tx, number, "expired", "retention"))
    return True


def end_keeping(tx: Transaction, queue: Queue) -> bool:
    """Delete completed messages that were retained long enough; all of them, if the queue retains none any
    more.
    """
    if not queue.first_done_ms or queue.end_of_keeping_ms > tx.now_ms:
        return False
    kept_ms = queue.record.config.retain_completed_ms
    done = tx.done(queue, STEP_MESSAGES + 1)
    over = [one for one in done[:STEP_MESSAGES] if not kept_ms or one[0] + kept_ms <= tx.now_ms]
    later = done[len(over) :]
    for _, number in over:
        tx.add(gone(tx, number, "expired", "kept_long_enough"))
    tx.memory.apply(DoneRead(queue.record.queue_id, later[0][0] if later else 0))
    return bool(over)


def end_windows(tx: Transaction, queue: Queue) -> bool:
    """Forget dedup keys whose windows have ended. Only the timer does this: an enqueue ignores an ended
    window.
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


def forget_keys(tx: Transaction, queue: Queue) -> bool:
    """Remove keys from the ring whose messages left other than by claims, before a claim has to pass over
    many of them. False if there are few, or if some have messages. Turns are hints, so there is no fact.
    """
    return _has_empty_keys(queue) and queue.schedule.drop_empty_keys(MAX_EMPTY_KEYS)


def _has_empty_keys(queue: Queue) -> bool:
    return not queue.counts.ready and queue.schedule.active_keys > MAX_EMPTY_KEYS
