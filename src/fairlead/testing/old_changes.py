"""What the facts of today's engine change, in words. Goes with that engine."""

from __future__ import annotations

from typing import Any

from fairlead.model import facts as f
from fairlead.testing.changes import Change, What

WORDS: dict[type, What] = {
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


def change_of(fact: f.Fact) -> Change:
    """One fact is one change."""
    told: Any = fact
    return Change(
        WORDS[type(fact)],
        _count(fact),
        getattr(told, "record", None),
        find_payloads=lambda: [message.payload for message in told.messages],
        move=(told.kind, told.cause, _PLACES[type(told.target)]) if isinstance(fact, f.Moved) else None,
        chunks=(told.write.queue, told.write.name, told.chunks)
        if isinstance(fact, f.ChunksDropped)
        else None,
    )


def _count(fact: f.Fact) -> int:
    match fact:
        case f.Enqueued() | f.Quarantined():
            return len(fact.messages)
        case f.Leased():
            return len(fact.leases) + len(fact.followers)
        case f.Completed() | f.Extended() | f.Started():
            return len(fact.leases)
        case f.Moved() | f.Restated() | f.Recounted():
            return 1
        case f.MembersPinned():
            return len(fact.ids) // 16
    return 0
