"""The facts of today's engine as events. Goes with that engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fairlead.model.lane import ROW_BYTES, lane_throttle_keys, row_place, row_stream
from fairlead.testing.inside import facts as f
from tests.simulation import events as e


def events_of(facts: Sequence[Any]) -> Iterator[Any]:
    for fact in facts:
        match fact:
            case f.Enqueued():
                yield e.Enqueued(fact.queue_id, [_new(message, message.seq) for message in fact.messages])
            case f.Quarantined():
                yield e.Quarantined(fact.queue_id, [_new(one, 0) for one in fact.messages], fact.states)
            case f.Leased():
                yield e.Leased(fact.claim.consumer, _members(fact.leases + fact.followers))
            case f.Completed():
                yield e.Completed(_members(fact.leases))
            case f.Extended():
                yield e.Extended(_members(fact.leases))
            case f.Started():
                yield e.Started(_members(fact.leases))
            case f.Moved() if fact.kind not in ("promoted", "demoted"):
                claim_id = fact.source.lease.claim_id if isinstance(fact.source, f.InLease) else 0
                source, target = _place(fact.source), fact.target and _place(fact.target)
                yield e.Moved(fact.kind, fact.id, target, fact.state, source, claim_id)
            case f.Restated():
                yield e.Restated(fact.lease.id, fact.lease.claim_id, fact.state)
            case f.Recounted():
                yield e.Recounted(fact.message_id, fact.state)
            case f.QueueSaved():
                yield e.QueueSaved(fact.record)
            case f.QueueUnlinked():
                yield e.QueueUnlinked(fact.queue_id, fact.name)
            case f.QueueCleared():
                yield e.QueueCleared(fact.queue_id)
            case f.StreamSaved():
                yield e.StreamOpened(fact.queue_id, fact.stream)
            case f.RequestRemembered():
                yield e.RequestRemembered(fact.request_id)
            case f.RequestsForgotten():
                yield e.RequestsForgotten(fact.request_ids)
            case f.IntentSaved():
                yield e.IntentSaved(fact.intent)
            case f.IntentEnded():
                yield e.IntentEnded(fact.intent_id)


def _new(message: Any, seq: int) -> e.NewMessage:
    return e.NewMessage(
        message.id,
        message.payload,
        lane_throttle_keys(message.lane),
        message.stream if seq else "",
        seq,
        message.due_ms,
        message.expires_ms,
    )


def _members(leases: Sequence[Any]) -> list[e.Member]:
    return [
        e.Member(lease.id, lease.claim_id, lease.expires_ms, lease.started, lease.deliveries)
        for lease in leases
    ]


def _place(spot: Any) -> e.Place:
    where = {f.InWaiting: e.WAITING, f.InDone: e.DONE, f.InLease: e.LEASED}.get(type(spot), e.READY)
    if isinstance(spot, f.InLease):
        spot = spot.lease
    in_stream = len(spot.row) > ROW_BYTES
    return e.Place(
        spot.queue_id,
        where,
        lane_throttle_keys(spot.lane),
        row_stream(spot.row),
        row_place(spot.row) if in_stream else 0,
        getattr(spot, "due_ms", 0),
        getattr(spot, "done_ms", 0),
    )
