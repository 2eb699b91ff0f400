"""What memory knows of staged writes beside their records: the chunks of each write, messages that are on
their way into a queue, and when to look for expired writes.
"""

from __future__ import annotations

from fairlead.decide.staging import expires_ms
from fairlead.model.names import Scoped
from fairlead.model.staging import Publishing, StagedChunk


class StagedIndex:
    """Follows from the records of staged chunks and of running publications; `Memory.apply` keeps it up to
    date.
    """

    def __init__(self) -> None:
        self.writes: dict[Scoped, dict[str, StagedChunk]] = {}
        #: Writes whose publication is decided and not finished.
        self.publishing: dict[Scoped, Publishing] = {}
        #: Those of them whose steps a caller does; the timer skips them.
        self.foreground: set[Scoped] = set()
        self.stored_bytes = 0
        self.chunk_count = 0
        #: When a write may have expired or has steps to do; None if there is no such write. It may be too
        #: early, never too late, so it begins with a look.
        self.next_look_ms: int | None = 0

    def chunk_changed(self, before: StagedChunk | None, after: StagedChunk | None) -> None:
        if before is not None:
            chunks = self.writes[before.write]
            del chunks[before.chunk]
            self.stored_bytes -= before.stored_bytes
            self.chunk_count -= 1
            if not chunks:
                del self.writes[before.write]
        if after is not None:
            self.writes.setdefault(after.write, {})[after.chunk] = after
            self.stored_bytes += after.stored_bytes
            self.chunk_count += 1
            self.look_by(after.expires_ms)

    def publishing_changed(self, before: Publishing | None, after: Publishing | None) -> None:
        if before is not None:
            del self.publishing[before.write]
        if after is not None:
            self.publishing[after.write] = after
            self.look_by(0)

    def chunks_of(self, write: Scoped) -> dict[str, StagedChunk]:
        return self.writes.get(write, {})

    def over(self, now_ms: int) -> list[Scoped]:
        """Writes that were not published in time."""
        return [
            write
            for write, chunks in self.writes.items()
            if write not in self.publishing and expires_ms([*chunks.values()]) <= now_ms
        ]

    def left_alone(self) -> Publishing | None:
        """A decided write whose steps no caller does."""
        return next((one for write, one in self.publishing.items() if write not in self.foreground), None)

    def look_by(self, at_ms: int) -> None:
        self.next_look_ms = at_ms if self.next_look_ms is None else min(at_ms, self.next_look_ms)

    def looked(self, next_forget_ms: int | None) -> None:
        """All expired writes have been handled: compute when to look again."""
        self.next_look_ms = 0 if self.left_alone() is not None else next_forget_ms
        for write, chunks in self.writes.items():
            if write not in self.publishing:
                self.look_by(expires_ms([*chunks.values()]))

    def to_come(self, queue_id: int) -> tuple[int, int]:
        """The number and the bytes of published messages that are not in the queue yet. They count towards
        the queue's bounds. The bytes of a chunk count until its last message exists.
        """
        messages = size = 0
        for write, record in self.publishing.items():
            for at, name in enumerate(record.chunks):
                chunk = self.writes[write][name]
                if chunk.queue_id == queue_id and not chunk.dead:
                    messages += chunk.count - (0 if at else record.offset)
                    size += chunk.bytes
        return messages, size
