"""The transaction that a verb works in: questions about memory, fresh numbers, and `add(fact)`.

A verb reads and checks first and adds facts last. `add` applies a fact at once, so that later steps of the same
transaction see it; the lock is held until the write, so nobody else does. There is no undo: if the write fails,
or a verb raises after it added a fact, the transaction is lost and the engine loads the touched queues anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from random import Random

from fairlead.engine.memory import Memory, Queue
from fairlead.errors import QueueNotFound, Unavailable
from fairlead.model.delivery import Delivery
from fairlead.model.lane import pack_lane
from fairlead.model.message import Message
from fairlead.records.chunk import Chunk
from fairlead.records.facts import StateFact
from fairlead.records.ids import (
    BLOCK_MASK,
    BLOCK_SHIFT,
    COMMIT_SHIFT,
    MAX_BLOCKS,
    MAX_CLAIMS,
    id_base,
    id_from,
    id_prefix,
)
from fairlead.records.lease import GroupLease
from fairlead.records.state import DedupRow
from fairlead.store.kv.port import KeyValueStore
from fairlead.store.rows import read_dedup, read_payloads, read_windows


class Transaction:
    __slots__ = ("_blocks", "_claims", "_place", "_start", "commit", "epoch", "facts", "id_ms", "lost", "memory",
                 "now_ms", "random", "store")  # fmt: skip

    def __init__(
        self,
        memory: Memory,
        store: KeyValueStore,
        *,
        commit: int,
        epoch: int,
        now_ms: int,
        id_ms: int,
        random: Random,
    ) -> None:
        self.memory = memory
        self.store = store
        #: The number of the commit. A large transaction takes the numbers of several.
        self.commit = commit
        self.epoch = epoch
        self.now_ms = now_ms
        #: The time in new ids; it never goes back.
        self.id_ms = id_ms
        self.random = random
        self.facts: list[StateFact] = []
        self._blocks = 0
        self._claims = 0
        self._place = 0
        #: How many facts there were when the request that runs began.
        self._start = 0
        #: Why nothing of it will be written; None while it goes on.
        self.lost: str | None = None

    def add(self, fact: StateFact) -> None:
        self.facts.append(fact)
        self.memory.apply(fact)

    def start_request(self) -> None:
        """A request begins. Raises `Unavailable` in a transaction that is lost."""
        self.check_lost()
        self._start = len(self.facts)

    def check_lost(self) -> None:
        if self.lost is not None:
            raise self.lost_error()

    def lost_error(self) -> Unavailable:
        """A new error for each caller: an error that is raised twice carries two tracebacks."""
        return Unavailable(f"nothing of this transaction was written, send it again: {self.lost}")

    @property
    def has_changed(self) -> bool:
        """Whether the request that runs has added a fact: then it can no longer be refused alone."""
        return len(self.facts) != self._start

    def queue(self, name: object) -> Queue:
        queue = self.memory.by_name.get(name) if isinstance(name, str) else None
        if queue is None:
            raise QueueNotFound(str(name))
        return queue

    def dedup_rows(self, queue_id: int, keys: Sequence[str]) -> dict[str, DedupRow]:
        """The rows of dedup keys, in one read."""
        return read_dedup(self.store, self.memory.changes, queue_id, keys)

    def windows(self, queue_id: int, limit: int) -> list[tuple[int, str]]:
        """The windows of dedup keys that end first: (end, key)."""
        return read_windows(self.store, queue_id, limit)

    # Fresh numbers

    def next_block(self) -> int:
        """The first number of a fresh chunk."""
        if self._blocks >= MAX_BLOCKS:
            self._next_commit()
        self._blocks += 1
        # Places that were given out before stand before the messages of the new chunk.
        self._place = 0
        return self.commit << COMMIT_SHIFT | self._blocks - 1 << BLOCK_SHIFT

    def next_place(self) -> int:
        """A place at the tail: greater than every number given out before, less than every later one."""
        if self._place & BLOCK_MASK == 0:
            self._place = self.next_block()
        self._place += 1
        return self._place - 1

    def next_prefix(self) -> bytes:
        return id_prefix(self.id_ms, self.commit)

    def next_group(self) -> int:
        """The id of a claim, or of a part of one that goes on by itself."""
        if self._claims >= MAX_CLAIMS:
            self._next_commit()
        self._claims += 1
        return self.epoch << 44 | self.commit << BLOCK_SHIFT | self._claims

    def _next_commit(self) -> None:
        self.commit += 1
        self._blocks = self._claims = self._place = 0

    # Answers

    def deliveries(self, lease: GroupLease, numbers: Sequence[int]) -> list[Delivery]:
        memory, terms = self.memory, lease.terms
        queue = memory.by_id[terms.queue_id]
        source = memory.by_id.get(queue.record.source_id)
        source_name = source.name if source is not None else None
        found = []
        for block, members in groupby(numbers, key=_block_of):
            chunk = memory.chunks[block]
            bodies = self._bodies(chunk)
            for number in members:
                state = memory.own.get(number)
                count = 1 if state is None else state.deliveries + 1
                found.append(
                    Delivery(
                        bodies(number),
                        state,
                        queue.name,
                        terms.claim_id,
                        terms.expires_ms,
                        count,
                        source_name,
                    )
                )
        return found

    def _bodies(self, chunk: Chunk) -> Callable[[int], Message]:
        """Makes messages of a chunk; what they share is looked up once."""
        if chunk.payloads is None:
            chunk.payloads = read_payloads(self.store, chunk)
        payloads, columns = chunk.payloads, chunk.columns
        lanes = [pack_lane(lane[0], lane[1:]) for lane in columns.lanes]
        lane_at, headers, weights = columns.lane_at, columns.headers, columns.weights
        prefix, base, enqueued_ms, queue_id = (
            chunk.prefix,
            id_base(chunk.first),
            chunk.enqueued_ms,
            chunk.queue_id,
        )

        def message(number: int) -> Message:
            index = number & BLOCK_MASK
            return Message(
                id_from(prefix, base, number),
                queue_id,
                lanes[0 if lane_at is None else lane_at[index]],
                weights if isinstance(weights, int) else weights[index],
                b"" if headers is None else headers[index],
                payloads[index],
                enqueued_ms,
                number,
            )

        return message


def _block_of(number: int) -> int:
    return number >> BLOCK_SHIFT
