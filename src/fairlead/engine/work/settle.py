"""How deliveries went: decided item by item, the first outcome of a delivery counts; added as facts at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from fairlead.decide.arguments import check_consumer
from fairlead.engine import moves
from fairlead.engine.memory import Queue
from fairlead.engine.transaction import Transaction
from fairlead.errors import InvalidRequest
from fairlead.model.delivery import Delivery
from fairlead.model.durations import to_ms
from fairlead.model.handles import CheckedFail, check_carry, check_fail, check_progress, read_handle
from fairlead.model.ids import find_id
from fairlead.model.limits import MAX_BATCH_MESSAGES, MAX_LEASE_MS, MIN_LEASE_MS
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
from fairlead.records.facts import LeaseCompleted, LeaseSplit, MessageRestated
from fairlead.records.ids import find_number
from fairlead.records.lease import GroupLease
from fairlead.records.state import OwnState
from fairlead.verbs.settle import Ack, Goodbye, Nack, Settle


def settle(tx: Transaction, request: Settle) -> list[SettleResult]:
    items = request.items
    if not isinstance(items, Sequence) or isinstance(items, (str, bytes)):
        raise InvalidRequest("items", "a list of Complete, Fail, Release, Extend, Start", type(items))
    if len(items) > MAX_BATCH_MESSAGES:
        raise InvalidRequest("items", f"at most {MAX_BATCH_MESSAGES} in one call", f"{len(items)} items")
    settlement = _Settling(tx)
    results = [settlement.complete(item) or settlement.decide(item) for item in items]
    return settlement.carry_out(results)


def goodbye(tx: Transaction, request: Goodbye) -> int:
    check_consumer(request.consumer)
    held = tx.memory.in_claim_order(tx.memory.by_consumer.get(request.consumer, ()))
    moves.add_all(tx, [moves.release(tx, number) for _, number in held])
    return len(held)


def ack(tx: Transaction, request: Ack) -> SettleResult:
    return _settle_current(tx, request.queue, request.message_id, Complete)


def nack(tx: Transaction, request: Nack) -> SettleResult:
    def fail(delivery: LeaseRef) -> Fail:
        return Fail(delivery, request.error, request.reason)

    return _settle_current(tx, request.queue, request.message_id, fail)


def _settle_current(
    tx: Transaction, queue_name: str, message_id: str, make: Callable[[LeaseRef], Settlement]
) -> SettleResult:
    """Acts on whatever lease is current. The error of a `not_found` says where the message is, if it is in this
    queue or its dead letters.
    """
    raw_id = find_id(message_id)
    if raw_id is None:
        raise InvalidRequest("id", "a full message id", message_id)
    queue, number = tx.queue(queue_name), find_number(raw_id)
    lease = None if number is None else tx.memory.held.get(number)
    if lease is None or lease.terms.queue_id != queue.record.queue_id:
        return SettleResult(raw_id, "not_found", error=_where_instead(tx, queue, raw_id))
    return settle(tx, Settle([make(LeaseRef(raw_id, lease.terms.claim_id))]))[0]


def _where_instead(tx: Transaction, queue: Queue, raw_id: bytes) -> str:
    """Says nothing about messages of other queues: the caller may have no right to know of them."""
    number = tx.memory.find_message(raw_id)
    if number is None:
        return ""
    found = tx.memory.by_id[tx.memory.state_of(number).queue_id]
    if found.is_dead_letter_queue and found.home_id == queue.home_id:
        return f"it is dead, in queue {found.name!r}; retry or redrive brings it back"
    return "it waits for a consumer or for its time" if found is queue else ""


class _Settling:
    """The items of one call against one view of the leases. Nothing changes before `carry_out`."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._held_by = tx.memory.held
        #: Deliveries that an earlier item has ended.
        self._over: set[int] = set()
        self._done: dict[GroupLease, list[int]] = {}
        #: (index of the result, number, what to do), in the order of the items.
        self._moves: list[tuple[int, int, Release | CheckedFail]] = []
        #: Deliveries that go on: how long, whether started, and what is known now.
        self._extended: dict[int, int] = {}
        self._started: set[int] = set()
        self._restated: dict[int, OwnState] = {}
        self._count = -1

    def complete(self, item: Settlement) -> SettleResult | None:
        """The short way for what nearly every item is; None: take the long way."""
        if type(item) is not Complete or item.progress != 0:
            return None
        handle = item.delivery
        if type(handle) is not Delivery:
            return None
        raw_id = handle.message.id
        number = find_number(raw_id)
        lease = self._held_by.get(number)  # type: ignore[arg-type]  # None is no number
        if lease is None or lease.terms.claim_id != handle.claim_id or number in self._over:
            return None
        self._count += 1
        self._over.add(number)  # type: ignore[arg-type]
        self._done.setdefault(lease, []).append(number)  # type: ignore[arg-type]
        return SettleResult(raw_id, "completed")

    def decide(self, item: Settlement) -> SettleResult:
        self._count += 1
        if not isinstance(item, (Complete, Fail, Release, Extend, Start)):
            expected = f"expected Complete, Fail, Release, Extend or Start, got {item!r}"
            return SettleResult(b"", "invalid", error=expected)
        try:
            raw_id, claim_id = read_handle(item.delivery)
        except InvalidRequest as wrong:
            return SettleResult(b"", "invalid", error=str(wrong))
        number = find_number(raw_id)
        lease = None if number is None or number in self._over else self._held_by.get(number)
        if number is None or lease is None or lease.terms.claim_id != claim_id:
            return SettleResult(raw_id, self._why_not(raw_id, number))
        try:
            return self._held(item, raw_id, number, lease)
        except InvalidRequest as wrong:
            return SettleResult(raw_id, "invalid", error=str(wrong))

    def _why_not(self, raw_id: bytes, number: int | None) -> Outcome:
        """ "lost_lease" for a message that lives on, "not_found" for one that is unknown or gone."""
        if number in self._over:
            return "lost_lease"
        return "not_found" if self._tx.memory.find_message(raw_id) is None else "lost_lease"

    def _held(self, item: Settlement, raw_id: bytes, number: int, lease: GroupLease) -> SettleResult:
        match item:
            case Complete():
                check_progress(item.progress)
                self._over.add(number)
                self._done.setdefault(lease, []).append(number)
                return SettleResult(raw_id, "completed")
            case Fail():
                said = check_fail(item)
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

    def _extend(self, item: Extend, raw_id: bytes, number: int, lease: GroupLease) -> SettleResult:
        tx = self._tx
        config = tx.memory.by_id[lease.terms.queue_id].record.config
        lease_ms = config.visibility_timeout_ms if item.duration is None else to_ms(item.duration, "duration")
        if not MIN_LEASE_MS <= lease_ms <= MAX_LEASE_MS:
            raise InvalidRequest("duration", "between 100ms and 7d", item.duration)
        progress, carry = check_progress(item.progress), check_carry(item.carry)
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
            self._tx.add(LeaseCompleted(lease, numbers))
        moved = [self._move(number, said) for _, number, said in self._moves]
        moves.add_all(self._tx, moved)
        for (at, _, _), one in zip(self._moves, moved, strict=True):
            results[at] = SettleResult(results[at].raw_id, one.outcome, one.rule, one.due_ms)  # type: ignore[arg-type]
        self._split_leases()
        return results

    def _move(self, number: int, said: Release | CheckedFail) -> moves.Moved:
        if isinstance(said, Release):
            return moves.release(self._tx, number, keep_order=said.keep_order)
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
        """Deliveries that go on in the same way share a lease; the claim, and with it their token, stays."""
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
