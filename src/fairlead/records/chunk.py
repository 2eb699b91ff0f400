"""A batch of messages as it came: columns, stored once.

A chunk covers up to 4,096 numbers from `first` on. A message is *implied* while nothing has happened to it
alone: it has no row, and it is ready unless a lease lists it. `states` says what became of each message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from fairlead.records.ids import BLOCK_MASK, BLOCK_SHIFT

#: A fairness key and, in order, the throttle keys.
LaneName = tuple[str, ...]

IMPLIED, OWN, GONE = 0, 1, 2
#: Payloads are stored in pages of about this size; a chunk that fits in one page has them in its head.
PAGE_BYTES = 16 * 1024


class Columns(msgspec.Struct, frozen=True, array_like=True):
    """Messages by column. `lane_at[i]` is the index of message i's lane in `lanes`; None: all messages have
    the only lane. `sizes` are those of the payloads; `headers` are packed, empty for a message without any.
    `expires` are the ends of their lives, 0 for none; `live_keys` the dedup keys that are remembered as long as
    their messages live, empty for none; `streams` the names of streams, empty for none.
    """

    lanes: tuple[LaneName, ...]
    lane_at: bytes | list[int] | None
    weights: int | list[int]
    headers: list[bytes] | None
    sizes: list[int]
    expires: list[int] | None = None
    live_keys: list[str] | None = None
    streams: list[str] | None = None

    def size_of(self, index: int) -> int:
        """What a message counts for among the bytes of its queue."""
        headers = 0 if self.headers is None else len(self.headers[index])
        return self.sizes[index] + headers

    def total_bytes(self) -> int:
        headers = 0 if self.headers is None else sum(map(len, self.headers))
        return sum(self.sizes) + headers


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The stored form of a chunk. `inline` has the payloads of a chunk that fits in one page. `body` is the number
    that its pages are stored under, if they were staged before the chunk was there; 0: its own.
    """

    first: int
    prefix: bytes
    enqueued_ms: int
    columns: Columns
    inline: Sequence[bytes] | None
    body: int = 0
    #: Whether its lanes have rows that lead to it.
    has_runs: bool = False


class Chunk:
    """A head in memory, with what happened since. `Memory.apply` alone changes it."""

    __slots__ = (
        "block",
        "body",
        "columns",
        "count",
        "enqueued_ms",
        "first",
        "has_runs",
        "has_states_row",
        "is_cold",
        "is_inline",
        "kept_bytes",
        "live",
        "payloads",
        "prefix",
        "queue_id",
        "states",
    )

    def __init__(
        self,
        queue_id: int,
        head: Head,
        payloads: Sequence[bytes] | None,
        states: bytearray | None = None,
    ) -> None:
        self.queue_id = queue_id
        self.first = head.first
        self.block = head.first >> BLOCK_SHIFT
        self.body = head.body or head.first
        self.prefix = head.prefix
        self.enqueued_ms = head.enqueued_ms
        self.columns = head.columns
        self.count = len(head.columns.sizes)
        self.is_inline = sum(head.columns.sizes) <= PAGE_BYTES
        #: None: they are read from their pages when they are wanted.
        self.payloads = payloads
        #: What its payloads count for among those that memory keeps beside the heads.
        self.kept_bytes = 0
        self.states = states
        #: Whether a row may tell what became of its messages; a chunk that is completed at once never had one.
        self.has_states_row = states is not None
        #: Whether its head is in the table that is not read at open, and whether its lanes have rows there.
        self.is_cold = False
        self.has_runs = head.has_runs
        self.live = self.count if states is None else self.count - states.count(GONE)

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + self.count)

    def head(self) -> Head:
        inline = self.payloads if self.is_inline else None
        body = 0 if self.body == self.first else self.body
        return Head(self.first, self.prefix, self.enqueued_ms, self.columns, inline, body, self.has_runs)

    def page_starts(self) -> list[int]:
        return page_starts(self.columns.sizes)

    def lane_of(self, number: int) -> LaneName:
        columns = self.columns
        return columns.lanes[0 if columns.lane_at is None else columns.lane_at[number & BLOCK_MASK]]

    def first_of_lanes(self) -> dict[LaneName, int]:
        """The first number of each lane. It follows from the columns, whatever became of the messages."""
        lanes, lane_at = self.columns.lanes, self.columns.lane_at
        if lane_at is None:
            return {lanes[0]: self.first}
        found: dict[LaneName, int] = {}
        for index, at in enumerate(lane_at):
            found.setdefault(lanes[at], self.first + index)
        return found

    def in_lane(self, lane: LaneName, start: int, end: int | None) -> list[int]:
        """Implied messages of the lane with numbers from `start` on and before `end`."""
        lanes, lane_at = self.columns.lanes, self.columns.lane_at
        if lane not in lanes:
            return []
        wanted = lanes.index(lane)
        return [
            number
            for number in self.implied()
            if number >= start
            and (end is None or number < end)
            and (lane_at is None or lane_at[number - self.first] == wanted)
        ]

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

    def mark(self, numbers: Sequence[int], state: int) -> None:
        """`numbers` are of this chunk, and sorted."""
        if self.states is None:
            self.states = bytearray(self.count)
        start, count = numbers[0] & BLOCK_MASK, len(numbers)
        if numbers[-1] - numbers[0] + 1 == count:
            self.states[start : start + count] = bytes((state,)) * count
        else:
            for number in numbers:
                self.states[number & BLOCK_MASK] = state


def page_starts(sizes: Sequence[int]) -> list[int]:
    """The first index of each page of payloads. It follows from the sizes, so it is not stored."""
    starts, used = [0], 0
    for index, size in enumerate(sizes):
        if used and used + size > PAGE_BYTES:
            starts.append(index)
            used = 0
        used += size
    return starts


def by_chunk(numbers: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
    """(block, its numbers in order) for numbers in any order. Nearly always there is one block, so that case
    comes first.
    """
    ordered = sorted(numbers)
    start = 0
    while start < len(ordered):
        block = ordered[start] >> BLOCK_SHIFT
        if ordered[-1] >> BLOCK_SHIFT == block:
            yield block, ordered[start:] if start else ordered
            return
        end = start + 1
        while ordered[end] >> BLOCK_SHIFT == block:
            end += 1
        yield block, ordered[start:end]
        start = end
