"""What the broker holds in memory about staged writes: their chunks by name, never their messages."""

from __future__ import annotations

from collections import Counter

from fairlead.broker.queue_state import NEVER_MS
from fairlead.decide.staging import expires_ms
from fairlead.model.names import Scoped
from fairlead.model.staging import ChunkBody, Publishing, StagedChunk
from fairlead.store.port import Store


class StagedBook:
    """Used under the engine lock. Published writes that are done are asked of the store: there may be a great
    many.
    """

    def __init__(self) -> None:
        self.writes: dict[Scoped, dict[str, StagedChunk]] = {}
        self.publishing: dict[Scoped, Underway] = {}
        self.stored_bytes = 0
        self.chunk_count = 0
        #: Never later than the first write whose time is over, or the first to be forgotten; it may be early.
        self.next_expiry_ms = NEVER_MS
        self.next_forget_ms = NEVER_MS
        #: Writes whose caller publishes them; the timer leaves them alone.
        self.foreground: Counter[Scoped] = Counter()

    def load(self, store: Store) -> None:
        """Anew from what is stored."""
        self.writes, self.stored_bytes, self.chunk_count, self.next_expiry_ms = {}, 0, 0, NEVER_MS
        for chunk in store.staged_chunks():
            self.add(chunk)
        self.publishing = {record.write: Underway(record) for record in store.publishing()}
        self.look_ahead(store)

    def add(self, chunk: StagedChunk) -> None:
        chunks = self.writes.setdefault(chunk.write, {})
        self._forget(chunks.get(chunk.chunk))
        chunks[chunk.chunk] = chunk
        self.stored_bytes += chunk.stored_bytes
        self.chunk_count += 1
        self.next_expiry_ms = min(self.next_expiry_ms, chunk.expires_ms)

    def drop(self, write: Scoped, names: list[str]) -> None:
        chunks = self.writes[write]
        for name in names:
            self._forget(chunks.pop(name))
        if not chunks:
            del self.writes[write]

    def expires_ms(self, write: Scoped) -> int:
        """A write lives as long as its youngest chunk: it goes whole."""
        return expires_ms([*self.writes[write].values()])

    def expired(self, now_ms: int) -> list[Scoped]:
        """Writes whose time is over; one that is published is decided, and no longer asks for the time."""
        return [
            write
            for write in self.writes
            if write not in self.publishing and self.expires_ms(write) <= now_ms
        ]

    def look_ahead(self, store: Store) -> None:
        self.next_expiry_ms = min(
            (self.expires_ms(write) for write in self.writes if write not in self.publishing),
            default=NEVER_MS,
        )
        forget_ms = store.next_published_end()
        self.next_forget_ms = NEVER_MS if forget_ms is None else forget_ms

    def to_come(self, queue_id: int) -> tuple[int, int]:
        """Messages and bytes that are published and on their way into a queue: its bounds must leave room for
        them.

        The bytes of a chunk count until the last of it is made.
        """
        messages = size = 0
        for write, underway in self.publishing.items():
            for at, name in enumerate(underway.record.chunks):
                chunk = self.writes[write][name]
                if chunk.queue_id == queue_id and not chunk.dead:
                    messages += chunk.count - (0 if at else underway.record.offset)
                    size += chunk.bytes
        return messages, size

    def _forget(self, chunk: StagedChunk | None) -> None:
        if chunk is not None:
            self.stored_bytes -= chunk.stored_bytes
            self.chunk_count -= 1


class Underway:
    """A published write on its way. `loaded` are chunks read ahead, outside the lock, by whoever makes its
    steps.
    """

    __slots__ = ("loaded", "record")

    def __init__(self, record: Publishing) -> None:
        self.record = record
        self.loaded: dict[str, ChunkBody] = {}
