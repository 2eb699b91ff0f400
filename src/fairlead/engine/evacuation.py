"""Evacuation: chunks of which little is left are rewritten without the messages that are gone, so that the
disk holds not much more than the live messages.

The reducer records a chunk that became sparse. The timer rewrites it if it is still sparse one look later,
because most chunks are soon gone completely. Chunks that are not read at open are scanned once, a few at a
time. Payloads are read and copied without the lock. None of this is stored: a reopened engine finds the
chunks again.

Guarantees: one chunk is one write, so a crash leaves it either unchanged or rewritten. A chunk with a member
of an open numbered claim stays unchanged, because readers of the claim rely on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fairlead.engine.cold import bring_chunks
from fairlead.engine.reduce.kept_chunks import may_be_thinned
from fairlead.engine.thinning import is_sparse, thin
from fairlead.engine.transaction import Transaction
from fairlead.errors import Unavailable
from fairlead.records.chunk import GONE, Chunk
from fairlead.records.facts import ChunkThinned
from fairlead.records.ids import BLOCK_MASK, BLOCK_SHIFT, MAX_CHUNK_MESSAGES
from fairlead.store.cold_rows import scan_cold_chunks
from fairlead.store.kv.port import KeyValueStore
from fairlead.store.rows import find_payloads

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

#: How often sparse chunks are handled, and how long they wait when the disk is full.
LOOK_MS = 10_000
RETRY_MS = 60_000
#: Cold chunks that are scanned at a time after an opening, and how often.
SCAN_CHUNKS = 16
SCAN_MS = 100
#: Messages whose payloads are read at a time; each may be in another page.
READ_MESSAGES = 256


class Evacuation:
    """Sparse chunks by block, each with its queue. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: Sparse at the last look, and at the one before.
        self._noted: dict[int, int] = {}
        self._ripe: dict[int, int] = {}
        self._next_look_ms = 0
        self._next_scan_ms = 0
        #: The cold chunks that existed at open; None once all of them are scanned.
        homes = engine.memory.homes_with_cold()
        self._unseen: Iterator[list[Chunk]] | None = _cold_chunks(engine.store, homes) if homes else None

    def is_known(self, block: int) -> bool:
        """Whether the chunk will be handled because it was sparse."""
        return block in self._noted or block in self._ripe or block in self._engine.memory.sparse

    def next_ms(self) -> int | None:
        """When the timer may run a step, in steady time; None if there is nothing to do."""
        scan_ms = None if self._unseen is None else self._next_scan_ms
        if not (self._noted or self._ripe or self._engine.memory.sparse):
            return scan_ms
        return self._next_look_ms if scan_ms is None else min(scan_ms, self._next_look_ms)

    def run_step(self) -> bool:
        """Handle one chunk; False if there is none to handle now."""
        engine, now_ms = self._engine, self._engine.clock.monotonic_ms()
        if engine.lock.is_owned:
            # Inside a transaction of this thread.
            return False
        self._scan(now_ms)
        with engine.lock:
            if not self._ripe and now_ms >= self._next_look_ms:
                self._next_look_ms = now_ms + LOOK_MS
                self._ripe, self._noted, engine.memory.sparse = self._noted, engine.memory.sparse, {}
            if not self._ripe:
                return False
            block = next(iter(self._ripe))
            home_id = self._ripe.pop(block)
        try:
            self._evacuate(block, home_id)
        except Unavailable:
            # A full disk is temporary.
            with engine.lock:
                self._noted |= {**self._ripe, block: home_id}
                self._ripe = {}
                self._next_look_ms = now_ms + RETRY_MS
        return True

    def _scan(self, now_ms: int) -> None:
        """Scan without the lock: chunks that it finds are checked again."""
        with self._engine.lock:
            if self._unseen is None or now_ms < self._next_scan_ms:
                return
            unseen, self._unseen = self._unseen, None
        chunks = next(unseen, None)
        if chunks is None:
            return
        found = {chunk.block: chunk.queue_id for chunk in chunks if is_sparse(chunk)}
        with self._engine.lock:
            self._unseen, self._next_scan_ms = unseen, now_ms + SCAN_MS
            self._noted |= found

    def _evacuate(self, block: int, home_id: int) -> None:
        engine = self._engine
        with engine.transaction() as tx:
            chunk = _find_sparse(tx, block, home_id)
            if chunk is None:
                return
            live_bytes = chunk.total_bytes - chunk.dead_bytes
            tx.store.check_room(2 * live_bytes, in_reserve=True)
            numbers = [number for number in chunk.numbers if chunk.state_of(number) != GONE]
        payloads = _read(engine.store, chunk, numbers)
        if payloads is None:
            return
        made = thin(chunk, numbers, payloads)
        with engine.transaction() as tx:
            before = _find_sparse(tx, block, home_id)
            if before is not None:
                tx.add(ChunkThinned(before, made.take_place_of(before, tx.next_block())))


def _find_sparse(tx: Transaction, block: int, home_id: int) -> Chunk | None:
    """The chunk, if it may be rewritten. If not, it is recorded again when something changes."""
    memory = tx.memory
    bring_chunks(memory, tx.store, [block << BLOCK_SHIFT], home_id)
    memory.sparse.pop(block, None)
    chunk = memory.chunks.get(block)
    return chunk if chunk is not None and may_be_thinned(memory, chunk) else None


def _read(store: KeyValueStore, chunk: Chunk, numbers: Sequence[int]) -> list[bytes] | None:
    """The payloads of messages of the chunk. None if some are missing, because the chunk is gone meanwhile or
    a page is lost, which a claim or a verification will report.
    """
    payloads = chunk.payloads
    if payloads is not None:
        return [payloads[number & BLOCK_MASK] for number in numbers]
    found: list[bytes] = []
    for start in range(0, len(numbers), READ_MESSAGES):
        for payload in find_payloads(store, chunk, numbers[start : start + READ_MESSAGES]):
            if payload is None:
                return None
            found.append(payload)
    return found


def _cold_chunks(store: KeyValueStore, homes: Sequence[int]) -> Iterator[list[Chunk]]:
    for home_id in homes:
        start = 0
        while chunks := scan_cold_chunks(store, home_id, start, SCAN_CHUNKS):
            yield chunks
            start = chunks[-1].first + MAX_CHUNK_MESSAGES
