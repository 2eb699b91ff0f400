"""Durable consumers: registering and dropping them, and recording outcomes of the open claim. One call is one
transaction, synced before the answer, unless the claim ends: its messages follow in steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.decide.arguments import check_bool
from fairlead.decide.claim_outcomes import is_outdated
from fairlead.decide.numbered_claims import (
    LEFT_BEGUN,
    CheckedItems,
    check_default_outcome,
    check_generation,
    check_opened,
    check_same_default_outcome,
    check_slice,
    check_turn,
    check_whole,
    grant_turn,
    has_begun,
    info_of,
    read_consumer,
    read_consumer_ttl,
    read_items,
    read_parts,
)
from fairlead.decide.slices import slice_of
from fairlead.engine.consumer_steps import (
    flip,
    forget_consumer,
    leases_of,
    let_go,
    load_outcomes,
    outcomes_of,
    save,
    take_step,
)
from fairlead.engine.room import MESSAGE_BYTES
from fairlead.engine.transaction import StepsTable, Transaction, WorkTable
from fairlead.errors import ClaimNotNext, ClaimReleased, ConsumerNotFound, InvalidRequest, LimitReached
from fairlead.model.checks import check_text
from fairlead.model.consumer import CloseResult, ConsumerInfo, ConsumerRecord, Recorded, SliceBegun
from fairlead.model.failure import FailureReason
from fairlead.model.ids import show_id
from fairlead.model.limits import MAX_BATCH_MESSAGES, MAX_CONSUMERS, MAX_PART_BYTES, MAX_RECORDED_BYTES
from fairlead.model.names import Scoped
from fairlead.records.consumer import ChosenParts, RecordedCall
from fairlead.records.facts import MessageRestated, RecordsChanged
from fairlead.records.ids import COMMIT_SHIFT
from fairlead.records.state import OwnState
from fairlead.request import Caller, Request
from fairlead.store.kv.port import Table
from fairlead.store.rows import consumer_key, outcomes_key
from fairlead.verbs.consumers import (
    ConsumersBeginSlice,
    ConsumersCeiling,
    ConsumersChoose,
    ConsumersClose,
    ConsumersDrop,
    ConsumersHeartbeat,
    ConsumersList,
    ConsumersRecord,
    ConsumersRegister,
    ConsumersRelease,
    ConsumersShow,
)

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

#: Items that one step records.
RECORD_STEP = 500
_pack = msgspec.msgpack.Encoder().encode


def find_consumer(tx: Transaction, consumer: Scoped) -> ConsumerRecord | None:
    found: ConsumerRecord | None = tx.memory.records[Table.CONSUMERS].get(
        consumer_key(consumer.queue, consumer.name)
    )
    return found


def consumer_of(tx: Transaction, consumer: Scoped) -> ConsumerRecord:
    record = find_consumer(tx, consumer)
    if record is None:
        raise ConsumerNotFound(consumer.name, consumer.queue)
    return record


def opened(tx: Transaction, consumer: Scoped, generation: int, number: int) -> ConsumerRecord:
    """The consumer, whose open claim has this number and was received by a caller."""
    record = consumer_of(tx, consumer)
    check_opened(record, generation, number)
    return record


@contextmanager
def at_rest(engine: Engine, consumer: Scoped) -> Iterator[Transaction]:
    """A transaction in which the consumer has no steps left: a decision about its next claim must not meet
    the rest of the last one.
    """
    while True:
        with engine.transaction() as tx:
            record = find_consumer(tx, consumer)
            if record is None or not record.under_way:
                yield tx
                return
        _take_steps(engine, consumer)


def _take_steps(engine: Engine, consumer: Scoped) -> None:
    with engine.lock:
        index = engine.memory.consumers
        index.begin_steps(consumer)
    try:
        while _take_next_step(engine, consumer):
            pass
    finally:
        with engine.lock:
            index.end_steps(consumer)
            engine.wake_timer()


def _take_next_step(engine: Engine, consumer: Scoped) -> bool:
    answers = engine.hooking.ask_about_claim(consumer)
    with engine.transaction(answers) as tx:
        record = find_consumer(tx, consumer)
        if record is None or not record.under_way:
            return False
        take_step(tx, record)
        return True


# Making, seeing and dropping consumers


def register(engine: Engine, request: ConsumersRegister, caller: Caller) -> ConsumerInfo:
    consumer = read_consumer(request.name, request.queue)
    check_default_outcome(request.default_outcome)
    ttl_ms = read_consumer_ttl(request.ttl)
    with at_rest(engine, consumer) as tx:
        queue_id = tx.queue(request.queue).record.queue_id
        known = find_consumer(tx, consumer)
        if known is None:
            if len(tx.memory.records[Table.CONSUMERS]) >= MAX_CONSUMERS:
                raise LimitReached("durable consumers", MAX_CONSUMERS)
            tx.store.check_room(MESSAGE_BYTES)
            # Above every generation of a dropped consumer of this name and queue: each used a commit.
            known = ConsumerRecord(consumer.name, queue_id, consumer.queue, tx.commit - 1, ttl_ms, tx.now_ms)
        else:
            check_same_default_outcome(known, request.default_outcome)
        record = save(
            tx,
            known,
            queue_id=queue_id,
            generation=known.generation + 1,
            ttl_ms=ttl_ms,
            seen_ms=tx.now_ms,
            default_outcome=request.default_outcome,
        )
    engine.confirm(synced=True)
    return info_of(record)


def heartbeat(tx: Transaction, request: ConsumersHeartbeat) -> ConsumerInfo:
    consumer = read_consumer(request.name, request.queue)
    check_whole(request.generation, "generation")
    record = consumer_of(tx, consumer)
    check_generation(record, request.generation)
    return info_of(save(tx, record, seen_ms=tx.now_ms))


def ceiling(tx: Transaction, request: ConsumersCeiling) -> int:
    consumer = read_consumer(request.name, request.queue)
    check_whole(request.generation, "generation")
    check_generation(consumer_of(tx, consumer), request.generation)
    return (tx.commit << COMMIT_SHIFT) - 1


def list_consumers(tx: Transaction, request: ConsumersList) -> list[ConsumerInfo]:
    return [info_of(record) for _, record in sorted(tx.memory.records[Table.CONSUMERS].items())]


def show(tx: Transaction, request: ConsumersShow) -> ConsumerInfo:
    return info_of(consumer_of(tx, read_consumer(request.name, request.queue)))


def release(engine: Engine, request: ConsumersRelease, caller: Caller) -> int:
    return _let_go(engine, read_consumer(request.name, request.queue), "an operator let go of it")


def drop(engine: Engine, request: ConsumersDrop, caller: Caller) -> None:
    consumer = read_consumer(request.name, request.queue)
    _let_go(engine, consumer, "an operator dropped its consumer", dropping=True)


def _let_go(engine: Engine, consumer: Scoped, why: str, *, dropping: bool = False) -> int:
    """Release the open claim. Returns its number of messages."""
    with at_rest(engine, consumer) as tx:
        record = consumer_of(tx, consumer)
        count = record.messages if record.in_hand else 0
        if record.in_hand:
            take_step(tx, let_go(tx, record, why, dropping=dropping))
        elif dropping:
            forget_consumer(tx, record)
    with at_rest(engine, consumer):
        pass
    engine.confirm(synced=True)
    return count


def close(engine: Engine, request: ConsumersClose, caller: Caller) -> CloseResult:
    consumer = read_consumer(request.name, request.queue)
    generation = check_whole(request.generation, "generation")
    up_to = check_whole(request.up_to, "up_to")
    load_outcomes(engine, consumer)
    with at_rest(engine, consumer) as tx:
        record = consumer_of(tx, consumer)
        check_generation(record, generation)
        if up_to == record.lost and up_to:
            raise ClaimReleased(consumer.name, up_to, record.lost_why)
        was_closed = up_to <= record.last_closed
        if not was_closed:
            if record.phase != "open" or up_to != record.number:
                raise ClaimNotNext(consumer.name, up_to, record.last_closed)
            take_step(tx, flip(tx, record, "closing", seen_ms=tx.now_ms, settled={}))
    if not was_closed:
        with at_rest(engine, consumer) as tx:
            record = find_consumer(tx, consumer) or record
    engine.confirm(synced=True)
    settled = dict(record.settled) if up_to == record.last_closed else {}
    return CloseResult(record.last_closed if was_closed else up_to, settled)


# About the claim in hand


def record_outcomes(engine: Engine, request: ConsumersRecord, caller: Caller) -> None:
    """Record outcomes: all items are checked before the first is recorded; then they are recorded in steps.
    An error leaves the steps before it recorded, and the same call records the same again.
    """
    consumer = read_consumer(request.name, request.queue)
    check_whole(request.generation, "generation")
    check_whole(request.number, "number")
    check_whole(request.slice, "slice")
    check_whole(request.turn, "turn")
    part = check_text(request.part, "part", MAX_PART_BYTES, may_be_empty=True)
    items = read_items(request.items, part)
    steps = [(some, some.to_store()) for some in items.in_steps(RECORD_STEP)]
    sizes = [len(_pack(to_store)) if to_store else 0 for _, to_store in steps]
    # One step at least: a call without items still learns whether the claim and its turn are current.
    for some, _ in steps:
        with engine.transaction() as tx:
            record = _in_turn(tx, consumer, request)
            _members(tx, record, some)
            _check_limits(tx, record, items, sum(sizes))
    for (some, to_store), size in zip(steps, sizes, strict=True):
        with engine.transaction() as tx:
            record = _in_turn(tx, consumer, request)
            numbers = _members(tx, record, some)
            for number, state in _extended(tx, record, some, numbers).items():
                tx.add(MessageRestated(number, state))
            if to_store or some.has_carry:
                _save_outcomes(tx, record, part, to_store, size)
    engine.confirm(synced=True)


def _in_turn(tx: Transaction, consumer: Scoped, request: ConsumersRecord) -> ConsumerRecord:
    """The consumer of the open claim, after the checks of its generation and of the turn of its slice."""
    record = opened(tx, consumer, request.generation, request.number)
    check_turn(record, request.slice, request.turn)
    return record


def _check_limits(tx: Transaction, record: ConsumerRecord, items: CheckedItems, size: int) -> None:
    if record.recorded_bytes + size > MAX_RECORDED_BYTES:
        what = f"bytes of outcomes in a claim of consumer {record.name!r}"
        raise LimitReached(what, MAX_RECORDED_BYTES)
    _check_room(tx, items, size)


def _check_room(tx: Transaction, items: CheckedItems, size: int) -> None:
    """Texts and carries stop at the reserve. Bare outcomes may use it: without them a claim cannot be closed."""
    carried = sum([len(carry) for carry in items.carries.values() if carry])
    is_bare = not carried and not any(one.error for one in items.recorded)
    # A text is stored twice for a while: with the claim and, at close, with its message.
    tx.store.check_room(2 * size + carried, in_reserve=is_bare)


def _members(tx: Transaction, record: ConsumerRecord, items: CheckedItems) -> list[int]:
    """The number of each item's message; all of them must be of the claim."""
    found = tx.find_messages([one.id for one in items.recorded])
    numbers = []
    for one, claim_id in zip(items.recorded, items.claim_ids, strict=True):
        number = found.get(one.id, -1)
        lease = tx.memory.held.get(number)
        if lease is None or not claim_id == lease.terms.claim_id == record.claim_id:
            expected = f"about messages of claim {record.number} of consumer {record.name!r}"
            raise InvalidRequest("items", expected, show_id(one.id))
        numbers.append(number)
    return numbers


def _extended(
    tx: Transaction, record: ConsumerRecord, items: CheckedItems, numbers: list[int]
) -> dict[int, OwnState]:
    """The states with the effect of extensions: progress grows, and the latest carry replaces the one before."""
    if not items.carries:
        return {}
    told = outcomes_of(tx, record).progress
    told_now: dict[bytes, int] = {}
    changed: dict[int, OwnState] = {}
    for at, carry in items.carries.items():
        number, raw_id, progress = numbers[at], items.recorded[at].id, items.recorded[at].progress
        before = told_now.get(raw_id, told.get(raw_id, 0))
        if (not progress and carry is None) or is_outdated(before, progress):
            continue
        told_now[raw_id] = before | progress
        state = changed.get(number) or tx.state_of(number)
        changed[number] = msgspec.structs.replace(
            state,
            claim_id=record.claim_id,
            progress=state.progress | progress,
            carry=state.carry if carry is None else carry,
        )
    return changed


def _save_outcomes(
    tx: Transaction, record: ConsumerRecord, part: str, recorded: list[Recorded], size: int
) -> None:
    if recorded:
        key = outcomes_key(record.claim_id, record.recorded + 1)
        tx.add(RecordsChanged(Table.OUTCOMES, {key: RecordedCall(part, recorded)}))
    save(
        tx,
        record,
        recorded=record.recorded + bool(recorded),
        recorded_bytes=record.recorded_bytes + size,
        seen_ms=tx.now_ms,
    )


def begin_slice(tx: Transaction, request: ConsumersBeginSlice) -> SliceBegun:
    consumer, slice, slices = read_consumer(request.name, request.queue), request.slice, request.slices
    check_slice(slice, slices)
    generation = check_whole(request.generation, "generation")
    record = opened(tx, consumer, generation, check_whole(request.number, "number"))
    turns = grant_turn(record.turns, slice, slices)
    begun = outcomes_of(tx, record).begun
    slice_of_begun = _slices_of(tx, record, begun, slices) if begun else {}
    left = [raw_id for raw_id in begun if slice_of_begun[raw_id] == slice]
    failed = [
        Recorded(raw_id, "fail", error=LEFT_BEGUN, reason=int(FailureReason.TIMEOUT_EXCEEDED))
        for raw_id in left
    ]
    # Beyond the limit of recorded outcomes if necessary: each start causes at most one failure.
    after = msgspec.structs.replace(record, turns=turns)
    _save_outcomes(tx, after, "", failed, len(_pack(failed)) if failed else 0)
    return SliceBegun(has_begun(record.turns, slice, slices), len(failed), turns[slice])


def _slices_of(
    tx: Transaction, record: ConsumerRecord, raw_ids: Collection[bytes], slices: int
) -> dict[bytes, int]:
    """The slice of each of these members."""
    found = tx.find_messages([*raw_ids])
    ids = {number: raw_id for raw_id, number in found.items()}
    members = [number for lease in leases_of(tx, record) for number in lease.numbers]
    return {
        ids[number]: slice_of(place, len(members), tx.memory.stream_of(number, record.queue_id), slices)
        for place, number in enumerate(members)
        if number in ids
    }


def choose(tx: Transaction, request: ConsumersChoose) -> None:
    consumer = read_consumer(request.name, request.queue)
    check_whole(request.generation, "generation")
    check_whole(request.number, "number")
    check_bool(request.add, "add")
    parts = read_parts(request.parts)
    record = opened(tx, consumer, request.generation, request.number)
    key = outcomes_key(record.claim_id, 0)
    before = tx.record(Table.OUTCOMES, key) if request.add else None
    chosen = list(dict.fromkeys([*(before.parts if before is not None else ()), *parts]))
    if len(chosen) > MAX_BATCH_MESSAGES:
        raise LimitReached(f"chosen parts in a claim of consumer {consumer.name!r}", MAX_BATCH_MESSAGES)
    tx.store.check_room(sum(map(len, chosen)), in_reserve=True)
    tx.add(RecordsChanged(Table.OUTCOMES, {key: ChosenParts(chosen)}))
    save(tx, record, seen_ms=tx.now_ms)


def _synced(work: Callable[[Transaction, Any], Any]) -> Callable[[Engine, Request[Any], Caller], Any]:
    """One transaction, synced before the answer whatever the durability of the engine."""

    def run(engine: Engine, request: Request[Any], caller: Caller) -> Any:
        with engine.transaction() as tx:
            answer = work(tx, request)
        engine.confirm(synced=True)
        return answer

    return run


WORK: WorkTable = {
    ConsumersHeartbeat: heartbeat,
    ConsumersCeiling: ceiling,
    ConsumersList: list_consumers,
    ConsumersShow: show,
}

WORK_IN_STEPS: StepsTable = {
    ConsumersRegister: register,
    ConsumersRecord: record_outcomes,
    ConsumersBeginSlice: _synced(begin_slice),
    ConsumersChoose: _synced(choose),
    ConsumersClose: close,
    ConsumersRelease: release,
    ConsumersDrop: drop,
}
