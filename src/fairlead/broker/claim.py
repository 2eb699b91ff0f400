"""Handing messages out: pick, lease, commit; then, without the lock, read the bodies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from fairlead.broker.core import Core
from fairlead.broker.queue_state import QueueState, Waiter
from fairlead.broker.room import leases_that_fit
from fairlead.broker.runs import followers_of
from fairlead.broker.states import states_of
from fairlead.broker.timers import expire_leases, run_queue_due
from fairlead.decide.arguments import check_bool, check_consumer, check_count, check_token
from fairlead.errors import InvalidRequest, Unavailable
from fairlead.model.delivery import Delivery
from fairlead.model.durations import Duration, to_ms
from fairlead.model.facts import Leased
from fairlead.model.lane import ROW_BYTES, Flag, row_size
from fairlead.model.lease import Lease
from fairlead.model.limits import MAX_ANSWER_BYTES, MAX_CLAIM
from fairlead.model.message import MessageState

Taken = TypeVar("Taken")


def claim(
    core: Core,
    queues: str | Sequence[str],
    *,
    limit: int,
    wait: Duration | None,
    consumer: str,
    token: str | None,
    started: bool,
    max_per_stream: int,
) -> list[Delivery]:
    """Long-polls up to `wait`; the same token again returns what is still leased under it."""
    names, order = check_claim(queues, limit, consumer, token, started, max_per_stream)
    wait_ms = 0 if wait is None else to_ms(wait, "wait")
    with core.lock:
        core.check_open()
        # Leases of a deleted queue stay until the steps of the deletion come to them.
        leases = (
            [lease for lease in core.leases.under_token(order.token) if lease.queue_id in core.by_id]
            if order.token
            else []
        )
        if not leases:
            leases = (
                take_or_wait(core, names, order.consumer, wait_ms, lambda: claim_now(core, names, order))
                or []
            )
        handout = Handout(core, leases)
    return handout.deliveries(core)


class Order(NamedTuple):
    """What a claim asks for."""

    limit: int
    consumer: str
    token: str
    started: bool
    max_per_stream: int


def check_claim(
    queues: str | Sequence[str],
    limit: int,
    consumer: str,
    token: str | None,
    started: bool,
    max_per_stream: int,
) -> tuple[list[str], Order]:
    check_bool(started, "started")
    runs = check_count(max_per_stream, "max_per_stream", most=MAX_CLAIM)
    return _names(queues), Order(
        check_count(limit, "limit", most=MAX_CLAIM),
        check_consumer(consumer),
        check_token(token),
        started,
        runs,
    )


def _names(queues: str | Sequence[str]) -> list[str]:
    if isinstance(queues, str):
        return [queues]
    if not isinstance(queues, Sequence) or not queues or not all(isinstance(name, str) for name in queues):
        raise InvalidRequest("queue", "a queue name or a list of them", queues)
    return list(dict.fromkeys(queues))


def take_or_wait(
    core: Core, names: list[str], consumer: str, wait_ms: int, take: Callable[[], Taken | None]
) -> Taken | None:
    """What `take` gives, now or as soon as it gives anything, tried again whenever these queues may have
    something for the consumer.
    """
    taken = take()
    if taken or not wait_ms or core.waits_over:
        return taken
    deadline_ms = core.clock.monotonic_ms() + wait_ms
    waiter = Waiter(core.lock, consumer)
    listening: list[QueueState] = []
    try:
        while not taken:
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
            core.clock.wait(
                waiter.condition, min([deadline_ms, *_token_times(core, listening, consumer)]) - now_ms
            )
            if core.waits_over:
                break
            taken = take()
        return taken
    finally:
        for state in listening:
            state.waiters.remove(waiter)
            if waiter.woken and state.scheduler.active_keys:
                # It was woken for this queue, and took from another or gave up: the next one must not sleep
                # beside a message.
                state.wake_waiters(1)


def _token_times(core: Core, queues: list[QueueState], consumer: str) -> list[int]:
    """When parked lanes may get their next token; only where this consumer could take it, or it would look
    again for ever.
    """
    times = [
        state.scheduler.next_wake_ms()
        for state in queues
        if not state.closed_to_claims and allowance(core, state, consumer) > 0
    ]
    return [at_ms for at_ms in times if at_ms is not None]


def allowance(core: Core, queue: QueueState, consumer: str) -> int:
    """How many more messages of the queue the consumer may hold."""
    most = queue.config.max_unsettled_per_consumer
    return most - core.leases.unsettled(consumer, queue.queue_id) if most else MAX_CLAIM


def claim_now(core: Core, names: list[str], order: Order, *, expire: bool = True) -> list[Lease]:
    """Several queues are tried in the order given, each next claim of this broker starting one further.

    `expire=False` leaves leases that have run out to the timer.
    """
    leases: list[Lease] = []
    states = [core.queue(name) for name in names]
    if len(states) > 1:
        core.claim_turn += 1
        at = core.claim_turn % len(states)
        states = states[at:] + states[:at]
    # For all queues before any is picked from: what is due in one may make a message of another ready.
    if expire:
        expire_leases(core)
    for state in states:
        run_queue_due(core, state, expire=False)
    for state in states:
        try:
            leases.extend(_claim_of(core, state, order, order.limit - len(leases)))
        except Unavailable:
            if not leases:
                raise
            # What is leased is handed out: otherwise it would count as tried and failed when its time is up.
            break
        if len(leases) >= order.limit or (
            len(states) > 1 and _size_of([lease.row for lease in leases]) >= MAX_ANSWER_BYTES
        ):
            break
    return leases


def _claim_of(core: Core, queue: QueueState, order: Order, limit: int) -> list[Lease]:
    most = 0 if queue.closed_to_claims else min(limit, allowance(core, queue, order.consumer))
    return _lease(core, queue, leases_that_fit(core, most), order) if most > 0 else []


def _lease(core: Core, queue: QueueState, limit: int, order: Order) -> list[Lease]:
    monotonic_ms = core.clock.monotonic_ms()
    consumer, started = order.consumer, order.started
    run: _Picked = []
    if order.max_per_stream > 1 and queue.config.ordering != "none":
        picked, run = _pick_runs(core, queue, limit, order.max_per_stream, monotonic_ms)
    else:
        picked = _pick(core, queue, limit, monotonic_ms)
    if not picked:
        return []
    now_ms, lease_ms, queue_id = core.now_ms(), queue.config.visibility_timeout_ms, queue.queue_id
    granted = core.next_claim(consumer, order.token, now_ms, lease_ms)
    claim_id, expires_ms, deadline_ms = granted.claim_id, now_ms + lease_ms, monotonic_ms + lease_ms
    leases = [
        Lease(queue_id, lane, row, claim_id, expires_ms, 1, started, deadline_ms, consumer)
        for lane, row in picked
    ]
    followers = [
        Lease(queue_id, lane, row, claim_id, expires_ms, 1, started, deadline_ms, consumer)
        for lane, row in run
    ]
    fronts, leases = leases, leases + followers
    if any_touched(leases):
        for lease, state in zip(leases, states_of(core, leases), strict=True):
            lease.deliveries = (state.deliveries if state else 0) + 1
    core.commit([Leased(granted, fronts, followers)])
    core.leases.add(granted, leases)
    core.wake_timer(expires_ms)
    return _in_runs(leases) if followers else leases


_Picked = list[tuple[bytes, bytes]]
#: How many are picked at a time where bodies may be large: so many of the largest are too much by less than
#: another gigabyte.
_FEW = 64


def _pick(core: Core, queue: QueueState, limit: int, now_ms: int) -> _Picked:
    """What has been picked is paid for, so a claim that may grow too large is picked a little at a time."""
    if limit <= _FEW or core.store.counters(queue.queue_id).bytes <= MAX_ANSWER_BYTES:
        return queue.scheduler.take(limit, now_ms)
    picked: _Picked = []
    size = 0
    while len(picked) < limit and size < MAX_ANSWER_BYTES:
        more = queue.scheduler.take(min(_FEW, limit - len(picked)), now_ms)
        if not more:
            break
        picked += more
        size += _size_of([row for _, row in more])
    return picked


def _size_of(rows: list[bytes]) -> int:
    return sum([row_size(row) for row in rows])


def _pick_runs(
    core: Core, queue: QueueState, limit: int, max_per_stream: int, now_ms: int
) -> tuple[_Picked, _Picked]:
    """Heads by their turn, and behind each head of a stream the messages that may follow it in the same
    claim.
    """
    picked: _Picked = []
    followers: _Picked = []
    size = 0
    while len(picked) + len(followers) < limit and size < MAX_ANSWER_BYTES:
        # One at a time: a run uses up room that the next turn must not count on.
        head = queue.scheduler.take(1, now_ms)
        if not head:
            break
        picked += head
        size += row_size(head[0][1])
        if len(head[0][1]) > ROW_BYTES:
            room = min(max_per_stream - 1, limit - len(picked) - len(followers))
            run = followers_of(core, queue, head[0], room, MAX_ANSWER_BYTES - size, now_ms)
            followers += run
            size += _size_of([row for _, row in run])
    return picked, followers


def _in_runs(leases: list[Lease]) -> list[Lease]:
    """Each run together and in order, where its head was picked."""
    heads: dict[bytes, list[Lease]] = {}
    for lease in leases:
        heads.setdefault(lease.row[ROW_BYTES:] or lease.id, []).append(lease)
    return [lease for run in heads.values() for lease in run]


class Handout:
    """Deliveries in the making: what memory has is taken under the lock, because leases change; bodies are
    read without it.
    """

    def __init__(self, core: Core, leases: list[Lease]) -> None:
        self._made: list[Delivery | None] = []
        self._unread: list[tuple[int, bytes, MessageState | None, str, int, int, int, str | None]] = []
        states = (
            dict(zip([lease.id for lease in leases], states_of(core, leases), strict=True))
            if any_touched(leases)
            else {}
        )
        find, made = core.bodies.find, self._made
        queue_id = -1
        for lease in leases:
            if lease.queue_id != queue_id:
                queue_id = lease.queue_id
                name, source = _names_of(core, queue_id)
            message_id = lease.row[8:24]
            message, state = find(message_id), states.get(message_id)
            if message is None:
                self._unread.append(
                    (
                        len(made),
                        message_id,
                        state,
                        name,
                        lease.claim_id,
                        lease.expires_ms,
                        lease.deliveries,
                        source,
                    )
                )
                made.append(None)
            else:
                made.append(
                    Delivery(message, state, name, lease.claim_id, lease.expires_ms, lease.deliveries, source)
                )

    def deliveries(self, core: Core) -> list[Delivery]:
        if self._unread:
            messages = core.store.messages([unread[1] for unread in self._unread])
            for (at, _, state, name, claim_id, lease_until, count, source), message in zip(
                self._unread, messages, strict=True
            ):
                if message is not None:
                    self._made[at] = Delivery(message, state, name, claim_id, lease_until, count, source)
        # None: its queue was deleted or purged between the lease and here; there is nothing to deliver.
        return [delivery for delivery in self._made if delivery is not None]


def any_touched(leases: list[Lease]) -> bool:
    return any([lease.row[26] & Flag.STATE for lease in leases])  # noqa: C419 - a generator costs three times as much


def _names_of(core: Core, queue_id: int) -> tuple[str, str | None]:
    record = core.by_id[queue_id].record
    source = core.by_id.get(record.source_id)
    return record.name, source.name if source else None
