"""What a repair found, saved and lost."""

from __future__ import annotations

from dataclasses import dataclass, field

from fairlead.store.rocks.salvage import Damage, Gap


@dataclass(frozen=True, slots=True)
class GoneMessage:
    """A message that a row names and whose body cannot be read. `where` is its state according to that row."""

    id: str
    queue: str
    key: str
    where: str


@dataclass(frozen=True, slots=True)
class QueueReport:
    """`counted`: the number of messages according to the queue's own counters in the last readable state;
    None if the counters are lost.
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
    """The result of a repair. `ok`: nothing that was confirmed is lost.

    `damages`: parts of files that are missing or cannot be read. `gaps`: commits that no log contains;
    messages that they enqueued are lost, and messages that they completed may return. `gone`: messages that
    are known and lost. `redelivered`: ids of saved messages that may have been completed, released or failed
    later than the remaining rows say. `lost_history`: ids of saved messages whose attempts and failures are
    lost. `other`: every other loss, as a sentence.
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
