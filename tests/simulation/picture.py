"""What the witness knows: every live message, every stream, every long operation; and the rules of order over
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fairlead.model.queue import QueueRecord
from tests.simulation.events import DONE as DONE
from tests.simulation.events import LEASED as LEASED
from tests.simulation.events import READY as READY
from tests.simulation.events import WAITING as WAITING


class BrokenPromise(AssertionError):
    pass


class Seen(NamedTuple):
    """A message that is live, or done and kept. `seq` is 0 when no stream orders it; `deadline_ms` is
    monotonic.
    """

    id: bytes
    queue_id: int
    where: str
    payload: bytes
    throttles: tuple[str, ...]
    stream: str = ""
    seq: int = 0
    due_ms: int = 0
    ttl_ms: int = 0
    claim_id: int = 0
    consumer: str = ""
    started: bool = False
    deadline_ms: int = 0
    expires_ms: int = 0
    attempts: int = 0
    failures: int = 0
    progress: int = 0
    deliveries: int = 0
    dead_since: int = 0
    source: int = 0
    done_ms: int = 0


@dataclass
class Doing:
    """The call under way. `ids` None with an operator's verb means that a filter selects."""

    verb: str
    queue: str = ""
    items: Sequence[Any] = ()
    ids: Iterable[str] | None = None
    stream: str = ""
    consumer: str = ""
    claims_from: Sequence[str] = ()
    into: Sequence[str] = ()
    #: The key of the last request of the session whose answer has arrived.
    arrived: bytes = b""


@dataclass
class Picture:
    """All that a power cut can take back."""

    messages: dict[bytes, Seen] = field(default_factory=dict)
    queues: dict[int, QueueRecord] = field(default_factory=dict)
    let_by: dict[tuple[int, str], frozenset[int]] = field(default_factory=dict)
    all_after: dict[tuple[int, str], int] = field(default_factory=dict)
    intents: dict[int, Any] = field(default_factory=dict)
    payloads: dict[bytes, bytes] = field(default_factory=dict)
    gone: dict[bytes, str] = field(default_factory=dict)
    requests: dict[bytes, int] = field(default_factory=dict)
    #: Requests whose outcomes are no longer kept, and why: "answered" or "old".
    forgotten: dict[bytes, str] = field(default_factory=dict)

    def copy(self) -> Picture:
        return Picture(**{name: dict(value) for name, value in vars(self).items()})

    def members(self, queue_id: int, stream: str) -> list[Seen]:
        """The live messages of a stream, in order."""
        found = [
            seen
            for seen in self.messages.values()
            if seen.seq and seen.stream == stream and seen.queue_id == queue_id
        ]
        return sorted(found, key=lambda seen: seen.seq)

    def streams(self) -> set[tuple[int, str]]:
        return {(seen.queue_id, seen.stream) for seen in self.messages.values() if seen.seq}

    def passes(self, seen: Seen, waiting: Seen) -> bool:
        stream = seen.queue_id, seen.stream
        return (
            seen.seq in self.let_by.get(stream, ()) or waiting.seq <= self.all_after.get(stream, 0) < seen.seq
        )

    def front(self, queue_id: int, stream: str) -> Seen | None:
        """The first that may go."""
        return next((seen for seen in self.members(queue_id, stream) if self.may_go(seen)), None)

    def may_go(self, seen: Seen) -> bool:
        earlier = [other for other in self.members(seen.queue_id, seen.stream) if other.seq < seen.seq]
        return seen.where == READY and not any(
            o.where == LEASED or (o.where == WAITING and not self.passes(seen, o)) for o in earlier
        )

    def claimable(self, queue_id: int) -> list[Seen]:
        here = [seen for seen in self.messages.values() if seen.queue_id == queue_id and seen.where == READY]
        return [seen for seen in here if not seen.seq or self.front(queue_id, seen.stream) is seen]

    def under_way(self, kind: str, queue_id: int) -> bool:
        return any(intent.kind == kind and intent.queue_id == queue_id for intent in self.intents.values())


def must(holds: bool, what: str) -> None:
    if not holds:
        raise BrokenPromise(what)
