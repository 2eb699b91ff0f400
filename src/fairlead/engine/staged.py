"""What memory knows of staged writes besides their records: the chunks of each write, what is on its way into a
queue, and when to look for writes whose time is over.
"""

from __future__ import annotations

from fairlead.decide.staging import expires_ms
from fairlead.model.names import Scoped
from fairlead.model.staging import Publishing, StagedChunk


class StagedIndex:
    """Follows from the records of staged chunks and of writes under way; `Memory.apply` keeps it up to date."""

    def __init__(self) -> None:
        self.writes: dict[Scoped, dict[str, StagedChunk]] = {}
        #: Writes that are decided and not all messages yet.
        self.publishing: dict[Scoped, Publishing] = {}
        #: Of them, those whose steps a caller takes: the timer leaves them alone.
        self.foreground: set[Scoped] = set()
        self.stored_bytes = 0
        self.chunk_count = 0
        #: When a write may be over or may have steps to do; None: there is no such write. It may be too early,
        #: never too late; so it begins with a look.
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
        """Writes that nobody published in time."""
        return [
            write
            for write, chunks in self.writes.items()
            if write not in self.publishing and expires_ms([*chunks.values()]) <= now_ms
        ]

    def left_alone(self) -> Publishing | None:
        """A write that is decided, and whose steps no caller takes."""
        return next((one for write, one in self.publishing.items() if write not in self.foreground), None)

    def look_by(self, at_ms: int) -> None:
        self.next_look_ms = at_ms if self.next_look_ms is None else min(at_ms, self.next_look_ms)

    def looked(self, next_forget_ms: int | None) -> None:
        """Everything that was over has been dealt with: find out when to look again."""
        self.next_look_ms = 0 if self.left_alone() is not None else next_forget_ms
        for write, chunks in self.writes.items():
            if write not in self.publishing:
                self.look_by(expires_ms([*chunks.values()]))

    def to_come(self, queue_id: int) -> tuple[int, int]:
        """Messages and bytes that are published and on their way into a queue: its bounds must leave room for
        them. The bytes of a chunk count until the last of it is made.
        """
        messages = size = 0
        for write, record in self.publishing.items():
            for at, name in enumerate(record.chunks):
                chunk = self.writes[write][name]
                if chunk.queue_id == queue_id and not chunk.dead:
                    messages += chunk.count - (0 if at else record.offset)
                    size += chunk.bytes
        return messages, size
