"""What a repair found, what it saved and what is gone."""

from __future__ import annotations

from dataclasses import dataclass, field

from fairlead.store.rocks.salvage import Damage, Gap


@dataclass(frozen=True, slots=True)
class GoneMessage:
    """A message that a row names and whose body cannot be read. `where` says in which state that row had it."""

    id: str
    queue: str
    key: str
    where: str


@dataclass(frozen=True, slots=True)
class QueueReport:
    """`counted`: the messages that the queue's own counters had, in the last state that could be read; None
    if they are lost.
    """

    queue: str
    counted: int | None
    saved: int
    gone: int


@dataclass(frozen=True, slots=True)
class DroppedEnd:
    """The end of a file that `cut_unsynced` dropped. `batches` and `rows` count the whole records in it."""

    file: str
    kept_bytes: int
    dropped_bytes: int
    batches: int
    rows: int


@dataclass(slots=True)
class RepairReport:
    """`ok`: nothing that was confirmed is gone.

    `damages`: parts of files that are missing or cannot be read. `gaps`: commits that are in no log any more;
    messages that they enqueued are gone, messages that they completed may come back. `gone`: messages that
    are known and lost. `redelivered`: ids of saved messages that may have been completed, released or failed
    later than the rows that are left say. `lost_history`: ids of saved messages whose attempts and failures
    are lost. `other`: everything else that is lost, as sentences.
    """

    damages: list[Damage] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    queues: list[QueueReport] = field(default_factory=list)
    gone: list[GoneMessage] = field(default_factory=list)
    redelivered: list[str] = field(default_factory=list)
    lost_history: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    dropped: list[DroppedEnd] = field(default_factory=list)
    messages: int = 0
    leases: int = 0

    @property
    def ok(self) -> bool:
        hurt = any(not damage.harmless for damage in self.damages)
        return not (hurt or self.gaps or self.gone or self.redelivered or self.lost_history or self.other)
