"""The messages that a verb concerns: met in short transactions, tested by a filter without the lock.

A filter may have a regular expression that takes a fifth of a second for one error, so it is tested between
two transactions. A verb that then changes a message calls `is_unchanged`, which compares the traits that the
filter tested and runs no expression.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fairlead.decide.dead_filter import DeadFilter, DeadLetterTest, Traits, traits_of
from fairlead.engine.met import Met, meet
from fairlead.engine.queue import Queue
from fairlead.engine.transaction import Transaction
from fairlead.engine.walk import Where, walk, walk_streams
from fairlead.model.lane import pack_lane
from fairlead.model.limits import HOLD_BYTES, HOLD_MESSAGES, MAX_ERROR_BYTES, SCAN_LIMIT
from fairlead.model.message import Message, record_bytes
from fairlead.records.state import OwnState

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine


class Candidate(NamedTuple):
    """`traits` are those by which a filter selected the message, None without a filter; `size` is that of its
    records.
    """

    raw_id: bytes
    traits: Traits | None
    size: int = 0

    @classmethod
    def of(cls, met: Met) -> Candidate:
        return cls(met.raw_id, traits_of(met.state), record_bytes(met.state))


class Selection:
    """The messages of a queue and its dead letters that a filter selects: among those that existed when the
    selection began, and among at most 100,000.
    """

    def __init__(
        self, engine: Engine, tx: Transaction, queue: Queue, given: DeadFilter, among: Collection[str]
    ) -> None:
        self._engine = engine
        self._test = DeadLetterTest(given, now_ms=tx.now_ms)
        #: Greater than the number of every existing message.
        self._before = tx.next_block()
        self._walks = list(_walks(queue, among))
        #: Whether there are more messages than the selection tests.
        self.is_cut = False

    def __iter__(self) -> Iterator[Candidate]:
        room = SCAN_LIMIT
        for page in self._pages():
            yield from filter(None, map(self._tested, page[:room]))
            room -= len(page)
            if room < 0:
                self.is_cut = True
                return

    def _pages(self) -> Iterator[list[Met]]:
        for queue_id, where in self._walks:
            if where == "leased":
                yield from _walk_deliveries(self._engine, queue_id)
            else:
                yield from walk(self._engine, queue_id, where)
            if where == "ready":
                yield from walk_streams(self._engine, queue_id, with_fronts=True)

    def _tested(self, met: Met) -> Candidate | None:
        """Called without the lock. Raises when long reads must end, because testing a page may take minutes."""
        self._engine.check_scan()
        is_selected = met.number < self._before and self._test.selects(message_of(met), met.state)
        return Candidate.of(met) if is_selected else None


def _walks(queue: Queue, among: Collection[str]) -> Iterator[tuple[int, Where]]:
    """The places to search, in order. Dead letters are ready or leased in a queue of their own."""
    queue_id, dlq_id = queue.record.queue_id, queue.record.dlq_id
    for found_id in (queue_id, dlq_id) if dlq_id else (queue_id,):
        also_dead = "dead" in among and (found_id == dlq_id or queue.is_dead_letter_queue)
        if "leased" in among or also_dead:
            yield found_id, "leased"
        if "ready" in among or also_dead:
            yield found_id, "ready"
        if "waiting" in among:
            yield found_id, "waiting"


def _walk_deliveries(engine: Engine, queue_id: int) -> Iterator[list[Met]]:
    """Leased messages in the order of their deliveries."""
    with engine.transaction() as tx:
        queue = tx.memory.by_id.get(queue_id)
        leases = [] if queue is None else list(queue.leases.values())
    # Without the lock, because there may be many. Each message is met again below.
    numbers = [number for _, number in engine.memory.in_claim_order(leases)]
    for start in range(0, len(numbers), HOLD_MESSAGES):
        with engine.transaction() as tx:
            page = meet(tx, numbers[start : start + HOLD_MESSAGES])
        yield page


def apply_filter(
    engine: Engine, test: DeadLetterTest, page: Sequence[Met], most: int, max_work: int | None = None
) -> list[tuple[Met, bool]]:
    """Test messages without the lock, and return the first ones with whether the filter selects each.

    It stops once `most` are selected, or one transaction cannot change more. `max_work` bounds the regular
    expressions, in instructions of RE2, but at least one message is tested; without it, the search ends when
    long reads must end.
    """
    found: list[tuple[Met, bool]] = []
    size = selected = 0
    for met in page:
        if max_work is None:
            engine.check_scan()
        is_selected = test.selects(message_of(met), met.state)
        found.append((met, is_selected))
        if is_selected:
            selected, size = selected + 1, size + record_bytes(met.state)
        work = len(found) * test.cost * MAX_ERROR_BYTES
        if selected >= most or size >= HOLD_BYTES or (max_work is not None and work >= max_work):
            break
    return found


def message_of(met: Met) -> Message:
    """The message for a filter, without its payload."""
    chunk, number = met.chunk, met.number
    lane = chunk.lane_of(number)
    return Message(
        id=met.raw_id,
        queue_id=chunk.queue_id,
        lane=pack_lane(lane[0], lane[1:]),
        weight=chunk.weight_of(number),
        headers=chunk.headers_of(number),
        payload=b"",
        enqueued_ms=chunk.enqueued_ms,
        place=number,
    )


def is_unchanged(candidate: Candidate, state: OwnState) -> bool:
    """Whether a filter would still select the message."""
    return candidate.traits is None or candidate.traits == traits_of(state)
