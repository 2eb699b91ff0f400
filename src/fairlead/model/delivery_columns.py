"""Deliveries by column, for doors that send them as Arrow batches. No object is made for a row unless a
caller accesses it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

from fairlead.model.delivery import Delivery
from fairlead.model.lane import lane_key, lane_throttle_keys
from fairlead.model.message import Message, MessageState, lane_of, seq_of, weight_of

#: Queue names with their number of rows, in the order of the rows.
Runs = list[tuple[str, int]]


class DeliveryColumns(NamedTuple):
    """Columns of deliveries. A column may be None if all its values are defaults, or if its values belong to
    a claim and there is none.

    `ids` has 16 bytes for each row, without separators. `seqs` are 0 and `streams` empty for messages without
    a stream. `states` are None for messages that did not change since their enqueue. Keys, weights and seqs
    already follow the states.
    """

    runs: Runs
    ids: bytes
    claim_ids: Sequence[int] | None
    lease_untils: Sequence[int] | None
    enqueued_ms: Sequence[int]
    payloads: Sequence[bytes]
    keys: Sequence[str]
    weights: Sequence[int]
    headers: Sequence[bytes] | None
    throttle_keys: Sequence[tuple[str, ...]] | None
    streams: Sequence[str] | None
    seqs: Sequence[int] | None
    deliveries: Sequence[int] | None
    sources: Sequence[str | None] | None
    states: Sequence[MessageState | None] | None

    @property
    def length(self) -> int:
        return len(self.payloads)


class SharedTerms(NamedTuple):
    """The fields that all deliveries of a page share."""

    queue: str
    claim_id: int
    lease_until: int
    source: str | None


class StoredChunk(Protocol):
    """Messages that were enqueued together. Compared by identity."""

    def all_columns(self) -> DeliveryColumns:
        """The columns of all its messages as they were enqueued. Columns that belong to a claim are None."""


class Span(NamedTuple):
    """Consecutive messages of a chunk."""

    stored: StoredChunk
    start: int
    size: int


class DeliveryPage(Sequence[Delivery]):
    """Deliveries that are built on access."""

    shared: SharedTerms

    @abstractmethod
    def columns(self) -> DeliveryColumns: ...

    @abstractmethod
    def spans(self) -> list[Span]:
        """For each chunk, the span from the page's first message in it to its last."""

    @abstractmethod
    def places(self) -> list[int] | None:
        """The position of each message of the page, counted through all spans; None if the page has exactly
        the messages of the spans.
        """

    @abstractmethod
    def touched(self) -> list[int]:
        """The rows of messages that changed since they were enqueued."""


def columns_of(deliveries: Sequence[Delivery]) -> DeliveryColumns:
    if isinstance(deliveries, DeliveryPage):
        return deliveries.columns()
    stored = deliveries[0].stored if deliveries else None
    if stored is None or isinstance(stored, Message):
        return _columns_of_messages(deliveries)
    return stored.columns_of(deliveries)


def runs_of_queues(queues: Sequence[str]) -> Runs:
    return [(queue, len(list(rows))) for queue, rows in groupby(queues)]


def _columns_of_messages(deliveries: Sequence[Delivery]) -> DeliveryColumns:
    messages = [delivery.message for delivery in deliveries]
    states = [delivery.state for delivery in deliveries]
    lanes = [message.lane for message in messages]
    weights = [message.weight for message in messages]
    seqs = [message.seq for message in messages]
    if any(states):
        pairs = list(zip(messages, states, strict=True))
        lanes = [lane_of(*pair) for pair in pairs]
        weights = [weight_of(*pair) for pair in pairs]
        seqs = [seq_of(*pair) for pair in pairs]
    known = {lane: (lane_key(lane), lane_throttle_keys(lane)) for lane in set(lanes)}
    return DeliveryColumns(
        runs_of_queues([delivery.queue for delivery in deliveries]),
        b"".join([message.id for message in messages]),
        [delivery.claim_id for delivery in deliveries],
        [delivery.lease_until for delivery in deliveries],
        [message.enqueued_ms for message in messages],
        [message.payload for message in messages],
        [known[lane][0] for lane in lanes],
        weights,
        [message.headers for message in messages],
        [known[lane][1] for lane in lanes],
        [message.stream for message in messages],
        seqs,
        [delivery.deliveries for delivery in deliveries],
        [delivery.source for delivery in deliveries],
        states if any(states) else None,
    )
