"""Handing messages out: pick, lease, commit; then, without the lock, read the bodies."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.broker.core import Core
from fairlead.broker.queue_state import QueueState, Waiter
from fairlead.broker.requests import check_bool, check_consumer, check_limit, check_token
from fairlead.broker.timers import run_queue_due
from fairlead.errors import InvalidRequest
from fairlead.model.delivery import Delivery
from fairlead.model.durations import Duration, to_ms
from fairlead.model.facts import Leased
from fairlead.model.lane import Flag
from fairlead.model.lease import Lease
from fairlead.model.limits import MAX_CLAIM
from fairlead.model.message import Message, MessageState


def claim(
    core: Core, queues: str | Sequence[str], *, limit: int, wait: Duration | None, consumer: str, token: str | None, started: bool
) -> list[Delivery]:
    """Long-polls up to `wait`; the same token again returns what is still leased under it."""
    names = _names(queues)
    check_limit(limit)
    consumer, token = check_consumer(consumer), check_token(token)
    check_bool(started, "started")
    wait_ms = 0 if wait is None else to_ms(wait, "wait")
    with core.lock:
        core.check_open()
        # Leases of a deleted queue stay until the steps of the deletion come to them.
        leases = [lease for lease in core.leases.under_token(token) if lease.queue_id in core.by_id] if token else []
        if not leases:
            leases = _claim_or_wait(core, names, limit, wait_ms, consumer, token, started)
        parts = _parts(core, leases)
    return _deliveries(core, parts)


def _names(queues: str | Sequence[str]) -> list[str]:
    if isinstance(queues, str):
        return [queues]
    if not isinstance(queues, Sequence) or not queues or not all(isinstance(name, str) for name in queues):
        raise InvalidRequest("queue", "a queue name or a list of them", queues)
    return list(dict.fromkeys(queues))


def _claim_or_wait(core: Core, names: list[str], limit: int, wait_ms: int, consumer: str, token: str, started: bool) -> list[Lease]:
    leases = _claim_now(core, names, limit, consumer, token, started)
    if leases or not wait_ms:
        return leases
    deadline_ms = core.clock.monotonic_ms() + wait_ms
    waiter = Waiter(core.lock, consumer)
    listening: list[QueueState] = []
    try:
        while not leases:
            # Looked up each time: a queue may be deleted, or its state rebuilt, while we wait.
            for state in listening:
                state.waiters.remove(waiter)
            listening = [core.queue(name) for name in names]
            for state in listening:
                state.waiters.append(waiter)
            now_ms = core.clock.monotonic_ms()
            if now_ms >= deadline_ms:
                break
            waiter.woken = False
            core.clock.wait(waiter.condition, min([deadline_ms, *_token_times(core, listening, consumer)]) - now_ms)
            leases = _claim_now(core, names, limit, consumer, token, started)
        return leases
    finally:
        for state in listening:
            state.waiters.remove(waiter)
            if waiter.woken and state.scheduler.active_keys:
                # It was woken for this queue, and took from another or gave up: the next one must not sleep beside a message.
                state.wake_waiters(1)


def _token_times(core: Core, queues: list[QueueState], consumer: str) -> list[int]:
    """When parked lanes may get their next token; only where this consumer could take it, or it would look again for ever."""
    times = [state.scheduler.next_wake_ms() for state in queues if not state.closed_to_claims and _allowance(core, state, consumer) > 0]
    return [at_ms for at_ms in times if at_ms is not None]


def _allowance(core: Core, queue: QueueState, consumer: str) -> int:
    """How many more messages of the queue the consumer may hold."""
    most = queue.config.max_unsettled_per_consumer
    return most - core.leases.unsettled(consumer, queue.queue_id) if most else MAX_CLAIM


def _claim_now(core: Core, names: list[str], limit: int, consumer: str, token: str, started: bool) -> list[Lease]:
    """Several queues are tried in the order given, each next claim of this broker starting one further."""
    leases: list[Lease] = []
    states = [core.queue(name) for name in names]
    if len(states) > 1:
        core.claim_turn += 1
        at = core.claim_turn % len(states)
        states = states[at:] + states[:at]
    for state in states:
        run_queue_due(core, state)
        if state.closed_to_claims:
            continue
        most = min(limit - len(leases), _allowance(core, state, consumer))
        if most > 0:
            leases.extend(_lease(core, state, most, consumer, token, started))
        if len(leases) >= limit:
            break
    return leases


def _lease(core: Core, queue: QueueState, limit: int, consumer: str, token: str, started: bool) -> list[Lease]:
    monotonic_ms = core.clock.monotonic_ms()
    picked = queue.scheduler.take(limit, monotonic_ms)
    if not picked:
        return []
    now_ms, lease_ms, queue_id = core.clock.now_ms(), queue.config.visibility_timeout_ms, queue.queue_id
    granted = core.next_claim(consumer, token, now_ms, lease_ms)
    claim_id, expires_ms, deadline_ms = granted.claim_id, now_ms + lease_ms, monotonic_ms + lease_ms
    leases = [Lease(queue_id, lane, row, claim_id, expires_ms, 1, started, deadline_ms, consumer) for lane, row in picked]
    again = [lease for lease in leases if lease.row[26] & Flag.STATE]
    if again:
        for lease, state in zip(again, core.store.states([lease.id for lease in again]), strict=True):
            lease.deliveries = (state.deliveries if state else 0) + 1
    core.commit([Leased(granted, leases)])
    core.leases.add(granted, leases)
    core.wake_timer(expires_ms)
    return leases


_Part = tuple[Lease, str, str | None, int, Message | None, MessageState | None]


def _parts(core: Core, leases: list[Lease]) -> list[_Part]:
    """What a delivery is made of, as far as memory has it; taken under the lock, because leases change."""
    parts: list[_Part] = []
    find, queues = core.bodies.find, core.by_id
    names: dict[int, tuple[str, str | None]] = {}
    for lease in leases:
        queue_id = lease.queue_id
        if queue_id not in names:
            record = queues[queue_id].record
            source = queues.get(record.source_id)
            names[queue_id] = record.name, source.name if source else None
        name, source_name = names[queue_id]
        parts.append((lease, name, source_name, lease.expires_ms, find(lease.row[8:24]), None))
    return parts


def _deliveries(core: Core, parts: list[_Part]) -> list[Delivery]:
    missing = [part[0].row[8:24] for part in parts if part[4] is None]
    read = iter(core.store.messages(missing)) if missing else iter(())
    touched = [part[0].row[8:24] for part in parts if part[0].row[26] & Flag.STATE]
    states = iter(core.store.states(touched)) if touched else iter(())
    deliveries = []
    for lease, queue, source, lease_until, held, _ in parts:
        message = held if held is not None else next(read)
        state = next(states) if lease.row[26] & Flag.STATE else None
        if message is not None:
            # None: its queue was deleted or purged between the lease and here; there is nothing to deliver.
            deliveries.append(Delivery(message, state, queue, lease.claim_id, lease_until, lease.deliveries, source))
    return deliveries
