"""The end of a numbered claim: its record changes first, and its messages follow in bounded steps.

Closing settles each member by the last outcome recorded for it; releasing returns each to its place. After a
crash between two steps, the record and the members are as they were after the last step, and the timer
continues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from fairlead.decide.claim_outcomes import ClaimOutcomes
from fairlead.decide.numbered_claims import lose_queue
from fairlead.engine import moves
from fairlead.engine.room import step_of
from fairlead.engine.transaction import Transaction
from fairlead.model.consumer import ConsumerRecord, Phase, Recorded
from fairlead.model.durations import show_ms
from fairlead.model.failure import FailureReason
from fairlead.model.names import Scoped
from fairlead.records.consumer import ChosenParts
from fairlead.records.facts import RecordsChanged
from fairlead.records.ids import id_of
from fairlead.records.lease import GroupLease
from fairlead.store.changes import Changes
from fairlead.store.kv.port import Table
from fairlead.store.rows import consumer_key, outcomes_key, scan_records

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

#: Members that one step moves individually, with or without an outcome. Members that are simply completed
#: cost little, and are completed with their lease.
OUTCOMES_STEP = 50
RELEASE_STEP = 100
#: Rows of outcomes that one step reads or deletes.
_ROWS_STEP = 1000


class ScanOutcomes(Protocol):
    """Reads records of recorded calls, in the order of their keys."""

    def __call__(self, start: bytes, end: bytes, *, limit: int) -> list[tuple[bytes, Any]]: ...


def save(tx: Transaction, record: ConsumerRecord, **fields: Any) -> ConsumerRecord:
    after = msgspec.structs.replace(record, **fields)
    tx.add(RecordsChanged(Table.CONSUMERS, {consumer_key(after.queue, after.name): after}))
    return after


def leases_of(tx: Transaction, record: ConsumerRecord) -> list[GroupLease]:
    """The leases of the consumer's claim in order: one for each piece that it was filled with."""
    leases = tx.memory.by_consumer.get(record.name, ())
    return sorted([lease for lease in leases if lease.terms.claim_id == record.claim_id])


def raw_id_of(tx: Transaction, number: int) -> bytes:
    return id_of(tx.memory.chunk_of(number).prefix, number)


def outcomes_of(tx: Transaction, record: ConsumerRecord) -> ClaimOutcomes:
    """The outcomes recorded for the claim without a part, or under a chosen part."""
    kept, claim_id = tx.memory.consumers.outcomes, record.claim_id
    if claim_id not in kept:
        kept[claim_id] = _read_outcomes(partial(tx.scan_records, Table.OUTCOMES), claim_id)
    return kept[claim_id]


def _read_outcomes(scan: ScanOutcomes, claim_id: int) -> ClaimOutcomes:
    found, chosen, start = ClaimOutcomes(), {""}, outcomes_key(claim_id, 0)
    while rows := scan(start, outcomes_key(claim_id + 1, 0), limit=_ROWS_STEP):
        for _, said in rows:
            if isinstance(said, ChosenParts):
                chosen.update(said.parts)
            elif said.part in chosen:
                found.add(said.recorded)
        start = rows[-1][0] + b"\0"
    return found


def load_outcomes(engine: Engine, consumer: Scoped) -> None:
    """Read the recorded outcomes without the lock before a claim is closed, because there may be many.
    Recorded calls never change; if more were added meanwhile, the close reads all of them again.
    """
    with engine.transaction() as tx:
        before = _recorded(tx, consumer)
    if before is None:
        return
    found = _read_outcomes(
        partial(scan_records, engine.store, Changes(), Table.OUTCOMES, reverse=False), before[0]
    )
    with engine.transaction() as tx:
        if _recorded(tx, consumer) == before:
            tx.memory.consumers.outcomes[before[0]] = found


def _recorded(tx: Transaction, consumer: Scoped) -> tuple[int, int, object] | None:
    """The claim of a consumer, its number of recorded calls, and the chosen parts; None if memory has the
    outcomes already, or there is no claim.
    """
    record: ConsumerRecord | None = tx.memory.records[Table.CONSUMERS].get(
        consumer_key(consumer.queue, consumer.name)
    )
    if record is None or not record.recorded or record.claim_id in tx.memory.consumers.outcomes:
        return None
    return record.claim_id, record.recorded, tx.record(Table.OUTCOMES, outcomes_key(record.claim_id, 0))


# The record flips


def flip(tx: Transaction, record: ConsumerRecord, phase: Phase, **fields: Any) -> ConsumerRecord:
    return save(tx, record, phase=phase, last_closed=record.number, **fields)


def let_go(tx: Transaction, record: ConsumerRecord, why: str, *, dropping: bool = False) -> ConsumerRecord:
    return flip(tx, record, "releasing", lost=record.number, lost_why=why, dropping=dropping)


def lose_queues(tx: Transaction, queue_ids: Collection[int]) -> None:
    """These queues are about to be deleted: the open claims of their consumers are lost."""
    consumers: dict[bytes, ConsumerRecord] = tx.memory.records[Table.CONSUMERS]
    losing = {
        key: record
        for key, record in consumers.items()
        if record.queue_id in queue_ids and record.phase != "idle"
    }
    outcomes = [
        outcomes_key(record.claim_id, call)
        for record in losing.values()
        for call in range(record.recorded + 1)
    ]
    if losing:
        lost = {key: None if record.dropping else lose_queue(record) for key, record in losing.items()}
        tx.add(RecordsChanged(Table.CONSUMERS, lost))
    if outcomes:
        tx.add(RecordsChanged(Table.OUTCOMES, dict.fromkeys(outcomes)))


# Its messages follow


def take_step(tx: Transaction, record: ConsumerRecord) -> None:
    """Settle the next members of a claim that has ended, from one lease; after the last one, forget the
    claim.
    """
    leases = leases_of(tx, record)
    if leases:
        end_members = _close_members if record.phase == "closing" else _release_members
        settled = end_members(tx, record, leases[0])
        record = msgspec.structs.replace(record, settled=settled)
        if leases[0].live or len(leases) > 1:
            save(tx, record)
            return
    _forget_outcomes(tx, record)


def _close_members(tx: Transaction, record: ConsumerRecord, lease: GroupLease) -> dict[str, int]:
    known, gives_back = outcomes_of(tx, record), record.default_outcome == "release"
    #: With the reported progress.
    done: dict[int, int] = {}
    #: To their places, each with whether it was started: being in a claim alone is no delivery.
    back: list[tuple[int, bool]] = []
    said: list[tuple[int, Recorded]] = []
    members = tx.memory.members_of(lease)
    tx.bring_chunks(members)
    if not known.outcomes and not gives_back:
        # There are no outcomes: all members are completed, and none is handled individually.
        done, members = dict.fromkeys(members, 0), []
    for number, raw_id, outcome in _members_of_step(tx, record, members):
        if asks_hook(tx, record, outcome) and (number, record.claim_id) not in tx.hooks.failures:
            break
        if outcome is None and gives_back:
            back.append((number, raw_id in known.begun))
        elif outcome is None or outcome.kind == "complete":
            done[number] = 0 if outcome is None else outcome.progress
        else:
            said.append((number, outcome))
    moved = [moves.release(tx, number, is_delivery=begun) for number, begun in back]
    moved += [_move(tx, number, outcome) for number, outcome in said]
    if done:
        moves.complete_members(tx, lease, list(done), done)
    moves.add_all(tx, moved)
    # Last, because whether a release lets its message pass depends on the messages before it in its stream.
    for one in moved:
        if one.asks_to_pass:
            moves.let_pass(tx, one.fact.number)
    settled = Counter(record.settled)
    if done:
        settled["completed"] += len(done)
    settled.update([one.outcome for one in moved])
    return dict(settled)


def _members_of_step(
    tx: Transaction, record: ConsumerRecord, members: Iterable[int]
) -> Iterator[tuple[int, bytes, Recorded | None]]:
    """The first of these members, as many as one step moves, with their recorded outcomes."""
    known, gives_back = outcomes_of(tx, record).outcomes, record.default_outcome == "release"
    most_said, most_back = step_of(tx, OUTCOMES_STEP), step_of(tx, RELEASE_STEP)
    said = back = 0
    for number in members:
        raw_id = raw_id_of(tx, number)
        outcome = known.get(raw_id)
        yield number, raw_id, outcome
        said += outcome is not None and outcome.kind != "complete"
        back += outcome is None and gives_back
        if said >= most_said or back >= most_back:
            return


def asks_hook(tx: Transaction, record: ConsumerRecord, outcome: Recorded | None) -> bool:
    """Whether the step calls `on_failure` for an outcome first. An instruction takes precedence over the
    hook.
    """
    if outcome is None or outcome.kind != "fail" or outcome.dead or outcome.retry_in_ms is not None:
        return False
    return bool(tx.memory.by_id[record.queue_id].record.config.on_failure)


def failures_to_ask(tx: Transaction, record: ConsumerRecord) -> Iterator[tuple[int, Recorded]]:
    """Members for which the next step needs an answer of the hook, with their outcomes; not those that it
    does not reach, because the hook would be called for them again.
    """
    leases = leases_of(tx, record) if record.phase == "closing" else []
    if not leases or not outcomes_of(tx, record).outcomes:
        return
    for number, _, outcome in _members_of_step(tx, record, tx.memory.members_of(leases[0])):
        if outcome is not None and asks_hook(tx, record, outcome):
            yield number, outcome


def _move(tx: Transaction, number: int, outcome: Recorded) -> moves.Moved:
    if outcome.kind == "release":
        return moves.release(tx, number, keep_order=outcome.keep_order)
    return moves.fail(
        tx,
        number,
        reason=FailureReason(outcome.reason),
        error=outcome.error,
        progress=outcome.progress,
        retry_in_ms=outcome.retry_in_ms,
        dead=outcome.dead,
    )


def _release_members(tx: Transaction, record: ConsumerRecord, lease: GroupLease) -> dict[str, int]:
    members = tx.memory.members_of(lease)[: step_of(tx, RELEASE_STEP)]
    tx.bring_chunks(members)
    moves.add_all(tx, [moves.release(tx, number) for number in members])
    return record.settled


def _forget_outcomes(tx: Transaction, record: ConsumerRecord) -> None:
    """Delete the last ones first, so that the remaining calls still count from 1."""
    left = max(0, record.recorded - _ROWS_STEP)
    calls = [0, *range(left + 1, record.recorded + 1)]
    tx.add(RecordsChanged(Table.OUTCOMES, {outcomes_key(record.claim_id, call): None for call in calls}))
    if left:
        save(tx, record, recorded=left)
    elif record.dropping:
        forget_consumer(tx, record)
    else:
        save(tx, record.without_claim())


def forget_consumer(tx: Transaction, record: ConsumerRecord) -> None:
    tx.add(RecordsChanged(Table.CONSUMERS, {consumer_key(record.queue, record.name): None}))


# The timer


def run_consumers_due(tx: Transaction) -> bool:
    """Release claims of consumers that were away for too long; then do a step of a claim that has ended."""
    return _end_those_away(tx) or _go_on(tx)


def _is_time_to_look(tx: Transaction) -> bool:
    look_ms = tx.memory.consumers.next_look_ms
    return look_ms is not None and look_ms <= tx.now_ms


def _end_those_away(tx: Transaction) -> bool:
    if not _is_time_to_look(tx):
        return False
    consumers = tx.memory.consumers
    away = consumers.away(tx.now_ms)
    for record in away:
        let_go(tx, record, f"its consumer was not seen for {show_ms(record.ttl_ms)}")
    consumers.looked()
    return bool(away)


def _go_on(tx: Transaction) -> bool:
    if not _is_time_to_look(tx):
        return False
    record = tx.memory.consumers.left_alone()
    if record is not None:
        take_step(tx, record)
    return record is not None
