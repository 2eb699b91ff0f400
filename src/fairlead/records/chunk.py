"""A batch of messages as it arrived: columns, stored once.

A chunk covers up to 4,096 numbers from `first` on. A message is *implied* while nothing has happened to it
alone: it has no row of its own, and it is ready unless a lease lists it. `states` has the state of each
message.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate, compress, pairwise, repeat
from operator import add
from typing import TypeVar

import msgspec

from fairlead.records.ids import BLOCK_MASK, BLOCK_SHIFT
from fairlead.records.state import RunRow

T = TypeVar("T")

#: A fairness key, followed by the throttle keys in order.
LaneName = tuple[str, ...]

IMPLIED, OWN, GONE = 0, 1, 2
#: Maps the state of a message to whether the message is gone.
_IS_GONE = bytes([state == GONE for state in range(256)])
_IS_IMPLIED = bytes([state == IMPLIED for state in range(256)])
#: Payloads are stored in pages of about this size. A chunk that fits in one page has them in its head.
PAGE_BYTES = 16 * 1024
#: A larger payload is cut into pieces, each with a page of its own: writing or reading a row holds the
#: interpreter lock for the whole row, and no other caller is served meanwhile.
PIECE_BYTES = 512 * 1024
#: A chunk that several enqueues share does not grow beyond this size, because its payloads are read together.
MAX_SHARED_BYTES = 4 << 20


class Columns(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Messages by column.

    `lane_at[i]` is the index of message i's lane in `lanes`; None if all messages have the only lane. `sizes`
    are those of the payloads. `headers` are packed, and empty for a message without headers. `expires` has
    the ends of the messages' lives, 0 for none; `live_keys` the dedup keys that are remembered while their
    messages live, empty for none; `streams` the names of streams, empty for none.
    """

    lanes: tuple[LaneName, ...]
    lane_at: bytes | list[int] | None
    weights: int | list[int]
    headers: list[bytes] | None
    sizes: Sequence[int]
    expires: list[int] | None = None
    live_keys: list[str] | None = None
    streams: list[str] | None = None

    def size_of(self, index: int) -> int:
        """The bytes that a message counts for in its queue."""
        headers = 0 if self.headers is None else len(self.headers[index])
        return self.sizes[index] + headers

    def message_sizes(self) -> Sequence[int]:
        """`size_of` for all messages."""
        if self.headers is None:
            return self.sizes
        return [*map(add, self.sizes, map(len, self.headers))]

    def total_bytes(self) -> int:
        headers = 0 if self.headers is None else sum(map(len, self.headers))
        return sum(self.sizes) + headers

    def one_by_one(self) -> Iterator[Columns]:
        """Columns of one message each."""
        for at, size in enumerate(self.sizes):
            yield Columns(
                (self.lanes[0 if self.lane_at is None else self.lane_at[at]],),
                None,
                self.weights if isinstance(self.weights, int) else self.weights[at],
                None if self.headers is None else [self.headers[at]],
                [size],
                None if self.expires is None else [self.expires[at]],
                None if self.live_keys is None else [self.live_keys[at]],
                None if self.streams is None else [self.streams[at]],
            )

    def lanes_in_order(self) -> Iterable[LaneName]:
        """The lane of each message."""
        if self.lane_at is None:
            return repeat(self.lanes[0], len(self.sizes))
        return map(self.lanes.__getitem__, self.lane_at)

    def weights_in_order(self) -> Iterable[int]:
        """The weight of each message."""
        return repeat(self.weights, len(self.sizes)) if isinstance(self.weights, int) else self.weights

    def with_more(self, more: Columns) -> Columns:
        """The columns of both, in the lists of this one, which grow in place. `Chunk.grow` says what `more`
        must look like.
        """
        count, added = len(self.sizes), len(more.sizes)
        lane_at, weights = self.lane_at, self.weights
        if lane_at is not None or more.lane_at is not None:
            lane_at = _longer(lane_at, more.lane_at, count, added, 0)
        if weights != more.weights or isinstance(weights, list):
            weights = _listed(weights, count)
            weights.extend(_listed(more.weights, added))
        sizes = self.sizes if isinstance(self.sizes, list) else [*self.sizes]
        sizes.extend(more.sizes)
        return Columns(
            (*self.lanes, *more.lanes) if more.lanes else self.lanes,
            lane_at,
            weights,
            _longer(self.headers, more.headers, count, added, b""),
            sizes,
            _longer(self.expires, more.expires, count, added, 0),
            _longer(self.live_keys, more.live_keys, count, added, ""),
            _longer(self.streams, more.streams, count, added, ""),
        )


def _listed(weights: int | list[int], count: int) -> list[int]:
    return weights if isinstance(weights, list) else [weights] * count


def _longer(
    column: Sequence[T] | None, more: Sequence[T] | None, count: int, added: int, missing: T
) -> list[T] | None:
    """A column of `count` messages, extended by those of `added` more; None if all of them have the value
    `missing`.
    """
    if column is None and more is None:
        return None
    if column is None:
        column = [missing] * count
    elif not isinstance(column, list):
        column = list(column)
    column.extend([missing] * added if more is None else more)
    return column


class Head(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The stored form of a chunk.

    `inline` has the payloads of a chunk that fits in one page. `body` is the number under which its pages are
    stored, if they were staged before the chunk existed or were rewritten; 0 means the chunk's own number.
    """

    first: int
    prefix: bytes
    enqueued_ms: int
    columns: Columns
    inline: Sequence[bytes] | None
    body: int = 0
    #: Whether rows of its lanes lead to it.
    has_runs: bool = False
    #: After an evacuation: the indexes of the messages that it kept. The others have no payloads, headers and
    #: names any more. None: the chunk is as it was enqueued.
    left: list[int] | None = None


class Chunk(msgspec.Struct, gc=False, eq=False):
    """A head in memory, with everything that happened since. Only `Memory.apply` changes it.

    There may be hundreds of thousands of chunks of one message each, so they are not tracked by the garbage
    collector: a chunk refers to nothing that refers back to it.
    """

    queue_id: int
    first: int
    block: int
    body: int
    prefix: bytes
    enqueued_ms: int
    columns: Columns
    count: int
    payload_bytes: int
    #: None: read from their pages on demand.
    payloads: Sequence[bytes] | None
    states: bytearray | None
    #: Whether a row may have the states of its messages. A chunk that is completed at once never had one.
    has_states_row: bool
    #: Whether rows of its lanes lead to it.
    has_runs: bool
    live: int
    #: See `Head`.
    left: list[int] | None
    #: The size on disk of messages that are gone.
    dead_bytes: int
    #: Whether its head is in the table that is not read at open.
    is_cold: bool = False
    #: The bytes that its payloads count for among those that memory keeps beside the heads.
    kept_bytes: int = 0
    #: Messages by stream, filled on first use.
    _by_stream: dict[str, list[int]] | None = None
    _total_bytes: int | None = None
    _page_starts: list[int] | None = None
    #: See `count_in_lanes`; and the index of the first message of each lane.
    _in_lanes: array[int] | None = None
    _lane_firsts: array[int] | None = None
    #: The lane of each message in two bytes, filled by the first search for the messages of a lane.
    _lane_pairs: bytes | None = None

    @classmethod
    def of(
        cls, queue_id: int, head: Head, payloads: Sequence[bytes] | None, states: bytearray | None = None
    ) -> Chunk:
        first, sizes = head.first, head.columns.sizes
        count = live = len(sizes)
        dead_bytes = 0
        if states is not None and (gone := states.count(GONE)):
            live -= gone
            dead_bytes = sum(compress(head.columns.message_sizes(), states.translate(_IS_GONE)))
        return cls(
            queue_id,
            first,
            first >> BLOCK_SHIFT,
            head.body or first,
            head.prefix,
            head.enqueued_ms,
            head.columns,
            count,
            sum(sizes),
            payloads,
            states,
            states is not None,
            head.has_runs,
            live,
            head.left,
            dead_bytes,
        )

    @classmethod
    def of_one(
        cls, queue_id: int, first: int, prefix: bytes, enqueued_ms: int, columns: Columns, payload: bytes
    ) -> Chunk:
        """`of` for one new ready message, without a head."""
        block, size = first >> BLOCK_SHIFT, len(payload)
        return cls(
            queue_id,
            first,
            block,
            first,
            prefix,
            enqueued_ms,
            columns,
            1,
            size,
            [payload],
            None,
            False,
            False,
            1,
            None,
            0,
        )

    @property
    def total_bytes(self) -> int:
        """The size of all messages on disk. Needed once some of them are gone."""
        if self._total_bytes is None:
            self._total_bytes = self.columns.total_bytes()
        return self._total_bytes

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + self.count)

    @property
    def is_inline(self) -> bool:
        """Whether its payloads are stored in its head."""
        return self.payload_bytes <= PAGE_BYTES

    def grow(self, more: Columns, payloads: Sequence[bytes], own: Collection[int]) -> range:
        """Add messages before the chunk is written; `own` of them have rows of their own. Returns their
        numbers.

        `lanes` of `more` has only those that the chunk lacks, and `lane_at` counts from the chunk's first
        lane. The lists of the chunk grow in place, because no other chunk shares them.
        """
        numbers = range(self.first + self.count, self.first + self.count + len(payloads))
        if not isinstance(self.payloads, list):
            self.payloads = list(self.payloads or ())
        self.payloads.extend(payloads)
        if self.states is None and own:
            self.states = bytearray(self.count)
        if self.states is not None:
            self.states.extend([OWN if number in own else IMPLIED for number in numbers])
        self.columns = self.columns.with_more(more)
        self.payload_bytes += sum(more.sizes)
        self._total_bytes = self._page_starts = None
        self._lane_pairs = self._in_lanes = None
        self.count += len(numbers)
        self.live += len(numbers)
        return numbers

    def head(self) -> Head:
        inline = self.payloads if self.payload_bytes <= PAGE_BYTES else None
        body = 0 if self.body == self.first else self.body
        return Head(
            self.first, self.prefix, self.enqueued_ms, self.columns, inline, body, self.has_runs, self.left
        )

    def page_starts(self) -> list[int]:
        """Kept, because a chunk that is completed soon deletes the pages that it has just written."""
        if self._page_starts is None:
            self._page_starts = page_starts(self.columns.sizes)
        return self._page_starts

    def lane_of(self, number: int) -> LaneName:
        columns = self.columns
        return columns.lanes[0 if columns.lane_at is None else columns.lane_at[number & BLOCK_MASK]]

    def lanes_of(self, numbers: Sequence[int]) -> Iterable[LaneName]:
        """The lane of each of these messages."""
        lanes, lane_at = self.columns.lanes, self.columns.lane_at
        if lane_at is None:
            return repeat(lanes[0], len(numbers))
        indexes = (
            lane_at if len(numbers) == self.count else [lane_at[number & BLOCK_MASK] for number in numbers]
        )
        return map(lanes.__getitem__, indexes)

    def first_of_lanes(self) -> dict[LaneName, int]:
        """The first number of each lane, computed from the columns, whatever the states of the messages."""
        lanes, lane_at = self.columns.lanes, self.columns.lane_at
        if lane_at is None:
            return {lanes[0]: self.first}
        found: dict[LaneName, int] = {}
        for index, at in enumerate(lane_at):
            found.setdefault(lanes[at], self.first + index)
        return found

    def members_of(self, stream: str) -> list[int]:
        """The messages of a stream, computed from the columns, whatever their states."""
        if self._by_stream is None:
            self._by_stream = {}
            for number, name in enumerate(self.columns.streams or (), self.first):
                if name:
                    self._by_stream.setdefault(name, []).append(number)
        return self._by_stream.get(stream, [])

    def in_stream(self, stream: str, start: int, end: int | None) -> list[int]:
        """Implied messages of the stream with numbers from `start` on and before `end`."""
        members = self.members_of(stream)
        some = members[bisect_left(members, start) :]
        return [
            number for number in some if self.state_of(number) == IMPLIED and (end is None or number < end)
        ]

    def has_implied_of(self, stream: str) -> bool:
        """Whether a message of the stream is implied. The last ones are the last to leave."""
        return any(self.state_of(number) == IMPLIED for number in reversed(self.members_of(stream)))

    def in_lane(
        self, lane: LaneName, start: int, end: int | None, row: RunRow | None, *, is_ordered: bool
    ) -> list[int]:
        """Implied messages of the lane with numbers from `start` on and before `end`.

        Where streams order messages, only those without a stream: the fronts of streams have rows of the
        lane. `row` leads to them and says how many there can be at most, which saves a search; None: the lane
        continues in the middle of the chunk.
        """
        streams, first = self.columns.streams if is_ordered else None, self.first
        if row is not None and row.count == 1 and streams is None and self.state_of(row.number) == IMPLIED:
            # The usual case in a backlog with many lanes.
            return [row.number] if end is None or row.number < end else []
        found: list[int] = []
        for number in self._members_of_lane(lane, max(start, first), row):
            if end is not None and number >= end:
                break
            if self.state_of(number) == IMPLIED and (streams is None or not streams[number - first]):
                found.append(number)
                if row is not None and len(found) == row.count:
                    break
        return found

    def _members_of_lane(self, lane: LaneName, start: int, row: RunRow | None) -> Iterable[int]:
        """The messages of a lane from `start` on, whatever their states."""
        lanes, lane_at = self.columns.lanes, self.columns.lane_at
        if lane_at is None:
            return range(start, self.first + self.count) if lane == lanes[0] else ()
        if row is not None:
            at = row.number & BLOCK_MASK
            return self._search_lane(lane_at, lane_at[at], at)
        return self._search_lane(lane_at, lanes.index(lane), start - self.first) if lane in lanes else ()

    def _search_lane(self, lane_at: bytes | list[int], wanted: int, at: int) -> Iterator[int]:
        if isinstance(lane_at, bytes):
            while (at := lane_at.find(wanted, at)) >= 0:
                yield self.first + at
                at += 1
            return
        # Searching for two bytes takes a fifth of the time of searching in a list.
        if self._lane_pairs is None:
            self._lane_pairs = array("H", lane_at).tobytes()
        pairs, pair, at = self._lane_pairs, wanted.to_bytes(2, sys.byteorder), 2 * at
        while (at := pairs.find(pair, at)) >= 0:
            if not at & 1:
                yield self.first + at // 2
            at += 1

    def count_in_lanes(self, *, is_ordered: bool) -> array[int]:
        """The number of implied messages of each lane; where streams order messages, only those without a
        stream. Counted once, and kept current by `left_lanes`.
        """
        if self._in_lanes is None:
            columns = self.columns
            lane_at: Iterable[int] = bytes(self.count) if columns.lane_at is None else columns.lane_at
            if self.states is not None:
                lane_at = compress(lane_at, self.states.translate(_IS_IMPLIED))
            if is_ordered and columns.streams is not None:
                lane_at = [
                    0 if columns.lane_at is None else columns.lane_at[number - self.first]
                    for number in self.implied()
                    if not columns.streams[number - self.first]
                ]
            counts, lanes = Counter(lane_at), range(len(columns.lanes))
            self._in_lanes = array("H", [counts[at] for at in lanes])
            if columns.lane_at is not None:
                firsts = dict(zip(reversed(columns.lane_at), range(self.count - 1, -1, -1), strict=True))
                self._lane_firsts = array("H", [firsts.get(at, 0) for at in lanes])
        return self._in_lanes

    def left_lanes(self, numbers: Sequence[int], *, is_ordered: bool) -> list[tuple[LaneName, int]]:
        """Lanes whose last implied messages are among these, each with its first number. Called for counted
        messages just before they stop being implied.
        """
        counts, lanes, lane_at = (
            self.count_in_lanes(is_ordered=is_ordered),
            self.columns.lanes,
            self.columns.lane_at,
        )
        if lane_at is None:
            counts[0] -= len(numbers)
            return [] if counts[0] else [(lanes[0], self.first)]
        left: list[int] = []
        for number in numbers:
            at = lane_at[number & BLOCK_MASK]
            counts[at] -= 1
            if not counts[at]:
                left.append(at)
        first, firsts = self.first, self._lane_firsts
        assert firsts is not None, "expected the lanes to be counted"
        return [(lanes[at], first + firsts[at]) for at in left]

    def has_implied(self) -> bool:
        return self.states is None or IMPLIED in self.states

    def weight_of(self, number: int) -> int:
        weights = self.columns.weights
        return weights if isinstance(weights, int) else weights[number & BLOCK_MASK]

    def headers_of(self, number: int) -> bytes:
        headers = self.columns.headers
        return b"" if headers is None else headers[number & BLOCK_MASK]

    def expires_ms(self, number: int) -> int:
        expires = self.columns.expires
        return 0 if expires is None else expires[number & BLOCK_MASK]

    def ends_of_life(self) -> set[int]:
        """All times at which lives of its messages end."""
        return set() if self.columns.expires is None else set(self.columns.expires) - {0}

    def ending(self, end_ms: int) -> list[int]:
        """Messages that are not gone and whose life ends at that time according to the columns."""
        expires, first = self.columns.expires or (), self.first
        if self.states is None:
            return [first + index for index, end in enumerate(expires) if end == end_ms]
        ends = zip(expires, self.states, strict=True)
        return [first + index for index, (end, state) in enumerate(ends) if end == end_ms and state != GONE]

    def live_key(self, number: int) -> str:
        keys = self.columns.live_keys
        return "" if keys is None else keys[number & BLOCK_MASK]

    def stream_of(self, number: int) -> str:
        streams = self.columns.streams
        return "" if streams is None else streams[number & BLOCK_MASK]

    def state_of(self, number: int) -> int:
        return IMPLIED if self.states is None else self.states[number & BLOCK_MASK]

    def implied(self) -> Sequence[int]:
        """Numbers of the messages that have no row of their own and are not gone."""
        numbers = range(self.first, self.first + self.count)
        if self.states is None:
            return numbers
        return [number for number, state in zip(numbers, self.states, strict=True) if state == IMPLIED]

    def with_own_rows(self) -> list[int]:
        return [self.first + index for index, state in enumerate(self.states or b"") if state == OWN]

    def lost(self) -> list[int]:
        """For verification: messages that are not gone, but that an evacuation did not keep."""
        if self.left is None:
            return []
        left = set(self.left)
        return [
            number
            for number in self.numbers
            if number & BLOCK_MASK not in left and self.state_of(number) != GONE
        ]

    def mark(self, numbers: Sequence[int], state: int) -> None:
        """Set the state of messages. `numbers` belong to this chunk, and are sorted."""
        if self.states is None:
            self.states = bytearray(self.count)
        start, count = numbers[0] & BLOCK_MASK, len(numbers)
        if numbers[-1] - numbers[0] + 1 == count:
            self.states[start : start + count] = bytes((state,)) * count
        else:
            for number in numbers:
                self.states[number & BLOCK_MASK] = state


def page_starts(sizes: Sequence[int]) -> list[int]:
    """The first index of each page of payloads. It is computed from the sizes, so it is not stored.

    A large payload is the last one of its page, which has its first piece. Pages with its other pieces
    follow; they begin where they end.
    """
    starts = _starts_of_pages(sizes)
    if max(sizes, default=0) <= PIECE_BYTES:
        return starts
    cut: list[int] = []
    for start, end in pairwise([*starts, len(sizes)]):
        cut += [start, *[end] * (count_pieces(sizes[end - 1]) - 1)]
    return cut


def count_pieces(size: int) -> int:
    return max(1, -(-size // PIECE_BYTES))


def page_sizes(starts: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """The bytes of each page."""
    found: list[int] = []
    left = 0
    for start, end in pairwise([*starts, len(sizes)]):
        if start < end:
            left = sum(sizes[start:end])
        # Only the last payload of a page may be large; the payloads before it are empty then.
        is_cut = start == end or sizes[end - 1] > PIECE_BYTES
        found.append(min(left, PIECE_BYTES) if is_cut else left)
        left -= found[-1]
    return found


def cut_pages(payloads: Sequence[bytes], starts: Sequence[int]) -> Iterator[Sequence[bytes]]:
    """The content of each page."""
    large, at = b"", 0
    for start, end in pairwise([*starts, len(payloads)]):
        if start == end:
            yield [large[at : at + PIECE_BYTES]]
            at += PIECE_BYTES
            continue
        page, large = payloads[start:end], payloads[end - 1]
        if len(large) > PIECE_BYTES:
            page, at = [*page[:-1], large[:PIECE_BYTES]], PIECE_BYTES
        yield page


def _starts_of_pages(sizes: Sequence[int]) -> list[int]:
    ends = [*accumulate(sizes)]
    starts, start, before = [0], 0, 0
    while True:
        end = bisect_right(ends, before + PAGE_BYTES, lo=start)
        if end == start or ends[end - 1] == before:
            # A payload larger than a page shares its page only with the empty payloads before it.
            end += 1
        if end >= len(ends):
            return starts
        starts.append(end)
        start, before = end, ends[end - 1]


def by_chunk(numbers: Sequence[int]) -> Iterable[tuple[int, Sequence[int]]]:
    """(block, its numbers in order) for numbers in any order. There is usually one block, so that case comes
    first.
    """
    if len(numbers) == 1:
        return [(numbers[0] >> BLOCK_SHIFT, numbers)]
    ordered = sorted(numbers)
    if ordered and ordered[0] >> BLOCK_SHIFT == ordered[-1] >> BLOCK_SHIFT:
        return [(ordered[0] >> BLOCK_SHIFT, ordered)]
    return _cut_by_chunk(ordered)


def _cut_by_chunk(ordered: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
    start = 0
    while start < len(ordered):
        block = ordered[start] >> BLOCK_SHIFT
        if ordered[-1] >> BLOCK_SHIFT == block:
            yield block, ordered[start:]
            return
        end = start + 1
        while ordered[end] >> BLOCK_SHIFT == block:
            end += 1
        yield block, ordered[start:end]
        start = end
