"""The changes that the facts of a transaction make, as words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fairlead.records import facts as f
from fairlead.records.consumer import ChosenParts
from fairlead.records.state import OwnState
from fairlead.store.kv.port import Table

What = Literal[
    "enqueue",
    "quarantine",
    "claim",
    "complete",
    "make cold",
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
    "allow to pass",
    "leave stream",
    "remember request",
    "forget requests",
    "set config",
    "delete config",
    "mark clock",
    "save buckets",
    "close throttle",
    "open throttle",
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
    "remember dedup",
    "forget dedup",
    "forget ttl",
    "save operation",
    "end operation",
    "stage",
    "drop chunks",
    "publish",
    "end publish",
    "forget publishes",
    "evacuate",
]

#: By table: the word for a saved record, and the word for a deleted one. None: another change of the same
#: step covers it.
_RECORDS: dict[Table, tuple[What | None, What | None]] = {
    Table.META: ("mark clock", None),
    Table.API_KEYS: ("save key", "drop key"),
    Table.RUNBOOKS: ("save runbook", None),
    Table.EXTERNAL_QUEUES: (None, None),
    Table.AUDIT: ("audit", "forget audit"),
    Table.CONSUMERS: ("save consumer", "drop consumer"),
    Table.OUTCOMES: ("record outcomes", "forget numbered claim"),
    Table.ANSWERS: (None, "forget requests"),
    Table.STAGED: ("stage", "drop chunks"),
    Table.STAGED_PARTS: (None, None),
    Table.PUBLISHING: ("publish", "end publish"),
    Table.PUBLISHED: (None, "forget publishes"),
    Table.PUBLISHED_END: (None, None),
    Table.INTENTS: ("save operation", "end operation"),
    Table.SESSION_ENDS: (None, None),
    Table.CLOSED: ("close throttle", "open throttle"),
}


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a step."""

    what: What
    #: The number of changed messages; 0 if the change concerns something else.
    count: int = 0
    #: The saved record: of a queue, consumer, API key, audit entry or publication.
    record: Any = None
    #: Reads the payloads of new messages.
    find_payloads: Callable[[], Sequence[bytes]] = tuple
    #: For a message that moves: how, why, and where to ("ready", "waiting", "done" or "gone").
    move: tuple[str, str, str] | None = None
    #: (queue, token, chunks) of a change that drops chunks of a staged write.
    chunks: tuple[str, str, list[str]] | None = None

    @property
    def payloads(self) -> list[bytes]:
        return list(self.find_payloads())


def changes_of(fact: f.StateFact) -> Iterator[Change]:
    match fact:
        case f.ChunkEnqueued():
            is_dead = any(state.dead_since_ms for state in fact.own.values())
            yield Change(
                "quarantine" if is_dead else "enqueue",
                fact.chunk.count,
                find_payloads=lambda: fact.chunk.payloads or (),
            )
        case f.ScatteredEnqueued():
            yield Change("enqueue", len(fact.numbers), find_payloads=lambda: fact.payloads)
        case f.Claimed():
            yield Change("fill numbered claim" if fact.lease.is_numbered else "claim", len(fact.numbers))
        case f.LeaseCompleted():
            yield Change("complete", len(fact.numbers))
        case f.LeaseSplit():
            is_longer = fact.after.terms.expires_ms != fact.before.terms.expires_ms
            yield Change("extend" if is_longer else "start", len(fact.numbers))
        case f.MessageMoved():
            yield Change("move", 1, move=(fact.why or "", fact.cause, _where(fact.state)))
        case f.MessagesMoved():
            for one in fact.one_by_one():
                yield from changes_of(one)
        case f.MessageGone():
            yield Change("move", 1, move=(fact.why, fact.cause, "gone"))
        case f.MessageRestated():
            yield Change("restate", 1)
        case f.RecordsChanged():
            yield from _records(fact)
        case f.AnswerRemembered():
            yield Change("remember request", record=fact.record)
            if fact.arrived:
                yield Change("forget requests")
        case f.QueueStored():
            yield Change("save queue", record=fact.record)
        case f.ConfigChanged():
            for value in fact.entries.values():
                yield Change("delete config" if value is None else "set config")
        case _:
            word = _WORDS[type(fact)]
            if word is not None:
                yield Change(word)


def _where(state: OwnState) -> str:
    if state.done_ms:
        return "done"
    return "waiting" if state.due_ms else "ready"


_WORDS: dict[type, What | None] = {
    # Its messages are counted with those of its chunk.
    f.ChunkGrown: None,
    f.ChunkDemoted: "make cold",
    f.ChunkThinned: "evacuate",
    f.QueueDeleted: "clear queue",
    f.BucketChanged: "save buckets",
    f.PassAllowed: "allow to pass",
    f.KeysRemembered: "remember dedup",
    f.KeysForgotten: "forget dedup",
    f.WindowsEnded: "forget dedup",
    f.LivesEnded: "forget ttl",
    # Covered by the staged chunk, or by the end of the write.
    f.PagesStaged: None,
}


def _records(fact: f.RecordsChanged) -> Iterator[Change]:
    saved, gone = _RECORDS[fact.table]
    for key, record in fact.records.items():
        word = gone if record is None else saved
        if isinstance(record, ChosenParts):
            word = "choose parts"
        if word is not None:
            yield Change(word, record=record, chunks=_dropped(key) if word == "drop chunks" else None)


def _dropped(key: bytes) -> tuple[str, str, list[str]]:
    """Read from the key of a staged chunk; see `store/rows.py`."""
    queue, _, rest = key.partition(b"\0")
    token_end = 2 + int.from_bytes(rest[:2], "big")
    return queue.decode(), rest[2:token_end].decode(), [rest[token_end:].decode()]
