"""Deliveries by column, directly from the columns and payloads of their chunks.

The members of a claim are in the order in which keys took their turns, so neighbours are often in different
chunks. Each column is gathered in one pass over the rows, wherever they are. Messages with rows of their own
are few: their changes are applied to the columns afterwards.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from fairlead.model.delivery import Delivery
from fairlead.model.delivery_columns import (
    DeliveryColumns,
    DeliveryPage,
    Runs,
    SharedTerms,
    Span,
    runs_of_queues,
)
from fairlead.model.lane import lane_key, lane_throttle_keys
from fairlead.model.message import MessageState
from fairlead.records.ids import BLOCK_MASK, BLOCK_SHIFT, ids_of_run, packed_ids
from fairlead.records.state import OwnState

if TYPE_CHECKING:
    from fairlead.engine.chunk_messages import ChunkMessages
    from fairlead.records.chunk import Chunk


class Page(DeliveryPage):
    """`stored` has the chunks of the messages by block; `states` the states of messages that changed alone."""

    def __init__(
        self,
        shared: SharedTerms,
        stored: Mapping[int, ChunkMessages],
        numbers: Sequence[int],
        states: Mapping[int, OwnState],
    ) -> None:
        self.shared = shared
        self._stored = stored
        self._numbers = numbers
        self._states = states
        self._ordered = sorted(numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, at: int) -> Delivery: ...
    @overload
    def __getitem__(self, at: slice) -> Page: ...
    def __getitem__(self, at: int | slice) -> Delivery | Page:
        if isinstance(at, slice):
            return Page(self.shared, self._stored, self._numbers[at], self._states)
        number = self._numbers[at]
        stored, state = self._stored[number >> BLOCK_SHIFT], self._states.get(number)
        queue, claim_id, lease_until, source = self.shared
        return Delivery(stored, state, queue, claim_id, lease_until, _times_delivered(state), source, number)

    def columns(self) -> DeliveryColumns:
        count, shared, numbers = len(self), self.shared, self._numbers
        states = [*map(self._states.get, numbers)] if self._states else None
        return gather(
            [self._stored[number >> BLOCK_SHIFT] for number in numbers],
            numbers,
            states,
            runs=[(shared.queue, count)],
            claim_ids=[shared.claim_id] * count,
            lease_untils=[shared.lease_until] * count,
            deliveries=None if states is None else [_times_delivered(state) for state in states],
            sources=None if shared.source is None else [shared.source] * count,
        )

    def spans(self) -> list[Span]:
        return [
            Span(self._stored[first >> BLOCK_SHIFT], first & BLOCK_MASK, last - first + 1)
            for first, last in self._ends()
        ]

    def places(self) -> list[int] | None:
        moved, end = dict[int, int](), 0
        for first, last in self._ends():
            moved[first >> BLOCK_SHIFT] = end - first
            end += last - first + 1
        if end == len(self) and self._ordered == self._numbers:
            return None
        return [moved[number >> BLOCK_SHIFT] + number for number in self._numbers]

    def touched(self) -> list[int]:
        states = self._states
        return [at for at, number in enumerate(self._numbers) if number in states] if states else []

    def _ends(self) -> Iterator[tuple[int, int]]:
        """The first and the last number in each chunk."""
        ordered, at = self._ordered, 0
        while at < len(ordered):
            first = ordered[at]
            at = bisect_right(ordered, first | BLOCK_MASK, at)
            yield first, ordered[at - 1]


def _times_delivered(state: OwnState | None) -> int:
    return 1 if state is None else state.deliveries + 1


def columns_of_list(deliveries: Sequence[Delivery]) -> DeliveryColumns:
    """The columns of deliveries, all of which an engine made."""
    states: list[Any] = [delivery.state for delivery in deliveries]
    stored: list[Any] = [delivery.stored for delivery in deliveries]
    return gather(
        stored,
        [delivery.number for delivery in deliveries],
        states if any(states) else None,
        runs=runs_of_queues([delivery.queue for delivery in deliveries]),
        claim_ids=[delivery.claim_id for delivery in deliveries],
        lease_untils=[delivery.lease_until for delivery in deliveries],
        deliveries=[delivery.deliveries for delivery in deliveries],
        sources=[delivery.source for delivery in deliveries],
    )


def gather(
    stored: Sequence[ChunkMessages],
    numbers: Sequence[int],
    states: Sequence[OwnState | None] | None,
    *,
    runs: Runs,
    claim_ids: Sequence[int],
    lease_untils: Sequence[int],
    deliveries: Sequence[int] | None,
    sources: Sequence[str | None] | None,
) -> DeliveryColumns:
    rows = _Rows(stored, numbers)
    keys, throttle_keys = rows.lanes()
    weights, streams = rows.weights(), rows.streams()
    seqs = None if streams is None else rows.seqs(streams)
    if states is not None:
        throttle_keys = throttle_keys or [()] * len(numbers)
        seqs = seqs or [0] * len(numbers)
        _lay_over(states, keys, throttle_keys, weights, seqs)
    return DeliveryColumns(
        runs,
        rows.ids(),
        claim_ids,
        lease_untils,
        rows.enqueued_ms(),
        rows.payloads(),
        keys,
        weights,
        rows.headers(),
        throttle_keys,
        streams,
        seqs,
        deliveries,
        sources,
        states,
    )


def _lay_over(
    states: Sequence[MessageState | None],
    keys: list[str],
    throttle_keys: list[tuple[str, ...]],
    weights: list[int],
    seqs: list[int],
) -> None:
    """Apply changes of a redrive in place of the values of the enqueue."""
    for at, state in enumerate(states):
        if state is None:
            continue
        if state.lane:
            keys[at] = lane_key(state.lane)
            throttle_keys[at] = lane_throttle_keys(state.lane)
        weights[at] = state.weight or weights[at]
        if state.redrives:
            seqs[at] = state.seq


class ChunkColumns:
    """The columns of a chunk in the form that a gatherer finds fastest. Readers of a claim keep it from page
    to page.
    """

    __slots__ = ("_chunk", "_ids", "enqueued_ms", "headers", "is_ordered", "keys", "lane_at", "streams",
                 "throttle_keys", "weights")  # fmt: skip

    def __init__(self, chunk: Chunk, *, is_ordered: bool) -> None:
        columns, weights = chunk.columns, chunk.columns.weights
        self._chunk = chunk
        self._ids: Sequence[bytes] = ()
        self.enqueued_ms = chunk.enqueued_ms
        self.is_ordered = is_ordered
        self.keys = [lane[0] for lane in columns.lanes]
        self.throttle_keys = [lane[1:] for lane in columns.lanes]
        self.lane_at: Sequence[int] = bytes(chunk.count) if columns.lane_at is None else columns.lane_at
        self.weights = [weights] * chunk.count if isinstance(weights, int) else weights
        self.headers = columns.headers
        self.streams = columns.streams

    @property
    def ids(self) -> Sequence[bytes]:
        self._ids = self._ids or ids_of_run(self._chunk.prefix, self._chunk.numbers)
        return self._ids

    def all_columns(self, payloads: Sequence[bytes]) -> DeliveryColumns:
        """The columns of all messages of the chunk, whatever their states."""
        numbers, streams = self._chunk.numbers, self.streams
        seqs = None
        if streams is not None and self.is_ordered:
            seqs = [number if stream else 0 for number, stream in zip(numbers, streams, strict=True)]
        has_throttle_keys = any(self.throttle_keys)
        return DeliveryColumns(
            [],
            packed_ids(self._chunk.prefix, numbers),
            None,
            None,
            [self.enqueued_ms] * len(numbers),
            payloads,
            [self.keys[at] for at in self.lane_at],
            self.weights,
            self.headers,
            [self.throttle_keys[at] for at in self.lane_at] if has_throttle_keys else None,
            streams,
            seqs,
            None,
            None,
            None,
        )


class _Rows:
    """Rows of chunks, in the order of their deliveries."""

    def __init__(self, stored: Sequence[ChunkMessages], numbers: Sequence[int]) -> None:
        chunks = {one: one.chunk_columns for one in set(stored)}
        self._stored = stored
        self._chunks = chunks.values()
        self._numbers = numbers
        self._at = [(chunks[one], number & BLOCK_MASK) for one, number in zip(stored, numbers, strict=True)]

    def ids(self) -> bytes:
        ids = {chunk: chunk.ids for chunk in self._chunks}
        return b"".join([ids[chunk][at] for chunk, at in self._at])

    def payloads(self) -> list[bytes]:
        payloads = {one: one.payloads for one in set(self._stored)}
        return [
            payloads[one][number & BLOCK_MASK]
            for one, number in zip(self._stored, self._numbers, strict=True)
        ]

    def enqueued_ms(self) -> list[int]:
        return [chunk.enqueued_ms for chunk, _ in self._at]

    def lanes(self) -> tuple[list[str], list[tuple[str, ...]] | None]:
        keys = [chunk.keys[chunk.lane_at[at]] for chunk, at in self._at]
        if not any(any(chunk.throttle_keys) for chunk in self._chunks):
            return keys, None
        return keys, [chunk.throttle_keys[chunk.lane_at[at]] for chunk, at in self._at]

    def weights(self) -> list[int]:
        return [chunk.weights[at] for chunk, at in self._at]

    def headers(self) -> list[bytes] | None:
        if all(chunk.headers is None for chunk in self._chunks):
            return None
        return [b"" if chunk.headers is None else chunk.headers[at] for chunk, at in self._at]

    def streams(self) -> list[str] | None:
        if all(chunk.streams is None for chunk in self._chunks):
            return None
        return ["" if chunk.streams is None else chunk.streams[at] for chunk, at in self._at]

    def seqs(self, streams: Sequence[str]) -> list[int]:
        """The seqs of messages, which are their numbers where the queue orders streams."""
        return [
            number if stream and chunk.is_ordered else 0
            for (chunk, _), number, stream in zip(self._at, self._numbers, streams, strict=True)
        ]
