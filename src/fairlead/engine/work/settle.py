"""Outcomes of deliveries: decided item by item, where the first outcome of a delivery counts; added as facts
at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fairlead.decide.arguments import check_consumer
from fairlead.decide.closing import bounds_of
from fairlead.decide.exchange import check_item_count, check_items
from fairlead.decide.retry import RetryAt
from fairlead.engine import moves
from fairlead.engine.chunk_messages import ChunkMessages
from fairlead.engine.closed_throttles import close_throttle, has_room
from fairlead.engine.memory import Memory
from fairlead.engine.moves import STEP_MESSAGES
from fairlead.engine.queue import Queue
from fairlead.engine.room import STATE_BYTES, is_low, step_of
from fairlead.engine.transaction import StepsTable, Transaction, WorkTable
from fairlead.errors import InvalidRequest, StoreFull
from fairlead.model.delivery import Delivery
from fairlead.model.durations import to_ms
from fairlead.model.handles import CheckedFail, check_carry, check_fail, check_progress, read_handle
from fairlead.model.ids import find_id
from fairlead.model.limits import MAX_CLOSED_THROTTLES, MAX_LEASE_MS, MIN_LEASE_MS
from fairlead.model.settle import (
    Complete,
    Extend,
    Fail,
    LeaseRef,
    Outcome,
    Release,
    Settlement,
    SettleResult,
    Start,
)
from fairlead.model.throttle import MAX_CLOSURE_ERROR, Closure
from fairlead.records.facts import LeaseSplit, MessageRestated
from fairlead.records.ids import BLOCK_SHIFT, find_number, ids_of
from fairlead.records.lease import GroupLease
from fairlead.records.state import OwnState
from fairlead.request import Caller
from fairlead.verbs.settle import Ack, Goodbye, Nack, Settle

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine


def settle(tx: Transaction, request: Settle) -> list[SettleResult]:
    items = check_items(request.items)
    check_item_count(items)
    completed = find_completed(tx.memory, items)
    if completed is not None:
        moves.complete_members(tx, completed.lease, completed.numbers, {})
        return completed.results()
    failed = find_failed(tx.memory, items)
    if failed is not None and not (tx.hooks.failures or is_low(tx)):
        together = moves.fail_together(
            tx.memory,
            failed.members.lease,
            failed.members.numbers,
            failed.said,
            now_ms=tx.now_ms,
            next_place=tx.next_place,
        )
        if together is not None:
            tx.add(together.fact)
            return failed.results(together.decisions)
    settlement = Settling(tx)
    return settlement.carry_out(settlement.decide_all(items))


class Members(NamedTuple):
    """Different members of one lease that this engine delivered, in the order of a call's items."""

    lease: GroupLease
    numbers: list[int]
    #: The first half of their ids, if they belong to one chunk.
    prefix: bytes | None
    deliveries: Sequence[Any]

    def raw_ids(self) -> list[bytes]:
        if self.prefix is None:
            return [delivery.raw_id for delivery in self.deliveries]
        return ids_of(self.prefix, self.numbers)


class CompletedMembers(NamedTuple):
    """Members of one lease, all of them completed by one call."""

    members: Members

    @property
    def lease(self) -> GroupLease:
        return self.members.lease

    @property
    def numbers(self) -> list[int]:
        return self.members.numbers

    def results(self) -> list[SettleResult]:
        outcome: Outcome = "completed"
        return [*map(SettleResult, self.members.raw_ids(), repeat(outcome))]


def find_completed(memory: Memory, items: Sequence[Settlement]) -> CompletedMembers | None:
    """The short way for nearly every call: deliveries of one lease are all completed, named by objects that
    this engine returned or by their ids. None: take the general way, item by item.

    One comprehension for each column costs less than one loop with all checks.
    """
    if set(map(type, items)) != {Complete}:
        return None
    completes: Any = items
    if [item.progress for item in completes].count(0) < len(items):
        return None
    members = _find_members(memory, [item.delivery for item in completes])
    return None if members is None else CompletedMembers(members)


class FailedMembers(NamedTuple):
    """Members of one lease, all of them failed by one call."""

    members: Members
    said: Sequence[CheckedFail]

    def results(self, decisions: Sequence[RetryAt]) -> list[SettleResult]:
        outcome: Outcome = "retry"
        return [
            SettleResult(raw_id, outcome, decision.rule, decision.due_ms)
            for raw_id, decision in zip(self.members.raw_ids(), decisions, strict=True)
        ]


def find_failed(memory: Memory, items: Sequence[Settlement]) -> FailedMembers | None:
    """As `find_completed`, for deliveries that all failed."""
    if set(map(type, items)) != {Fail}:
        return None
    fails: Any = items
    members = _find_members(memory, [item.delivery for item in fails])
    said = None if members is None else _check_fails(fails)
    return None if members is None or said is None else FailedMembers(members, said)


def _check_fails(items: Sequence[Fail]) -> list[CheckedFail] | None:
    """The checked failures, if all are valid: deliveries that fail in the same way share one object."""
    said: dict[Any, CheckedFail] = {}
    found: list[CheckedFail] = []
    for item in items:
        error, reason, progress, retry_in, dead = (
            item.error,
            item.reason,
            item.progress,
            item.retry_in,
            item.dead,
        )
        if item.close is not None or item.retry_after is not None:
            return None
        # Equal numbers may be of different types, some of which are refused.
        key = error, reason, type(reason), progress, type(progress), retry_in, dead, type(dead)
        try:
            one = said.get(key) or said.setdefault(key, check_fail(item))
        except (InvalidRequest, TypeError):
            # The general way says what is wrong. A value that cannot be hashed is.
            return None
        found.append(one)
    return found


def _find_members(memory: Memory, deliveries: Sequence[Any]) -> Members | None:
    count = len(deliveries)
    if count == 1 and type(deliveries[0]) is Delivery:
        return _find_member(memory, deliveries[0])
    kinds = set(map(type, deliveries))
    if kinds == {LeaseRef}:
        numbers = find_referred(memory, [ref.raw_id for ref in deliveries])
    elif kinds == {Delivery}:
        numbers = [delivery.number for delivery in deliveries]
    else:
        return None
    lease = memory.held.get(numbers[0]) if numbers else None
    if lease is None or lease.is_numbered:
        return None
    claim_ids = [delivery.claim_id for delivery in deliveries]
    if claim_ids.count(lease.terms.claim_id) < count or set(map(type, claim_ids)) != {int}:
        return None
    if not _are_members(memory, lease, numbers):
        return None
    if kinds == {LeaseRef}:
        return Members(lease, numbers, None, deliveries)
    stored: list[Any] = [delivery.stored for delivery in deliveries]
    prefix = _find_own_prefix(memory, stored[0])
    if prefix is None:
        return None
    if stored.count(stored[0]) == count:
        return Members(lease, numbers, prefix, deliveries)
    others = {id(one): one for one in stored}.values()
    if None in [_find_own_prefix(memory, one) for one in others]:
        return None
    return Members(lease, numbers, None, deliveries)


def _find_member(memory: Memory, delivery: Any) -> Members | None:
    """`_find_members` without its columns."""
    lease = memory.held.get(delivery.number)
    if lease is None or lease.is_numbered or lease.terms.claim_id != delivery.claim_id:
        return None
    prefix = _find_own_prefix(memory, delivery.stored)
    return None if prefix is None else Members(lease, [delivery.number], prefix, (delivery,))


def find_referred(memory: Memory, raw_ids: Sequence[object]) -> list[int]:
    """The numbers of messages that a caller names by their ids; none if one of them is not in memory."""
    given: Any = raw_ids
    if set(map(type, given)) != {bytes} or set(map(len, given)) != {16}:
        return []
    whole = _find_whole_claim(memory, given)
    if whole:
        return whole
    found: Any = [*map(find_number, given)]
    if None in found:
        return []
    numbers: list[int] = found
    chunks = {block: memory.chunks.get(block) for block in {number >> BLOCK_SHIFT for number in numbers}}
    # The second half of an id belongs to the number, and the first half to its chunk.
    prefixes = {block: None if chunk is None else chunk.prefix for block, chunk in chunks.items()}
    if [prefixes[number >> BLOCK_SHIFT] for number in numbers] != [raw_id[:8] for raw_id in given]:
        return []
    return numbers


def _find_whole_claim(memory: Memory, raw_ids: list[bytes]) -> list[int]:
    """`find_referred` for all messages of a claim in their original order: computing the ids of numbers takes
    less time than finding the numbers in their ids. Returns none if they are not in that order, or are of
    several chunks.
    """
    first = find_number(raw_ids[0])
    lease = None if first is None else memory.held.get(first)
    if lease is None or len(lease.numbers) != len(raw_ids):
        return []
    numbers = [*lease.numbers]
    block = min(numbers) >> BLOCK_SHIFT
    chunk = memory.chunks.get(block)
    if chunk is None or max(numbers) >> BLOCK_SHIFT != block or ids_of(chunk.prefix, numbers) != raw_ids:
        return []
    return numbers


def _are_members(memory: Memory, lease: GroupLease, numbers: list[int]) -> bool:
    """Whether these are different members that the lease still holds."""
    count = len(numbers)
    if lease.live == count and numbers == lease.numbers:
        # Most claims are settled as they were delivered. As many members as the lease had are held, so all of
        # them are.
        return True
    return [*map(memory.held.get, numbers)].count(lease) == count == len(set(numbers))


def _find_own_prefix(memory: Memory, stored: object) -> bytes | None:
    """The first half of the ids of these messages; None for those of another engine, which may have assigned
    the same numbers.
    """
    if type(stored) is not ChunkMessages:
        return None
    chunk, prefix = memory.chunks.get(stored.chunk.block), stored.chunk.prefix
    return prefix if chunk is not None and chunk.prefix == prefix else None


def goodbye(engine: Engine, request: Goodbye, caller: Caller) -> int:
    """Release in steps the claims that the consumer had at the time of the call, each in the order of
    delivery.
    """
    check_consumer(request.consumer)
    with engine.transaction() as tx:
        leases = [one for one in tx.memory.by_consumer.get(request.consumer, ()) if not one.is_numbered]
    claims: dict[int, dict[int, None]] = {}
    for lease in sorted(leases, key=lambda lease: (lease.terms.claim_id, lease.terms.group)):
        claims.setdefault(lease.terms.claim_id, {}).update(dict.fromkeys(lease.claim_order))
    members = ((claim_id, number) for claim_id, numbers in claims.items() for number in numbers)
    count = 0
    while True:
        with engine.transaction() as tx:
            some = list(islice(members, step_of(tx, STEP_MESSAGES)))
            held = [number for claim_id, number in some if moves.claim_of(tx, number) == claim_id]
            tx.bring_chunks(held)
            moves.add_all(tx, [moves.release(tx, number) for number in held])
        count += len(held)
        if not some:
            engine.confirm()
            return count


def ack(tx: Transaction, request: Ack) -> SettleResult:
    return _settle_current(tx, request.queue, request.message_id, Complete)


def nack(tx: Transaction, request: Nack) -> SettleResult:
    def fail(delivery: LeaseRef) -> Fail:
        return Fail(delivery, request.error, request.reason)

    return _settle_current(tx, request.queue, request.message_id, fail)


def _settle_current(
    tx: Transaction, queue_name: str, message_id: str, make: Callable[[LeaseRef], Settlement]
) -> SettleResult:
    """Settle the current lease of a message. The error of a `not_found` says where the message is, if it is
    in this queue or its dead letters.
    """
    raw_id = find_id(message_id)
    if raw_id is None:
        raise InvalidRequest("id", "a full message id", message_id)
    queue, found = tx.queue(queue_name), tx.memory.find_lease(raw_id)
    if found is None or found[1].terms.queue_id != queue.record.queue_id:
        return SettleResult(raw_id, "not_found", error=_where_instead(tx, queue, raw_id))
    return settle(tx, Settle([make(LeaseRef(raw_id, found[1].terms.claim_id))]))[0]


def _where_instead(tx: Transaction, queue: Queue, raw_id: bytes) -> str:
    """Says nothing about messages of other queues, because the caller may have no right to know about them."""
    number = tx.find_messages([raw_id]).get(raw_id)
    if number is None:
        return ""
    found = tx.memory.by_id[tx.memory.state_of(number).queue_id]
    if found.is_dead_letter_queue and found.home_id == queue.home_id:
        return f"it is dead, in queue {found.name!r}; retry or redrive brings it back"
    if found is not queue:
        return ""
    is_done = tx.memory.state_of(number).done_ms
    return "it is completed" if is_done else "it waits for a consumer or for its time"


class Settling:
    """The items of one call against one view of the leases. Nothing changes before `carry_out`."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        #: Deliveries that an earlier item has ended.
        self._over: set[int] = set()
        self._done: dict[GroupLease, list[int]] = {}
        #: Progress reported with completions, for queues that retain completed messages.
        self._progress: dict[int, int] = {}
        #: (index of the result, number, what to do), in the order of the items.
        self._moves: list[tuple[int, int, Release | CheckedFail]] = []
        #: Failures that close throttle keys.
        self._closings: list[tuple[CheckedFail, GroupLease]] = []
        #: Deliveries that continue: for how long, whether started, and their new state.
        self._extended: dict[int, int] = {}
        self._started: set[int] = set()
        self._restated: dict[int, OwnState] = {}
        self._carried_bytes = 0
        self._count = -1

    def decide_all(self, items: Sequence[Settlement]) -> list[SettleResult]:
        """Decide in the given order, where the first outcome of a delivery counts. Pass the results to
        `carry_out`.
        """
        results = self._complete_all(items)
        if results is None and self._tx.memory.cold_count:
            # Missing chunks may be the only reason for the general way.
            self._tx.bring([number for item in items if (number := _number_of(item)) is not None])
            results = self._complete_all(items)
        return results or [self.decide(item) for item in items]

    def _complete_all(self, items: Sequence[Settlement]) -> list[SettleResult] | None:
        """None: take the general way, item by item."""
        completed = find_completed(self._tx.memory, items)
        if completed is None or not self._over.isdisjoint(completed.numbers):
            return None
        self._count += len(completed.numbers)
        self._over.update(completed.numbers)
        self._done.setdefault(completed.lease, []).extend(completed.numbers)
        return completed.results()

    def decide(self, item: Settlement) -> SettleResult:
        self._count += 1
        if not isinstance(item, (Complete, Fail, Release, Extend, Start)):
            expected = f"expected Complete, Fail, Release, Extend or Start, got {item!r}"
            return SettleResult(b"", "invalid", error=expected)
        try:
            raw_id, claim_id = read_handle(item.delivery)
        except InvalidRequest as wrong:
            return SettleResult(b"", "invalid", error=str(wrong))
        found = self._tx.memory.find_lease(raw_id)
        if found is None:
            return SettleResult(raw_id, self._why_not(raw_id))
        number, lease = found
        if number in self._over or lease.terms.claim_id != claim_id:
            return SettleResult(raw_id, "lost_lease")
        if lease.is_numbered:
            return SettleResult(raw_id, "invalid", error=self._tx.memory.consumers.why_in_claim(lease.terms))
        try:
            return self._held(item, raw_id, number, lease)
        except InvalidRequest as wrong:
            return SettleResult(raw_id, "invalid", error=str(wrong))
        except StoreFull as full:
            return SettleResult(raw_id, "store_full", error=str(full))

    def _why_not(self, raw_id: bytes) -> Outcome:
        """ "lost_lease" for a message that is still live, "not_found" for one that is unknown or gone."""
        found = self._tx.memory.find_message(raw_id)
        is_gone = found is None or self._tx.memory.state_of(found).done_ms != 0
        return "not_found" if is_gone else "lost_lease"

    def _held(self, item: Settlement, raw_id: bytes, number: int, lease: GroupLease) -> SettleResult:
        match item:
            case Complete():
                self._progress[number] = check_progress(item.progress)
                self._over.add(number)
                self._done.setdefault(lease, []).append(number)
                return SettleResult(raw_id, "completed")
            case Fail():
                said = check_fail(item)
                if said.close:
                    self._note_closing(said, number, lease)
                self._over.add(number)
                self._moves.append((self._count, number, said))
                return SettleResult(raw_id, "retry")
            case Release():
                self._over.add(number)
                self._moves.append((self._count, number, item))
                return SettleResult(raw_id, "released")
            case Extend():
                return self._extend(item, raw_id, number, lease)
            case Start():
                self._started.add(number)
                return SettleResult(raw_id, "started", lease_until=lease.terms.expires_ms)

    def _note_closing(self, said: CheckedFail, number: int, lease: GroupLease) -> None:
        """A consumer closes only keys of its own messages."""
        throttle_keys = self._tx.memory.lane_and_weight(number)[0][1:]
        if said.close not in throttle_keys:
            expected = f"one of the message's throttle keys ({', '.join(throttle_keys) or 'it has none'})"
            raise InvalidRequest("close", expected, said.close)
        if not has_room(self._tx, said.close):
            raise InvalidRequest("close", f"at most {MAX_CLOSED_THROTTLES} closed throttle keys", said.close)
        self._closings.append((said, lease))

    def _extend(self, item: Extend, raw_id: bytes, number: int, lease: GroupLease) -> SettleResult:
        tx = self._tx
        config = tx.memory.by_id[lease.terms.queue_id].record.config
        lease_ms = config.visibility_timeout_ms if item.duration is None else to_ms(item.duration, "duration")
        if not MIN_LEASE_MS <= lease_ms <= MAX_LEASE_MS:
            raise InvalidRequest("duration", "between 100ms and 7d", item.duration)
        progress, carry = check_progress(item.progress), check_carry(item.carry)
        if carry:
            # The lease reserves the room of every other item.
            carried_bytes = self._carried_bytes + STATE_BYTES + len(carry)
            tx.store.check_room(carried_bytes)
            self._carried_bytes = carried_bytes
        if progress or carry is not None:
            known = self._restated.get(number) or tx.memory.state_of(number)
            self._restated[number] = msgspec.structs.replace(
                known,
                claim_id=lease.terms.claim_id,
                progress=known.progress | progress,
                carry=known.carry if carry is None else carry,
            )
        self._extended[number] = lease_ms
        return SettleResult(raw_id, "extended", lease_until=tx.now_ms + lease_ms)

    # Facts

    def carry_out(self, results: list[SettleResult]) -> list[SettleResult]:
        for number, state in self._restated.items():
            self._tx.add(MessageRestated(number, state))
        for lease, numbers in self._done.items():
            moves.complete_members(self._tx, lease, numbers, self._progress)
        if not (self._moves or self._extended or self._started):
            return results
        until_ms = self._close_throttles()
        moved = [self._move(number, said) for _, number, said in self._moves]
        moves.add_all(self._tx, moved)
        for (at, number, said), one in zip(self._moves, moved, strict=True):
            rule = moves.let_pass(self._tx, number) if one.asks_to_pass else one.rule
            due_ms = one.due_ms if one.outcome != "returned" else until_ms[said.close]  # type: ignore[union-attr]
            results[at] = SettleResult(results[at].raw_id, one.outcome, rule, due_ms)  # type: ignore[arg-type]
        self._split_leases()
        return results

    def _close_throttles(self) -> dict[str, int]:
        """Close the keys that failures name. Returns the end of each closure."""
        tx, until_ms = self._tx, dict[str, int]()
        for said, lease in self._closings:
            lasts_ms = min(said.retry_after_ms, bounds_of(tx.memory.config, said.close).max_closed_ms)
            queue = tx.memory.by_id[lease.terms.queue_id].name
            closure = Closure(
                tx.now_ms,
                tx.now_ms + lasts_ms,
                lease.terms.consumer,
                queue,
                said.error[:MAX_CLOSURE_ERROR],
                1,
            )
            until_ms[said.close] = close_throttle(tx, said.close, closure).until_ms
        return until_ms

    def _move(self, number: int, said: Release | CheckedFail) -> moves.Moved:
        if isinstance(said, Release):
            return moves.release(self._tx, number, keep_order=said.keep_order)
        if said.close:
            return moves.return_closed(self._tx, number, said)
        return moves.fail(
            self._tx,
            number,
            reason=said.reason,
            error=said.error,
            progress=said.progress,
            retry_in_ms=said.retry_in_ms,
            dead=said.dead,
        )

    def _split_leases(self) -> None:
        """Deliveries that continue in the same way share a lease; the claim, and with it their token, stays."""
        tx = self._tx
        groups: dict[tuple[GroupLease, int, bool], list[int]] = {}
        for number in dict.fromkeys([*self._extended, *sorted(self._started)]):
            if number in self._over:
                continue
            lease = tx.memory.held[number]
            lease_ms, started = self._extended.get(number, 0), lease.terms.started or number in self._started
            if lease_ms or started != lease.terms.started:
                groups.setdefault((lease, lease_ms, started), []).append(number)
        for (lease, lease_ms, started), numbers in groups.items():
            terms = msgspec.structs.replace(lease.terms, group=tx.next_group(), started=started)
            if lease_ms:
                terms = msgspec.structs.replace(terms, lease_ms=lease_ms, expires_ms=tx.now_ms + lease_ms)
            tx.add(LeaseSplit(lease, GroupLease(terms, numbers, lease.claim_order), numbers))


def _number_of(item: object) -> int | None:
    """The message that an item concerns, if any."""
    try:
        return find_number(read_handle(item.delivery)[0])  # type: ignore[attr-defined]
    except (AttributeError, InvalidRequest):
        return None


WORK: WorkTable = {
    Settle: settle,
    Ack: ack,
    Nack: nack,
}

WORK_IN_STEPS: StepsTable = {
    Goodbye: goodbye,
}
