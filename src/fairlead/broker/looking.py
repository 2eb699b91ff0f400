"""Looking without touching: counts, peeks, and finding one message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import dropwhile, islice
from typing import TypeVar

from fairlead.broker.consumer_book import ConsumerBook
from fairlead.broker.core import Core
from fairlead.broker.locate import behind_fronts, locate, stream_members
from fairlead.broker.queue_state import QueueState
from fairlead.broker.requests import check_count
from fairlead.errors import AmbiguousId, InvalidRequest, MessageNotFound
from fairlead.model.checks import check_text
from fairlead.model.facts import InDone, InReady, InStream, InWaiting
from fairlead.model.failure import FailureReason, Progress
from fairlead.model.ids import find_id, show_id
from fairlead.model.lane import Flag, key_prefix, lane_key, lane_throttle_keys, row_flags, row_id, row_place, row_size
from fairlead.model.lease import Lease
from fairlead.model.limits import COUNT_LIMIT, MAX_ACTIVE_LANES, MAX_ANSWER_BYTES, MAX_DEDUP_KEY_BYTES, MAX_KEY_BYTES, SCAN_LIMIT
from fairlead.model.message import HELD, Message, MessageState, lane_of, seq_of, unpack_headers, weight_of
from fairlead.model.views import KeyStats, MessageInfo, QueueStats, ThrottleStats

_PAGE = 1000
#: How many are listed of those that an id may mean.
_MOST_MATCHES = 5
_HEX = frozenset("0123456789abcdef-")
_UNTOUCHED = MessageState(queue_id=0)

Whereabouts = InReady | InStream | InWaiting | InDone | Lease
Spot = TypeVar("Spot", bound=Whereabouts)


def stats(core: Core, name: str, *, keys: bool, key_limit: int) -> QueueStats:
    check_count(key_limit, "key_limit", most=MAX_ACTIVE_LANES)
    with core.lock:
        queue = core.queue(name)
        counters = core.store.counters(queue.queue_id)
        dlq_id = queue.queue_id if queue.is_dead_letter_queue else queue.record.dlq_id
        dead = core.store.counters(dlq_id)
        waiting = {waiter.consumer for waiter in queue.waiters}
        found = QueueStats(
            queue=name,
            ready=counters.ready,
            waiting=counters.waiting,
            leased=counters.leased,
            dead=dead.messages,
            done=counters.done,
            bytes=counters.bytes,
            consumers=len(waiting | core.leases.consumers(queue.queue_id)),
            active_keys=queue.scheduler.active_keys,
            paused=queue.record.paused,
            throttles=_throttle_stats(core),
            hooks=tuple(core.hooks.stats(queue.queue_id)),
            totals=core.tally.of(queue.queue_id),
        )
        listed = islice(queue.scheduler.keys(), key_limit) if keys else ()
        shares = [(key.name, key.weight, key.deficit, queue.scheduler.delivered(key.name)) for key in listed]
    return replace(found, keys=_key_stats(core, queue.queue_id, shares)) if shares else found


def _key_stats(core: Core, queue_id: int, shares: Sequence[tuple[str, int, int, int]]) -> tuple[KeyStats, ...]:
    """The lock is given back after each key, and all keys together count no more rows than one look may: whoever watches a
    queue must not hold it up."""
    most = min(COUNT_LIMIT, SCAN_LIMIT // len(shares))
    found = []
    for name, weight, deficit, delivered in sorted(shares):
        with core.lock:
            core.check_open()
            pending = core.store.count_ready(queue_id, key_prefix(name), most + 1)
        found.append(KeyStats(name, weight, deficit, min(pending, most), pending > most, delivered))
    return tuple(found)


def _throttle_stats(core: Core) -> tuple[ThrottleStats, ...]:
    now_ms = core.clock.monotonic_ms()
    return tuple(ThrottleStats(key, bucket.tokens, bucket.rate, bucket.burst) for key, bucket in sorted(core.buckets.all(now_ms).items()))


def peek(core: Core, name: str, *, limit: int, where: str, key: str | None, after: str | None) -> list[MessageInfo]:
    """Ready messages in (key, place) order, then those behind the fronts of streams; waiting ones in due order; done ones as they were done.

    `after` is the id of the last one seen.
    """
    check_count(limit, "limit", most=10_000)
    if where not in ("ready", "waiting", "leased", "done"):
        raise InvalidRequest("where", '"ready", "waiting", "leased" or "done"', where)
    prefix = b"" if key is None else key_prefix(check_text(key, "key", MAX_KEY_BYTES))
    with core.lock:
        queue = core.queue(name)
        last = None if after is None else _locate(core, _raw_id(after))
        spots: Sequence[Whereabouts]
        if where == "ready":
            spots = _ready_spots(core, queue.queue_id, prefix, last, limit)
        elif where == "waiting":
            waiting = core.store.waiting(queue.queue_id, last if isinstance(last, InWaiting) else None, limit if key is None else SCAN_LIMIT)
            spots = [spot for spot in waiting if spot.lane.startswith(prefix)][:limit]
        elif where == "done":
            done = core.store.done(queue.queue_id, last if isinstance(last, InDone) else None, HELD, limit if key is None else SCAN_LIMIT)
            spots = [spot for spot in done if spot.lane.startswith(prefix)][:limit]
        else:
            leases = sorted((lease for lease in core.leases.of_queue(queue.queue_id) if lease.lane.startswith(prefix)), key=lambda lease: lease.id)
            spots = [lease for lease in leases if not isinstance(last, Lease) or lease.id > last.id][:limit]
        return infos_of(core, within_an_answer(spots))


def within_an_answer(spots: Sequence[Spot]) -> list[Spot]:
    """The first of them, as far as their bodies fit into one answer."""
    size, found = 0, list[Spot]()
    for spot in spots:
        size += row_size(spot.row)
        if found and size > MAX_ANSWER_BYTES:
            break
        found.append(spot)
    return found


def _ready_spots(core: Core, queue_id: int, prefix: bytes, last: Whereabouts | None, limit: int) -> list[InReady | InStream]:
    behind = (spot for spot in islice(behind_fronts(core, queue_id), SCAN_LIMIT) if spot.lane.startswith(prefix))
    if isinstance(last, InStream):
        seen = row_id(last.row)
        return list(islice(islice(dropwhile(lambda spot: row_id(spot.row) != seen, behind), 1, None), limit))
    ready = core.store.ready(queue_id, prefix, last if isinstance(last, InReady) else None, limit)
    return [*ready, *islice(behind, limit - len(ready))]


def find(core: Core, text: str, queue_name: str | None) -> MessageInfo:
    """By full id, by a prefix that fits one message, or by the tail within a queue. Raises `MessageNotFound`, `AmbiguousId`."""
    with core.lock:
        core.check_open()
        spot = _locate(core, find_raw_id(core, text, queue_name))
        infos = infos_of(core, [spot]) if spot is not None else []
        if not infos:
            raise MessageNotFound(text)
        return infos[0]


def full_id(core: Core, text: str, queue_name: str | None, visible: Callable[[str], bool]) -> str:
    """The lock is given back after each page: what an id begins with may be that of many messages that are not visible."""
    raw_id = find_id(text)
    digits = _digits(text) if raw_id is None else ""
    low, high = _between(digits) if raw_id is None else (raw_id, raw_id)
    matches: list[bytes] = []
    for _ in range(SCAN_LIMIT // _PAGE):
        with core.lock:
            core.check_open()
            page = core.store.ids_between(low, high, _PAGE)
            matches += _visible(core, page, visible)
        if len(page) < _PAGE or len(matches) >= _MOST_MATCHES or page[-1] >= high:
            break
        low = (int.from_bytes(page[-1], "big") + 1).to_bytes(16, "big")
    if raw_id is None and queue_name is not None:
        with core.lock:
            matches += _visible(core, _by_tail(core, core.queue(queue_name), digits), visible)
    return show_id(_only(text, matches))


def queues_of(core: Core, ids: Sequence[bytes]) -> list[str | None]:
    """"" for what is left of a deleted queue."""
    name_of = _names(core)
    with core.lock:
        core.check_open()
        spots = [_locate(core, raw_id) for raw_id in ids]
        return [None if spot is None else name_of(spot.queue_id) or "" for spot in spots]


def twin(core: Core, queue_name: str, dedup_key: str) -> str | None:
    key = check_text(dedup_key, "dedup_key", MAX_DEDUP_KEY_BYTES)
    with core.lock:
        (known,) = core.store.dedup(core.queue(queue_name).queue_id, [key])
        return show_id(known[0]) if known is not None and (known[1] == 0 or known[1] > core.clock.now_ms()) else None


def find_raw_id(core: Core, text: str, queue_name: str | None) -> bytes:
    raw_id = find_id(text)
    if raw_id is not None:
        return raw_id
    digits = _digits(text)
    matches = core.store.ids_between(*_between(digits), _MOST_MATCHES)
    if queue_name is not None:
        matches += _by_tail(core, core.queue(queue_name), digits)
    return _only(text, matches)


def _digits(text: object) -> str:
    if not isinstance(text, str) or len(text) < 4 or not _HEX.issuperset(text.lower()):
        raise InvalidRequest("id", "a message id, at least its first or last 4 characters", text)
    return text.lower().replace("-", "")


def _between(digits: str) -> tuple[bytes, bytes]:
    """The first and the last id that begin like this."""
    return bytes.fromhex(digits.ljust(32, "0")[:32]), bytes.fromhex(digits.ljust(32, "f")[:32])


def _only(text: str, matches: Sequence[bytes]) -> bytes:
    found = list(dict.fromkeys(matches))
    if not found:
        raise MessageNotFound(text)
    if len(found) > 1:
        raise AmbiguousId(text, [show_id(match) for match in found[:_MOST_MATCHES]])
    return found[0]


def _visible(core: Core, ids: Sequence[bytes], visible: Callable[[str], bool]) -> list[bytes]:
    name_of = _names(core)
    spots = [(raw_id, _locate(core, raw_id)) for raw_id in ids]
    return [raw_id for raw_id, spot in spots if spot is not None and visible(name_of(spot.queue_id) or "")]


def _by_tail(core: Core, queue: QueueState, digits: str) -> list[bytes]:
    """Walks a bounded part of the queue: leased, ready, waiting, behind the fronts of streams, and done."""
    found = [lease.id for lease in core.leases.of_queue(queue.queue_id) if lease.id.hex().endswith(digits)]
    ready: InReady | None = None
    for _ in range(SCAN_LIMIT // _PAGE):
        rows = core.store.ready(queue.queue_id, b"", ready, _PAGE)
        found.extend(row_id(spot.row) for spot in rows if row_id(spot.row).hex().endswith(digits))
        if len(rows) < _PAGE:
            break
        ready = rows[-1]
    waiting = core.store.waiting(queue.queue_id, None, SCAN_LIMIT)
    found.extend(row_id(spot.row) for spot in waiting if row_id(spot.row).hex().endswith(digits))
    members = islice(stream_members(core, queue.queue_id), SCAN_LIMIT)
    found.extend(member.id for member in members if member.id.hex().endswith(digits))
    done = core.store.done(queue.queue_id, None, HELD, SCAN_LIMIT)
    found.extend(row_id(spot.row) for spot in done if row_id(spot.row).hex().endswith(digits))
    return found


def _raw_id(text: str) -> bytes:
    raw_id = find_id(text)
    if raw_id is None:
        raise InvalidRequest("after", "a full message id", text)
    return raw_id


def _locate(core: Core, raw_id: bytes) -> Whereabouts | None:
    return core.leases.find(raw_id) or locate(core, raw_id)


def infos_of(core: Core, spots: Iterable[Whereabouts]) -> list[MessageInfo]:
    listed = list(spots)
    ids = [spot.id if isinstance(spot, Lease) else row_id(spot.row) for spot in listed]
    states = core.store.states(ids)
    name_of = _names(core)
    return [
        info_of(message, state, spot, name_of, core.consumer_book)
        for spot, message, state in zip(listed, core.messages(ids), states, strict=True)
        if message is not None
    ]


def _names(core: Core) -> Callable[[int], str | None]:
    def name_of(queue_id: int) -> str | None:
        state = core.by_id.get(queue_id)
        return state.name if state else None

    return name_of


def _where(spot: Whereabouts) -> str:
    if isinstance(spot, Lease):
        return "leased"
    return "waiting" if isinstance(spot, InWaiting) else "done" if isinstance(spot, InDone) else "ready"


def info_of(
    message: Message, touched: MessageState | None, spot: Whereabouts, name_of: Callable[[int], str | None], consumers: ConsumerBook
) -> MessageInfo:
    state = touched or _UNTOUCHED
    lease = spot if isinstance(spot, Lease) else None
    due_ms = spot.due_ms if isinstance(spot, InWaiting) else None
    return MessageInfo(
        id=show_id(message.id),
        queue=name_of(spot.queue_id) or "",
        where=_where(spot),
        payload=message.payload,
        headers=unpack_headers(message.headers),
        fairness_key=lane_key(lane_of(message, state)),
        weight=weight_of(message, state),
        throttle_keys=lane_throttle_keys(lane_of(message, state)),
        stream=message.stream or None,
        enqueued_at=message.enqueued_ms,
        place=row_place(spot.row),
        seq=seq_of(message, state),
        attempts=state.attempts,
        deliveries=lease.deliveries if lease else state.deliveries,
        progress=Progress(state.progress),
        carry=state.carry,
        failures=state.failures,
        failures_cut=state.failures_cut,
        reason=FailureReason(state.reason) if state.reason else None,
        rule=state.rule,
        due_at=None if due_ms == HELD else due_ms,
        expires_at=message.expires_ms if row_flags(spot.row) & Flag.TTL else None,
        lease_until=consumers.lease_until(lease) if lease else None,
        consumer=lease.consumer if lease else None,
        source=name_of(state.source_queue_id),
        dead_since=state.dead_since_ms or None,
        done_at=state.done_ms or None,
    )
