"""Throttle keys are closed and opened, and probes of closed keys are delivered and end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fairlead.model.throttle import Closure
from fairlead.records.facts import (
    Claimed,
    LeaseCompleted,
    MessageGone,
    MessageMoved,
    MessagesMoved,
    QueueDeleted,
    StateFact,
)

if TYPE_CHECKING:
    from fairlead.engine.memory import Memory


def closed_changed(memory: Memory, records: Mapping[bytes, Closure | None]) -> None:
    for raw_key, closure in records.items():
        throttle_key = raw_key.decode()
        memory.buckets.close(throttle_key, None if closure is None else closure.until_ms)
        for queue in memory.by_id.values():
            # The next claim tries the waiting lanes, whatever the time is.
            queue.schedule.bucket_changed(throttle_key, 0)


def restart_probes(memory: Memory) -> None:
    """The probes in flight are unknown: each closed key begins with one again."""
    for throttle_key, closed in memory.buckets.closed.items():
        memory.buckets.close(throttle_key, closed.until_ms)
    _look_again(memory, memory.buckets.closed)


def follow_probes(memory: Memory, fact: StateFact, now_ms: int) -> bool:
    """While a throttle key is closed: record the probes that a fact delivers or ends. Returns whether others
    may be delivered.

    Not a reducer, because the store does not record which deliveries are probes.
    """
    match fact:
        case Claimed():
            _sent(memory, fact, now_ms)
        case LeaseCompleted():
            return _ended(memory, fact.numbers, is_answer=True)
        case MessagesMoved() if fact.lease is not None:
            return _ended(memory, fact.numbers, is_answer=True)
        case MessageMoved() if fact.claim_id:
            is_answer = fact.why == "completed" or fact.ends_failed_try
            return _ended(memory, [fact.number], is_answer=is_answer and not fact.cause)
        case MessageGone() if fact.claim_id:
            return _ended(memory, [fact.number], is_answer=fact.why == "completed" and not fact.cause)
        case QueueDeleted():
            gone = {number for closed in memory.buckets.closed.values() for number in closed.probes}
            return _ended(memory, sorted(gone - memory.held.keys()), is_answer=False)
    return False


def _sent(memory: Memory, fact: Claimed, now_ms: int) -> None:
    probing = {key: closed for key, closed in memory.buckets.closed.items() if closed.until_ms <= now_ms}
    queue = memory.by_id[fact.lease.terms.queue_id]
    for number in fact.numbers if probing and not queue.is_dead_letter_queue else ():
        for throttle_key in memory.lane_and_weight(number)[0][1:]:
            if throttle_key in probing:
                probing[throttle_key].probes.add(number)


def _ended(memory: Memory, numbers: Sequence[int], *, is_answer: bool) -> bool:
    closed = memory.buckets.closed
    freed = [key for key, one in closed.items() if one.ended(numbers, is_answer=is_answer)]
    _look_again(memory, freed)
    return bool(freed)


def _look_again(memory: Memory, throttle_keys: Iterable[str]) -> None:
    for throttle_key in throttle_keys:
        for queue in memory.by_id.values():
            queue.schedule.look_again(throttle_key)
