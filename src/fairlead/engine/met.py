"""Messages as a step of a long read meets them, and the parts that all such reads share.

A step is one short transaction of about STEP_MESSAGES messages; what it met can be used without the lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from fairlead.engine.queue import DEAD_LANE, Queue
from fairlead.engine.transaction import Transaction
from fairlead.model.lane import lane_key, lane_throttle_keys
from fairlead.records.chunk import GONE, Chunk, LaneName
from fairlead.records.ids import BLOCK_MASK, BLOCK_SHIFT, id_of
from fairlead.records.lease import LeaseTerms
from fairlead.records.state import OwnState

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

#: Messages, or chunks, lanes or streams with few of them, that one step visits.
STEP_MESSAGES = 250
#: Items that are sorted at a time: a longer sort would block other threads.
_SORTED_AT_ONCE = 10_000

T = TypeVar("T")


class Met(NamedTuple):
    """A message as it was when a step met it. The chunk has its columns, even if the message is gone since."""

    chunk: Chunk
    number: int
    state: OwnState
    #: The terms of the lease that holds it; None if it is not leased.
    terms: LeaseTerms | None

    def __eq__(self, other: object) -> bool:
        """Whether it is the same message, unchanged. Its chunk may have been read again meanwhile."""
        return isinstance(other, Met) and self[1:] == other[1:]

    def __hash__(self) -> int:
        return hash(self.number)

    @property
    def raw_id(self) -> bytes:
        return id_of(self.chunk.prefix, self.number)

    @property
    def where(self) -> Literal["ready", "waiting", "leased", "done"]:
        """A dead letter is ready in its queue."""
        if self.terms is not None:
            return "leased"
        if self.state.done_ms:
            return "done"
        return "waiting" if self.state.due_ms else "ready"

    @property
    def lane(self) -> LaneName:
        """The lane that the message is in."""
        return DEAD_LANE if self.state.source_queue_id else self.shown_lane

    @property
    def shown_lane(self) -> LaneName:
        """The lane of its life; a dead letter shows its last one."""
        packed = self.state.lane
        return (lane_key(packed), *lane_throttle_keys(packed)) if packed else self.chunk.lane_of(self.number)

    @property
    def size(self) -> int:
        return self.chunk.columns.size_of(self.number & BLOCK_MASK)

    @property
    def expires_ms(self) -> int:
        """When its life ends; 0: never. Time to live ends with the first death, and with completion."""
        has_end = not (self.state.source_queue_id or self.state.redrives or self.state.done_ms)
        return self.chunk.expires_ms(self.number) if has_end else 0


@contextmanager
def step(engine: Engine) -> Iterator[Transaction]:
    """A short transaction of a long read. Raises when long reads must end."""
    with engine.transaction() as tx:
        engine.check_scan()
        yield tx


def meet(tx: Transaction, numbers: Sequence[int]) -> list[Met]:
    """The messages that are still live, in the order of the numbers."""
    tx.bring(numbers)
    memory, found = tx.memory, []
    for number in numbers:
        chunk = memory.chunks.get(number >> BLOCK_SHIFT)
        if chunk is None or number & BLOCK_MASK >= chunk.count or chunk.state_of(number) == GONE:
            continue
        lease = memory.held.get(number)
        found.append(Met(chunk, number, memory.state_of(number), None if lease is None else lease.terms))
    return found


def meet_ids(tx: Transaction, raw_ids: Sequence[bytes]) -> dict[bytes, Met]:
    """The messages that are still live, by id."""
    numbers = tx.find_messages(raw_ids)
    met = {one.number: one for one in meet(tx, list(numbers.values()))}
    return {raw_id: met[number] for raw_id, number in numbers.items()}


def find_queue(tx: Transaction, queue_id: int) -> Queue | None:
    return tx.memory.by_id.get(queue_id)


def bounded(pages: Iterable[list[T]], most: int) -> Iterator[T]:
    """The first messages of a walk. The next page is read on demand."""
    return islice((one for page in pages for one in page), most)


def in_order(items: Iterable[T]) -> Iterator[T]:
    """Distinct items, sorted in parts: outside the lock, and without blocking other threads."""
    parts: list[list[T]] = []
    items = iter(items)
    while part := sorted(islice(items, _SORTED_AT_ONCE)):  # type: ignore[type-var]
        parts.append(part)
    previous: T | None = None
    for item in merge(*parts):  # type: ignore[type-var]
        if item != previous:
            yield item
        previous = item
