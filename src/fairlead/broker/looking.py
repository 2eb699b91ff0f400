"""Looking without touching: counts, peeks, and finding one message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, dropwhile, islice
from typing import TypeVar

from fairlead.broker.consumer_book import ConsumerBook
from fairlead.broker.core import Core
from fairlead.broker.locate import locate, locate_all, resting
from fairlead.broker.walk import (
    HasRow,
    behind_front_pages,
    done_pages,
    leases_of,
    member_pages,
    ready_pages,
    waiting_pages,
)
from fairlead.decide.arguments import check_count
from fairlead.errors import AmbiguousId, InvalidRequest, MessageNotFound
from fairlead.look_budget import Look
from fairlead.model.checks import check_text
from fairlead.model.facts import InDone, InLease, InReady, InStream, InWaiting
from fairlead.model.failure import FailureReason, Progress
from fairlead.model.ids import find_id, show_id
from fairlead.model.lane import (
    Flag,
    key_prefix,
    lane_key,
    lane_throttle_keys,
    row_flags,
    row_id,
    row_place,
    row_size,
)
from fairlead.model.lease import Lease
from fairlead.model.limits import (
    COUNT_LIMIT,
    HOLD_MESSAGES,
    MAX_DEDUP_KEY_BYTES,
    MAX_KEY_BYTES,
    MAX_PAGE,
    SCAN_LIMIT,
)
from fairlead.model.message import (
    HELD,
    Message,
    MessageState,
    lane_of,
    record_bytes,
    seq_of,
    unpack_headers,
    weight_of,
)
from fairlead.model.views import KeyStats, MessageInfo, QueueStats, ThrottleStats

#: How many are listed of those that an id may mean.
_MOST_MATCHES = 5
#: Messages whose records are read together to learn their size; those of one may have 300 KB.
_READ_AT_ONCE = 50
#: An id that begins so names the first live message of a stream.
_STREAM = "stream:"
_HEX = frozenset("0123456789abcdef-")
_UNTOUCHED = MessageState(queue_id=0)

Whereabouts = InReady | InStream | InWaiting | InDone | Lease
Spot = TypeVar("Spot", bound=Whereabouts)


def stats(core: Core, name: str, *, keys: bool, key_limit: int) -> QueueStats:
    check_count(key_limit, "key_limit", most=COUNT_LIMIT)
    throttles = throttle_stats(core)
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
            throttles=tuple(throttles),
            hooks=tuple(core.hooks.stats(queue.queue_id)),
            totals=core.tally.of(queue.queue_id),
        )
        listed = queue.scheduler.keys(key_limit) if keys else ()
        shares = [(key.name, key.weight, key.deficit, queue.scheduler.delivered(key.name)) for key in listed]
    return replace(found, keys=_key_stats(core, queue.queue_id, shares)) if shares else found


def _key_stats(
    core: Core, queue_id: int, shares: Sequence[tuple[str, int, int, int]]
) -> tuple[KeyStats, ...]:
    """The lock is given back after HOLD_MESSAGES rows, and all keys together count no more rows than one call
    may walk through.
    """
    most = min(COUNT_LIMIT, SCAN_LIMIT // len(shares))
    found = []
    for name, weight, deficit, delivered in sorted(shares):
        pending = _count_ready(core, queue_id, key_prefix(name), most + 1)
        found.append(KeyStats(name, weight, deficit, min(pending, most), pending > most, delivered))
    return tuple(found)


def _count_ready(core: Core, queue_id: int, prefix: bytes, most: int) -> int:
    count = 0
    for page in ready_pages(core, queue_id, prefix):
        count += len(page)
        if count >= most:
            break
    return min(count, most)


def throttle_stats(core: Core) -> list[ThrottleStats]:
    """In order of the keys; the lock is given back after each HOLD_MESSAGES of them."""
    with core.lock:
        core.check_open()
        keys = core.buckets.keys()
    keys.sort()
    found = []
    for start in range(0, len(keys), HOLD_MESSAGES):
        with core.step():
            core.check_open()
            now_ms = core.clock.monotonic_ms()
            some = [(key, core.buckets.find(key, now_ms)) for key in keys[start : start + HOLD_MESSAGES]]
            found += [
                ThrottleStats(key, bucket.tokens, bucket.rate, bucket.burst)
                for key, bucket in some
                if bucket is not None
            ]
    return found


def peek(
    core: Core, name: str, *, limit: int, where: str, key: str | None, after: str | None
) -> list[MessageInfo]:
    """Ready messages in (key, place) order, then those behind the fronts of streams; waiting ones in due
    order; done ones as they were done.

    `after` is the id of the last one seen. A page may be shorter than `limit`: all looks share
    MAX_LOOK_BYTES.
    """
    check_count(limit, "limit", most=MAX_PAGE)
    if where not in ("ready", "waiting", "leased", "done"):
        raise InvalidRequest("where", '"ready", "waiting", "leased" or "done"', where)
    prefix = b"" if key is None else key_prefix(check_text(key, "key", MAX_KEY_BYTES))
    with core.lock:
        queue_id = core.queue(name).queue_id
        last = None if after is None else _locate(core, _raw_id(after))
    spots = _peeked(core, queue_id, where, prefix, last, limit)
    with core.looks.look() as look:
        pages = admitted(core, look, spots)
        return [info for part, states in pages for info in _infos(core, queue_id, where, part, states)]


def admitted(
    core: Core, look: Look, spots: Sequence[Spot]
) -> Iterator[tuple[Sequence[Spot], Sequence[MessageState | None]]]:
    """Pages of those that the look has room for, with their records, which are read without the lock."""
    for start in range(0, len(spots), _READ_AT_ONCE):
        core.check_scan()
        some = spots[start : start + _READ_AT_ONCE]
        states = core.store.states([row_id(spot.row) for spot in some])
        count = look.admit(
            [row_size(spot.row) + record_bytes(state) for spot, state in zip(some, states, strict=True)]
        )
        yield some[:count], states[:count]
        if count < len(some):
            return


def _peeked(
    core: Core, queue_id: int, where: str, prefix: bytes, last: Whereabouts | None, limit: int
) -> Sequence[Whereabouts]:
    """Where the first `limit` are that have that prefix, among the SCAN_LIMIT that are looked at."""
    if where == "ready":
        return first_ready(core, queue_id, prefix, last, limit)
    if where == "waiting":
        waiting = waiting_pages(core, queue_id, last if isinstance(last, InWaiting) else None)
        return _first(waiting, prefix, limit)
    if where == "done":
        done = done_pages(core, queue_id, last if isinstance(last, InDone) else None)
        return _first(done, prefix, limit)
    leases = sorted(
        (lease for lease in leases_of(core, queue_id) if lease.lane.startswith(prefix)),
        key=lambda lease: lease.id,
    )
    return [lease for lease in leases if not isinstance(last, Lease) or lease.id > last.id][:limit]


def first_ready(
    core: Core, queue_id: int, prefix: bytes, last: Whereabouts | None, limit: int
) -> list[InReady | InStream]:
    """Ready rows first, then what is ready behind the front of each stream."""
    found: list[InReady | InStream] = []
    behind = behind_front_pages(core, queue_id)
    if isinstance(last, InStream):
        seen = row_id(last.row)
        rest = islice(chain.from_iterable(behind), SCAN_LIMIT)
        after = islice(dropwhile(lambda spot: row_id(spot.row) != seen, rest), 1, None)
        return list(islice((spot for spot in after if spot.lane.startswith(prefix)), limit))
    for page in ready_pages(core, queue_id, prefix, last if isinstance(last, InReady) else None):
        found += page
        if len(found) >= limit:
            return found[:limit]
    return [*found, *_first(behind, prefix, limit - len(found))]


def _first(pages: Iterator[list[Spot]], prefix: bytes, limit: int) -> list[Spot]:
    looked_at = islice(chain.from_iterable(pages), SCAN_LIMIT)
    return list(islice((spot for spot in looked_at if spot.lane.startswith(prefix)), limit))


def _infos(
    core: Core, queue_id: int, where: str, spots: Sequence[Whereabouts], states: Sequence[MessageState | None]
) -> list[MessageInfo]:
    """Bodies are read without the lock. A message that has moved elsewhere since is left out."""
    ids = [row_id(spot.row) for spot in spots]
    messages = core.store.messages(ids)
    with core.step():
        core.check_scan()
        leases = [core.leases.find(message_id) for message_id in ids]
    name_of = names_of(core)
    found = []
    for message, state, lease in zip(messages, states, leases, strict=True):
        now = lease or (resting(message, state) if message is not None else None)
        if message is not None and now is not None and now.queue_id == queue_id and _where(now) == where:
            found.append(info_of(message, state, now, name_of, core.consumer_book))
    return found


def find(core: Core, text: str, queue_name: str | None) -> MessageInfo:
    """By full id, by a prefix that fits one message, or within a queue by the tail, or as `stream:NAME`: the
    first live message of that stream, which the others wait for. Raises `MessageNotFound`, `AmbiguousId`.
    """
    raw_id = find_raw_id(core, text, queue_name)
    with core.lock:
        core.check_open()
        spot = _locate(core, raw_id)
    if spot is None:
        raise MessageNotFound(text)
    with core.looks.look() as look:
        look.admit([row_size(spot.row)])
        with core.lock:
            core.check_open()
            (known,) = locate_all(core, [raw_id])
        if known is None:
            raise MessageNotFound(text)
        spot = known.spot.lease if isinstance(known.spot, InLease) else known.spot
        return info_of(known.message, known.state, spot, names_of(core), core.consumer_book)


def full_id(core: Core, text: str, queue_name: str | None, visible: Callable[[str], bool]) -> str:
    """What `find` would find, among the messages of queues that are visible."""
    if _is_stream(text):
        return show_id(_only(text, _visible(core, _first_of_stream(core, queue_name, text), visible)))
    raw_id = find_id(text)
    digits = _digits(text) if raw_id is None else ""
    low, high = _between(digits) if raw_id is None else (raw_id, raw_id)
    matches: list[bytes] = []
    for _ in range(SCAN_LIMIT // HOLD_MESSAGES):
        with core.step():
            core.check_scan()
            page = core.store.ids_between(low, high, HOLD_MESSAGES)
        matches += _visible(core, page, visible)
        if len(page) < HOLD_MESSAGES or len(matches) >= _MOST_MATCHES or page[-1] >= high:
            break
        low = (int.from_bytes(page[-1], "big") + 1).to_bytes(16, "big")
    if raw_id is None and queue_name is not None:
        matches += _visible(core, _by_tail(core, queue_name, digits), visible)
    return show_id(_only(text, matches))


def queues_of(core: Core, ids: Sequence[bytes]) -> list[str | None]:
    """ "" for what is left of a deleted queue."""
    name_of = names_of(core)
    found: list[str | None] = []
    for start in range(0, len(ids), HOLD_MESSAGES):
        with core.step():
            core.check_open()
            spots = [_locate(core, raw_id) for raw_id in ids[start : start + HOLD_MESSAGES]]
            found += [None if spot is None else name_of(spot.queue_id) or "" for spot in spots]
    return found


def twin(core: Core, queue_name: str, dedup_key: str) -> str | None:
    key = check_text(dedup_key, "dedup_key", MAX_DEDUP_KEY_BYTES)
    with core.lock:
        (known,) = core.store.dedup(core.queue(queue_name).queue_id, [key])
        return (
            show_id(known[0]) if known is not None and (known[1] == 0 or known[1] > core.now_ms()) else None
        )


def find_raw_id(core: Core, text: str, queue_name: str | None) -> bytes:
    """Without the lock: a tail is looked for page by page."""
    if _is_stream(text):
        return _only(text, _first_of_stream(core, queue_name, text))
    raw_id = find_id(text)
    if raw_id is not None:
        return raw_id
    digits = _digits(text)
    with core.lock:
        core.check_open()
        matches = core.store.ids_between(*_between(digits), _MOST_MATCHES)
    if queue_name is not None:
        matches += _by_tail(core, queue_name, digits)
    return _only(text, matches)


def _is_stream(text: object) -> bool:
    return isinstance(text, str) and text.startswith(_STREAM)


def _first_of_stream(core: Core, queue_name: str | None, text: str) -> list[bytes]:
    if queue_name is None:
        raise InvalidRequest("id", f"given with a queue when it begins with {_STREAM}", text)
    name = check_text(text.removeprefix(_STREAM), "stream", MAX_KEY_BYTES)
    with core.lock:
        (record,) = core.store.streams(core.queue(queue_name).queue_id, [name])
    return [] if record is None else [record.first.id]


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
    return [
        raw_id
        for raw_id, name in zip(ids, queues_of(core, ids), strict=True)
        if name is not None and visible(name)
    ]


def _by_tail(core: Core, queue_name: str, digits: str) -> list[bytes]:
    """Walks a bounded part of the queue: leased, ready, waiting, in streams, and done."""
    with core.lock:
        queue_id = core.queue(queue_name).queue_id
    places: list[Iterable[Sequence[HasRow]]] = [
        [leases_of(core, queue_id)],
        ready_pages(core, queue_id),
        waiting_pages(core, queue_id),
        member_pages(core, queue_id),
        done_pages(core, queue_id),
    ]
    walked = (islice(chain.from_iterable(pages), SCAN_LIMIT) for pages in places)
    ids = (row_id(spot.row) for spots in walked for spot in spots)
    return [raw_id for raw_id in ids if raw_id.hex().endswith(digits)]


def _raw_id(text: str) -> bytes:
    raw_id = find_id(text)
    if raw_id is None:
        raise InvalidRequest("after", "a full message id", text)
    return raw_id


def _locate(core: Core, raw_id: bytes) -> Whereabouts | None:
    return core.leases.find(raw_id) or locate(core, raw_id)


def names_of(core: Core) -> Callable[[int], str | None]:
    def name_of(queue_id: int) -> str | None:
        state = core.by_id.get(queue_id)
        return state.name if state else None

    return name_of


def _where(spot: Whereabouts) -> str:
    if isinstance(spot, Lease):
        return "leased"
    return "waiting" if isinstance(spot, InWaiting) else "done" if isinstance(spot, InDone) else "ready"


def place_of(core: Core, message_id: str) -> str:
    """In one word: ready, waiting, held, leased or done; "gone" for a message that no longer exists."""
    with core.lock:
        core.check_open()
        spot = _locate(core, _raw_id(message_id))
    if spot is None:
        return "gone"
    return "held" if isinstance(spot, InWaiting) and spot.due_ms == HELD else _where(spot)


def info_of(
    message: Message,
    touched: MessageState | None,
    spot: Whereabouts,
    name_of: Callable[[int], str | None],
    consumers: ConsumerBook,
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
