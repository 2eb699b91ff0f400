"""Reading a queue without claiming from it, in order of ids, whatever place each message moves to meanwhile.

An id never changes, so whoever reads on from the last id it saw meets a message that is there all the time
exactly once. There is no index of a queue's ids: it would cost every enqueue and every completion, for the
sake of a look. Of a queue with few messages the ids are gathered from its rows, all at one moment; else all
stored messages are walked in order of their ids, without the lock, and those of other queues passed over. So
a page costs at most a look at FEW rows, or, in a large queue, what lies between its messages; reading a large
queue as a whole reads the stored messages once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise
from typing import NamedTuple

from fairlead.broker.core import Core
from fairlead.broker.locate import resting
from fairlead.broker.looking import Whereabouts, info_of
from fairlead.broker.queue_state import QueueState
from fairlead.broker.walk import HasRow, done_pages, leases_of, member_pages, ready_pages, waiting_pages
from fairlead.decide.arguments import check_count
from fairlead.errors import InvalidRequest
from fairlead.model.failure import Progress
from fairlead.model.ids import find_id, show_id
from fairlead.model.lane import lane_key, lane_throttle_keys, row_id, row_size
from fairlead.model.lease import Lease
from fairlead.model.limits import HOLD_MESSAGES, MAX_PAGE, MAX_SPLITS
from fairlead.model.message import HELD, Message, MessageState, unpack_headers
from fairlead.model.views import MessageInfo

#: A queue with so many messages is gathered in one hold of the lock.
FEW = 2000
#: What the bodies of a page may have together; there is always at least one.
PAGE_BYTES = 2 * 1024 * 1024
_MOST_AT_ONCE = 100
#: How many rows are looked at to find even splits.
_SAMPLED = 1_000_000
_FIRST_ID, _BEHIND_ALL = b"\0" * 16, b"\xff" * 17


def browse(
    core: Core, name: str, *, view: str, low: str, high: str, limit: int, after: str
) -> list[MessageInfo]:
    check_count(limit, "limit", most=MAX_PAGE)
    start = max(_bound(low, "low", _FIRST_ID), _bound(after, "after", b"") + b"\0")
    end = _bound(high, "high", _BEHIND_ALL)
    while True:
        with core.step():
            core.check_scan()
            queue = _viewed(core, name, view)
            gathered = _gather(core, queue.queue_id) if _has_few(core, queue) else None
        if gathered is None:
            messages, start = core.store.messages_from(
                queue.record.source_id or queue.queue_id, start, end, limit, PAGE_BYTES
            )
        else:
            few = gathered.sizes(queue.queue_id)
            ids = sorted(raw_id for raw_id in few if start <= raw_id < end)
            messages, read = _read(core, ids[:limit], few)
            start = ids[read] if read < len(ids) else end
        infos = [info for part in _parts(messages) for info in _shown(core, queue, part)]
        # The end is told from a stretch without a message of this queue: an empty answer is the end.
        if infos or start >= end:
            return infos


def browse_splits(core: Core, name: str, view: str, n: int) -> list[tuple[str, str]]:
    """Ranges that together hold everything there is and will be; as even as the ids looked at say, and fewer
    when there are few.
    """
    check_count(n, "n", most=MAX_SPLITS)
    with core.lock:
        queue_id = _viewed(core, name, view).queue_id
    sampled = islice(chain.from_iterable(_pages(core, queue_id)), _SAMPLED)
    ids = sorted({row_id(one.row) for one in sampled})
    cuts = sorted({ids[at] for part in range(1, n) if (at := len(ids) * part // n)})
    bounds = ["", *[show_id(cut) for cut in cuts], ""]
    return [*pairwise(bounds)]


def _viewed(core: Core, name: str, view: str) -> QueueState:
    if view not in ("messages", "dead"):
        raise InvalidRequest("view", '"messages" or "dead"', view)
    queue = core.queue(name)
    return core.by_id[queue.record.dlq_id] if view == "dead" and not queue.is_dead_letter_queue else queue


def _bound(text: object, field: str, unset: bytes) -> bytes:
    raw_id = unset if text == "" else find_id(text)
    if raw_id is None:
        raise InvalidRequest(field, "a full message id, or nothing", text)
    return raw_id


def _has_few(core: Core, queue: QueueState) -> bool:
    counters = core.store.counters(queue.queue_id)
    return counters.messages + counters.done <= FEW


class _Gathered(NamedTuple):
    """Rows of a queue, and the leases of all queues, at one moment."""

    rows: list[HasRow]
    leases: list[Lease]

    def sizes(self, queue_id: int) -> dict[bytes, int]:
        leased = [lease for lease in self.leases if lease.queue_id == queue_id]
        return {row_id(one.row): row_size(one.row) for one in (*self.rows, *leased)}


def _gather(core: Core, queue_id: int) -> _Gathered:
    """Under the lock, so that none is missed on its way from one place to another; the queue has FEW messages
    at most.
    """
    rows: list[HasRow] = [
        *core.store.ready(queue_id, b"", None, FEW),
        *core.store.waiting(queue_id, None, FEW),
        *core.store.done(queue_id, None, HELD, FEW),
    ]
    for name, record in core.store.streams_after(queue_id, "", FEW):
        if record.live > 1:
            rows += [record.first, *core.store.stream_rows(queue_id, name, record.first.seq, FEW)]
    return _Gathered(rows, core.leases.all())


def _pages(core: Core, queue_id: int) -> Iterator[Sequence[HasRow]]:
    """The same with the lock given back after each page: for those who need not know exactly."""
    yield from ready_pages(core, queue_id)
    yield from waiting_pages(core, queue_id)
    yield from done_pages(core, queue_id)
    yield from member_pages(core, queue_id)
    yield leases_of(core, queue_id)


def _read(core: Core, ids: Sequence[bytes], sizes: Mapping[bytes, int]) -> tuple[list[Message], int]:
    """As many as make a page, and how many ids that were."""
    found: list[Message] = []
    size = at = 0
    while at < len(ids) and size < PAGE_BYTES:
        some = _some(ids, at, sizes, PAGE_BYTES - size)
        for message in core.store.messages(some):
            if message is not None:
                found.append(message)
                size += message.size
        at += len(some)
    return found, at


def _some(ids: Sequence[bytes], start: int, sizes: Mapping[bytes, int], room: int) -> Sequence[bytes]:
    """What is read at once: as far as it has room, each of which may be a large one."""
    end = start
    while end < len(ids) and end - start < _MOST_AT_ONCE and room > 0:
        room -= sizes[ids[end]]
        end += 1
    return ids[start:end]


def _parts(messages: list[Message]) -> Iterator[list[Message]]:
    return (messages[start : start + HOLD_MESSAGES] for start in range(0, len(messages), HOLD_MESSAGES))


def _shown(core: Core, queue: QueueState, messages: list[Message]) -> list[MessageInfo]:
    states = core.store.states([message.id for message in messages])
    with core.step():
        core.check_scan()
        part = _Part(core, queue, messages, states)
    return part.infos()


class _Part:
    """Messages of a page and their leases, at one moment, under the lock. What is made of them is made
    without: that takes longer.
    """

    def __init__(
        self, core: Core, queue: QueueState, messages: list[Message], states: list[MessageState | None]
    ) -> None:
        self._queue_id = queue.queue_id
        self._found = [*zip(messages, states, strict=True)]
        # The one it is in, and the one a dead letter came from.
        beside = core.by_id.get(queue.record.source_id)
        self._name = queue.name
        self._lanes: dict[bytes, tuple[str, tuple[str, ...]]] = {}
        self._names = {known.queue_id: known.name for known in (queue, beside) if known is not None}
        self._consumers = core.consumer_book
        self._leased = {
            message.id: self._info(message, state, lease)
            for message, state in self._found
            if (lease := core.leases.find(message.id)) is not None
        }

    def infos(self) -> list[MessageInfo]:
        """Those that are in the queue; one that has gone since it was read is shown as it was read."""
        here, leased = self._queue_id, self._leased
        return [
            (leased and leased.get(message.id))
            or (
                self._untouched(message)
                if state is None and not message.due_ms
                else self._info(message, state, resting(message, state))
            )
            for message, state in self._found
            if (state.queue_id if state else message.queue_id) == here
        ]

    def _untouched(self, message: Message) -> MessageInfo:
        """The short way for a message that is ready as it was enqueued, as most are; it says what `info_of`
        would.
        """
        lane = self._lanes.get(message.lane)
        if lane is None:
            lane = self._lanes[message.lane] = lane_key(message.lane), lane_throttle_keys(message.lane)
        # In the order of the fields: naming them costs a third more.
        return MessageInfo(
            show_id(message.id),
            self._name,
            "ready",
            message.payload,
            unpack_headers(message.headers),
            lane[0],
            message.weight,
            lane[1],
            message.stream or None,
            message.enqueued_ms,
            message.place,
            message.seq,
            0,
            0,
            Progress.NONE,
            b"",
            (),
            0,
            None,
            "",
            None,
            message.expires_ms or None,
            None,
            None,
            None,
            None,
        )

    def _info(self, message: Message, state: MessageState | None, spot: Whereabouts) -> MessageInfo:
        return info_of(message, state, spot, self._names.get, self._consumers)
