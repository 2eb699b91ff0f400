"""What a broker is about to write, in words, so that a test can stop it there.

A step is one commit: all of its changes are made, or none. `"publish" in step` says whether one of them is a
publication, `step.count("complete")` how many messages it completes.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from fairlead.broker.broker import Broker
from fairlead.model import facts as f
from fairlead.model.timings import Timing
from fairlead.store.rocks.store import RocksStore

What = Literal[
    "enqueue",
    "quarantine",
    "claim",
    "complete",
    "move",
    "restate",
    "recount",
    "extend",
    "start",
    "end claim",
    "save queue",
    "unlink queue",
    "clear queue",
    "save stream",
    "end stream",
    "join stream",
    "leave stream",
    "remember request",
    "forget requests",
    "set config",
    "delete config",
    "mark clock",
    "save buckets",
    "save key",
    "drop key",
    "audit",
    "forget audit",
    "save runbook",
    "save consumer",
    "drop consumer",
    "fill numbered claim",
    "record outcomes",
    "choose parts",
    "forget numbered claim",
    "forget dedup",
    "forget ttl",
    "save operation",
    "end operation",
    "stage",
    "drop chunks",
    "publish",
    "end publish",
    "forget publishes",
]

_WORDS: dict[type, What] = {
    f.Enqueued: "enqueue",
    f.Quarantined: "quarantine",
    f.Leased: "claim",
    f.Completed: "complete",
    f.Moved: "move",
    f.Restated: "restate",
    f.Recounted: "recount",
    f.Extended: "extend",
    f.Started: "start",
    f.ClaimEnded: "end claim",
    f.QueueSaved: "save queue",
    f.QueueUnlinked: "unlink queue",
    f.QueueCleared: "clear queue",
    f.StreamSaved: "save stream",
    f.StreamEnded: "end stream",
    f.StreamJoined: "join stream",
    f.StreamLeft: "leave stream",
    f.RequestRemembered: "remember request",
    f.RequestsForgotten: "forget requests",
    f.ConfigSet: "set config",
    f.ConfigDeleted: "delete config",
    f.ClockMarked: "mark clock",
    f.BucketsSaved: "save buckets",
    f.KeySaved: "save key",
    f.KeyDropped: "drop key",
    f.AuditSaved: "audit",
    f.AuditForgotten: "forget audit",
    f.RunbookSaved: "save runbook",
    f.ConsumerSaved: "save consumer",
    f.ConsumerDropped: "drop consumer",
    f.MembersPinned: "fill numbered claim",
    f.OutcomesRecorded: "record outcomes",
    f.PartsChosen: "choose parts",
    f.NumberedClaimForgotten: "forget numbered claim",
    f.DedupForgotten: "forget dedup",
    f.TtlForgotten: "forget ttl",
    f.IntentSaved: "save operation",
    f.IntentEnded: "end operation",
    f.ChunkStaged: "stage",
    f.ChunksDropped: "drop chunks",
    f.PublishSaved: "publish",
    f.PublishEnded: "end publish",
    f.PublishesForgotten: "forget publishes",
}
_PLACES: dict[type, str] = {
    f.InReady: "ready",
    f.InStream: "ready",
    f.InWaiting: "waiting",
    f.InLease: "leased",
    f.InDone: "done",
    type(None): "gone",
}


class Change:
    """One thing that a step changes."""

    def __init__(self, fact: f.Fact) -> None:
        self._fact = fact
        self.what = _WORDS[type(fact)]

    def __repr__(self) -> str:
        return f"Change({self._fact!r})"

    @property
    def count(self) -> int:
        """How many messages it changes; 0 for a change of something else."""
        match self._fact:
            case f.Enqueued() | f.Quarantined():
                return len(self._fact.messages)
            case f.Leased():
                return len(self._fact.leases) + len(self._fact.followers)
            case f.Completed() | f.Extended() | f.Started():
                return len(self._fact.leases)
            case f.Moved() | f.Restated() | f.Recounted():
                return 1
            case f.MembersPinned():
                return len(self._fact.ids) // 16
        return 0

    @property
    def record(self) -> Any:
        """The record that the change saves: of a queue, consumer, API key, audit entry, publication."""
        return self._fact.record  # type: ignore[union-attr]

    @property
    def payloads(self) -> list[bytes]:
        """Of the messages that are new."""
        return [message.payload for message in self._fact.messages]  # type: ignore[union-attr]

    @property
    def chunks(self) -> tuple[str, str, list[str]]:
        """(queue, token, chunks) of a change that drops chunks of a staged write."""
        dropped: Any = self._fact
        return dropped.write.queue, dropped.write.name, dropped.chunks

    @property
    def move(self) -> tuple[str, str, str]:
        """(kind, cause, where to) of a message that moves: "ready", "waiting", "leased", "done" or "gone"."""
        moved: Any = self._fact
        return moved.kind, moved.cause, _PLACES[type(moved.target)]

    @property
    def message_id(self) -> bytes:
        """Of a message that moves."""
        return self._fact.id  # type: ignore[union-attr]


class Step:
    """One commit. Its changes are read when asked for, so that watching costs little."""

    def __init__(self, facts: Sequence[f.Fact]) -> None:
        self.facts = facts

    def __contains__(self, what: What) -> bool:
        return any(_WORDS[type(fact)] == what for fact in self.facts)

    def __repr__(self) -> str:
        return f"Step({', '.join(self.words)})"

    @property
    def words(self) -> list[What]:
        """What is changed, in order."""
        return [_WORDS[type(fact)] for fact in self.facts]

    def changes(self, *what: What) -> list[Change]:
        """Those of one of these words, in order; without words all of them."""
        return [Change(fact) for fact in self.facts if not what or _WORDS[type(fact)] in what]

    def count(self, what: What) -> int:
        """How many messages are changed in this way."""
        return sum(change.count for change in self.changes(what))


def ignore(step: Step) -> None:
    """Let the step pass."""


def observe(
    broker: Broker, seen: Callable[[Step], None], timed: Callable[[Timing], None] | None = None
) -> None:
    """Call `seen` after each step. It is first told of the queues that there are, as one step that saves
    them.
    """
    broker.observe(lambda facts: seen(Step(facts)), timed=timed)


@contextmanager
def stop_before(
    broker: Broker, chosen: Callable[[Step], bool], stop: Exception | Callable[[], None]
) -> Iterator[list[Step]]:
    """Fail the commit of every chosen step with an error, or run `stop` first and let it pass.

    Nothing of a failed step is written, and the broker keeps the state in memory that it had. Gives the steps
    that were chosen.
    """
    commit, stopped = broker._core.commit, []

    def watched(facts: Sequence[f.Fact]) -> int:
        step = Step(facts)
        if chosen(step):
            stopped.append(step)
            if isinstance(stop, Exception):
                raise stop
            stop()
        return commit(facts)

    broker._core.commit = watched  # type: ignore[method-assign]
    try:
        yield stopped
    finally:
        broker._core.commit = commit  # type: ignore[method-assign]


def kill_process_at(nth: int, *what: What, before: bool) -> None:
    """SIGKILL this process at the n-th step on disk that has one of these words: just before it is written,
    or just after. Call it before a broker is opened, which may take steps itself. 0: never.
    """
    commit, numbers = RocksStore.commit, itertools.count(1)

    def commit_and_die(self: RocksStore, facts: Any, *rest: Any, **named: Any) -> int:
        step = Step(facts)
        fatal = any(word in step for word in what) and next(numbers) == nth
        if fatal and before:
            os.kill(os.getpid(), signal.SIGKILL)
        number = commit(self, facts, *rest, **named)
        if fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    RocksStore.commit = commit_and_die  # type: ignore[method-assign]
