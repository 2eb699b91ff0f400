"""Hearing how it went: one batch, one commit, one result per item; a bad item never spoils the others."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fairlead.broker.core import Core
from fairlead.broker.hooking import Answers, FailedTry, ask_on_failure, has_failure_hook
from fairlead.broker.locate import locate
from fairlead.broker.moves import Moves
from fairlead.broker.queue_state import QueueState
from fairlead.broker.room import step_of
from fairlead.broker.states import states_of
from fairlead.decide.arguments import check_consumer
from fairlead.engine.room import STATE_BYTES
from fairlead.errors import InvalidRequest, StoreFull
from fairlead.model.delivery import Delivery
from fairlead.model.durations import to_ms
from fairlead.model.facts import InDone, InLease, Restated
from fairlead.model.handles import check_carry, check_fail, check_progress, read_handle
from fairlead.model.ids import find_id
from fairlead.model.lane import ROW_BYTES, Flag, move_row, row_place, row_stream
from fairlead.model.lease import Lease
from fairlead.model.limits import MAX_BATCH_MESSAGES, MAX_LEASE_MS, MIN_LEASE_MS
from fairlead.model.message import MessageState
from fairlead.model.settle import (
    Complete,
    DeliveryRef,
    Extend,
    Fail,
    LeaseRef,
    Outcome,
    Release,
    Settlement,
    SettleResult,
    Start,
)

_MOVING = (Complete, Fail, Release)


def settle(core: Core, items: Sequence[Settlement]) -> list[SettleResult]:
    if not isinstance(items, Sequence) or isinstance(items, (str, bytes)):
        raise InvalidRequest("items", "a list of Complete, Fail, Release, Extend, Start", type(items))
    if len(items) > MAX_BATCH_MESSAGES:
        raise InvalidRequest("items", f"at most {MAX_BATCH_MESSAGES} in one call", f"{len(items)} items")
    answers = ask_hooks(core, items)
    with core.lock:
        core.check_open()
        results = Batch(core, answers).settle(items)
        commit = core.store.last_commit
    if must_last(items):
        core.confirm(commit)
    return results


def must_last(items: Sequence[Settlement]) -> bool:
    """Whether a power cut must not undo any of it. A start or a mere extension may be lost like the claim it
    belongs to: the message is delivered again, perhaps sooner, and its old holder is fenced off.
    """
    return any(
        type(item) is not Start and (type(item) is not Extend or item.progress or item.carry is not None)
        for item in items
    )


def ask_hooks(core: Core, items: Sequence[Settlement], *, closing: int = 0) -> Answers:
    """What `on_failure` says about the failures of a batch, asked before the lock is taken for good.

    An explicit instruction comes before the hook, and a stale lease is not worth asking about, nor one that
    is pinned unless it is in the claim that is `closing`. Whoever is settled by another call meanwhile is
    fenced off later, answer or not.
    """
    failures = [item for item in items if isinstance(item, Fail) and not item.dead and item.retry_in is None]
    if not failures:
        return {}
    tries: list[FailedTry] = []
    #: The first word on a delivery counts, so the hook is asked about that one only.
    asked: set[bytes] = set()
    with core.lock:
        core.check_open()
        if not any(has_failure_hook(state) for state in core.by_id.values()):
            return {}
        for item in failures:
            try:
                raw_id, claim_id = read_handle(item.delivery)
                said = check_fail(item)
            except InvalidRequest:
                continue
            lease = core.leases.find(raw_id)
            queue = core.by_id.get(lease.queue_id) if lease is not None else None
            if lease is None or lease.claim_id != claim_id or queue is None or not has_failure_hook(queue):
                continue
            if lease.pinned and claim_id != closing:
                continue
            message = core.message(raw_id)
            if message is not None and raw_id not in asked:
                asked.add(raw_id)
                tries.append(
                    FailedTry(
                        lease,
                        queue,
                        message,
                        states_of(core, [lease])[0],
                        said.error,
                        said.reason,
                        said.progress,
                    )
                )
    return ask_on_failure(core, tries)


class Batch:
    """The items of one settle call, decided one after the other against one view of the leases.

    What is in a numbered claim is settled by those who close it, and by nobody else: `closing` is its id.
    """

    def __init__(self, core: Core, answers: Answers, *, closing: int = 0) -> None:
        self.core = core
        self.answers = answers
        self.closing = closing
        self.now_ms = core.now_ms()
        self.monotonic_ms = core.clock.monotonic_ms()
        self.moves = Moves(core, self.now_ms)
        self.retaining = core.retaining
        #: Leases that an earlier item of this batch has ended.
        self.over: set[bytes] = set()
        self.states: dict[bytes, MessageState] = {}
        #: Leases that go on, with what changes about them.
        self.held: dict[bytes, Lease] = {}
        self.extensions: dict[bytes, int] = {}
        self.starts: set[bytes] = set()
        self.restated: set[bytes] = set()
        self.carried_bytes = 0

    def settle(self, items: Sequence[Settlement]) -> list[SettleResult]:
        results = self.decide(items)
        self.commit()
        return results

    def decide(self, items: Sequence[Settlement]) -> list[SettleResult]:
        """In the order given: the first word on a delivery counts."""
        self._load_states(items)
        self._load_streams(items)
        results = [self._complete_held(item) or self._one(item) for item in items]
        rules = self.moves.decide_switches()
        if rules:
            results = [
                msgspec.structs.replace(result, rule=rules.get(result.raw_id, result.rule))
                if result.outcome == "released"
                else result
                for result in results
            ]
        return results

    def _complete_held(self, item: Settlement) -> SettleResult | None:
        """The short way for what nearly every item is; None: go the long way."""
        if type(item) is not Complete or item.progress != 0:
            return None
        handle = item.delivery
        if type(handle) is Delivery:
            raw_id = handle.message.id
        elif type(handle) is LeaseRef and type(handle.raw_id) is bytes and type(handle.claim_id) is int:
            raw_id = handle.raw_id
        else:
            return None
        lease = self.core.leases.find(raw_id)
        if (
            lease is None
            or lease.claim_id != handle.claim_id
            or raw_id in self.over
            or lease.queue_id not in self.core.by_id
        ):
            return None
        if (self.retaining and lease.queue_id in self.retaining) or lease.pinned:
            return None
        self.over.add(raw_id)
        self.moves.complete(lease)
        return SettleResult(raw_id, "completed")

    def _one(self, item: Settlement) -> SettleResult:
        if not isinstance(item, (Complete, Fail, Release, Extend, Start)):
            return SettleResult(
                b"", "invalid", error=f"expected Complete, Fail, Release, Extend or Start, got {item!r}"
            )
        try:
            raw_id, claim_id = read_handle(item.delivery)
        except InvalidRequest as wrong:
            return SettleResult(b"", "invalid", error=str(wrong))
        lease = None if raw_id in self.over else self.core.leases.find(raw_id)
        if lease is None or lease.claim_id != claim_id or lease.queue_id not in self.core.by_id:
            return SettleResult(raw_id, self._why_not(raw_id, lease))
        if lease.pinned and claim_id != self.closing:
            return SettleResult(raw_id, "invalid", error=self.core.consumer_book.why_pinned(lease))
        try:
            return self._settle_held(item, lease)
        except InvalidRequest as wrong:
            return SettleResult(raw_id, "invalid", error=str(wrong))
        except StoreFull as full:
            return SettleResult(raw_id, "store_full", error=str(full))

    def _why_not(self, raw_id: bytes, lease: Lease | None) -> Outcome:
        """Fenced off: "lost_lease" for a message that lives on, "not_found" for one that is unknown or gone."""
        if raw_id not in self.over:
            gone_queue = lease is not None and lease.queue_id not in self.core.by_id
            return (
                "not_found"
                if gone_queue or self.core.message(raw_id) is None or self._is_done(raw_id)
                else "lost_lease"
            )
        return "lost_lease"

    def _is_done(self, raw_id: bytes) -> bool:
        """Completed and kept: to those who settle it is as gone as one that is not."""
        state = self.core.store.states([raw_id])[0]
        return state is not None and state.done_ms != 0

    def _settle_held(self, item: Settlement, lease: Lease) -> SettleResult:
        raw_id, state = lease.id, self._state(lease)
        if isinstance(item, Complete):
            progress = check_progress(item.progress)
            self.over.add(lease.id)
            if lease.queue_id in self.retaining:
                self.moves.retain(InLease(lease), state, self.core.by_id[lease.queue_id], progress)
            else:
                self.moves.complete(lease)
            return SettleResult(raw_id, "completed")
        if isinstance(item, Fail):
            return self._fail(item, lease, state)
        if isinstance(item, Release):
            self.over.add(lease.id)
            outcome, rule = self.moves.release(lease, state, keep_order=item.keep_order)
            return SettleResult(raw_id, outcome, rule)  # type: ignore[arg-type]
        if isinstance(item, Extend):
            return self._extend(item, lease, state)
        self.held[lease.id] = lease
        self.starts.add(lease.id)
        return SettleResult(raw_id, "started", lease_until=lease.expires_ms)

    def _fail(self, item: Fail, lease: Lease, state: MessageState | None) -> SettleResult:
        said = check_fail(item)
        self.over.add(lease.id)
        outcome, rule, due_ms = self.moves.fail(
            lease,
            state,
            reason=said.reason,
            error=said.error,
            progress=said.progress,
            retry_in_ms=said.retry_in_ms,
            dead=said.dead,
            hook=self.answers.get((lease.id, lease.claim_id)),
        )
        return SettleResult(lease.id, outcome, rule, due_ms)  # type: ignore[arg-type]

    def _extend(self, item: Extend, lease: Lease, state: MessageState | None) -> SettleResult:
        config = self.core.by_id[lease.queue_id].config
        lease_ms = config.visibility_timeout_ms if item.duration is None else to_ms(item.duration, "duration")
        if not MIN_LEASE_MS <= lease_ms <= MAX_LEASE_MS:
            raise InvalidRequest("duration", "between 100ms and 7d", item.duration)
        progress, carry = check_progress(item.progress), check_carry(item.carry)
        if carry:
            # The only item that can grow the store without bound: every other one has its room kept by its
            # lease.
            self.core.store.check_room(self.carried_bytes + STATE_BYTES + len(carry))
            self.carried_bytes += STATE_BYTES + len(carry)
        if progress or carry is not None:
            known = state or MessageState(
                lease.queue_id, row_place(lease.row), deliveries=lease.deliveries - 1
            )
            self.states[lease.id] = msgspec.structs.replace(
                known, progress=known.progress | progress, carry=known.carry if carry is None else carry
            )
            self.restated.add(lease.id)
        self.held[lease.id] = lease
        self.extensions[lease.id] = lease_ms
        return SettleResult(lease.id, "extended", lease_until=self.now_ms + lease_ms)

    def commit(self) -> None:
        """The facts carry changed copies of leases; the leases themselves change after the commit."""
        for raw_id, lease in self.held.items():
            if raw_id in self.over:
                continue
            changed = msgspec.structs.replace(lease, started=lease.started or raw_id in self.starts)
            deadline_ms = lease.deadline_ms
            if raw_id in self.extensions:
                changed.expires_ms = self.now_ms + self.extensions[raw_id]
                deadline_ms = self.monotonic_ms + self.extensions[raw_id]
            if raw_id in self.restated:
                changed.row = move_row(lease.row, row_place(lease.row), lease.row[26] | Flag.STATE)
                self.moves.facts.append(Restated(changed, self.states[raw_id]))
            self.moves.change_lease(lease, changed, deadline_ms)
        self.moves.commit()

    def _state(self, lease: Lease) -> MessageState | None:
        return self.states.get(lease.id)

    def _load_states(self, items: Sequence[Settlement]) -> None:
        """One read for all items that need to know what happened before."""
        wanted = []
        for item in items:
            if type(item) is Complete and not self.retaining:
                continue
            try:
                raw_id, claim_id = read_handle(item.delivery)
            except (InvalidRequest, AttributeError):
                continue
            lease = self.core.leases.find(raw_id)
            if lease is None or lease.claim_id != claim_id or not lease.row[26] & Flag.STATE:
                continue
            if type(item) is not Complete or lease.queue_id in self.retaining:
                wanted.append(raw_id)
        for raw_id, state in zip(wanted, self.core.store.states(wanted) if wanted else (), strict=True):
            if state is not None:
                self.states[raw_id] = state

    def _load_streams(self, items: Sequence[Settlement]) -> None:
        """One read for all streams that the items move something in."""
        names: dict[int, list[str]] = {}
        for item in items:
            handle = item.delivery if type(item) in _MOVING else None
            if type(handle) is Delivery and handle.message.stream:
                raw_id = handle.message.id
            elif type(handle) is LeaseRef and type(handle.raw_id) is bytes:
                raw_id = handle.raw_id
            else:
                continue
            lease = self.core.leases.find(raw_id)
            if lease is not None and len(lease.row) > ROW_BYTES and lease.claim_id == handle.claim_id:
                names.setdefault(lease.queue_id, []).append(row_stream(lease.row))
        for queue_id, streams in names.items():
            self.moves.streams.load(queue_id, streams)


def settle_current(
    core: Core, queue_name: str, message_id: str, make: type[Complete] | type[Fail], **fields: object
) -> SettleResult:
    """The unfenced forms by id: act on whatever lease is current at this moment. `error` of a `not_found` says
    where the message is if it is in this queue or its dead letters.
    """
    raw_id = find_id(message_id)
    if raw_id is None:
        raise InvalidRequest("id", "a full message id", message_id)
    with core.lock:
        queue = core.queue(queue_name)
        lease = core.leases.find(raw_id)
        if lease is None or lease.queue_id != queue.queue_id:
            return SettleResult(raw_id, "not_found", error=_where_instead(core, queue, raw_id))
        current = DeliveryRef(message_id, core.leases.claim(lease.claim_id).lease_token)
    return settle(core, [make(current, **fields)])[0]  # type: ignore[arg-type]


def _where_instead(core: Core, queue: QueueState, raw_id: bytes) -> str:
    """Says nothing about messages of other queues: the caller may have no right to know of them."""
    spot = core.leases.find(raw_id) or locate(core, raw_id)
    if spot is None:
        return ""
    if spot.queue_id == queue.record.dlq_id or (
        spot.queue_id == queue.queue_id and queue.is_dead_letter_queue
    ):
        dead_letters = core.by_id[spot.queue_id].name
        return f"it is dead, in queue {dead_letters!r}; retry or redrive brings it back"
    if spot.queue_id != queue.queue_id:
        return ""
    return "it is completed" if isinstance(spot, InDone) else "it waits for a consumer or for its time"


def goodbye(core: Core, consumer: str) -> int:
    """Release everything a consumer holds, below the disk reserve in several commits; what is in a numbered
    claim stays in it.
    """
    check_consumer(consumer)
    with core.lock:
        core.check_open()
        leases = [
            lease
            for lease in core.leases.of_consumer(consumer)
            if lease.queue_id in core.by_id and not lease.pinned
        ]
        step = step_of(core, MAX_BATCH_MESSAGES)
        for start in range(0, len(leases), step):
            release_all(core, leases[start : start + step])
        commit = core.store.last_commit
    core.confirm(commit)
    return len(leases)


def release_all(core: Core, leases: list[Lease]) -> None:
    moves = Moves(core, core.now_ms())
    for lease, state in zip(leases, states_of(core, leases), strict=True):
        moves.release(lease, state)
    moves.commit()
