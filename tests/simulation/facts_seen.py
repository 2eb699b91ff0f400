"""The facts of the engine as events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fairlead.engine.memory import Memory
from fairlead.model.lane import lane_throttle_keys
from fairlead.records import facts as f
from fairlead.records.chunk import GONE, Chunk
from fairlead.records.ids import id_of
from fairlead.records.lease import GroupLease
from fairlead.records.state import OwnState
from fairlead.store.rows import answer_key, session_of_answer
from tests.simulation import events as e


class FactsSeen:
    """Facts name messages by their numbers; the chunk of each was seen when it was enqueued."""

    def __init__(self) -> None:
        self._chunks: dict[int, Chunk] = {}

    def events_of(self, facts: Sequence[Any], memory: Memory) -> Iterator[Any]:
        """`memory` is that of the engine once all facts are applied."""
        for fact in facts:
            match fact:
                case f.ChunkEnqueued():
                    yield self._enqueued(fact, memory)
                case f.ScatteredEnqueued():
                    for chunk in fact.chunks():
                        yield self._enqueued(f.ChunkEnqueued(chunk), memory)
                case f.Claimed():
                    yield e.Leased(fact.lease.terms.consumer, self._members(fact.lease, fact.numbers, memory))
                case f.LeaseCompleted():
                    yield e.Completed(self._members(fact.lease, fact.numbers, memory))
                case f.LeaseSplit():
                    members = self._members(fact.after, fact.numbers, memory)
                    is_longer = fact.after.terms.expires_ms != fact.before.terms.expires_ms
                    yield e.Extended(members) if is_longer else e.Started(members)
                case f.MessageMoved():
                    target = self._place(fact.number, fact.state, memory)
                    yield e.Moved(
                        fact.why or "", self._id(fact.number), target, fact.state, claim_id=fact.claim_id
                    )
                case f.MessagesMoved():
                    yield from self.events_of([*fact.one_by_one()], memory)
                case f.MessageGone():
                    yield e.Moved(fact.why, self._id(fact.number), None, None, claim_id=fact.claim_id)
                case f.MessageRestated():
                    if fact.state.claim_id:
                        yield e.Restated(self._id(fact.number), fact.state.claim_id, fact.state)
                    else:
                        yield e.Recounted(self._id(fact.number), fact.state)
                case f.QueueStored():
                    yield e.QueueSaved(fact.record)
                case f.QueueDeleted():
                    yield e.QueueDeleted(fact.queue_id)
                case f.PassAllowed():
                    yield e.StreamOpened(fact.queue_id, fact.stream)
                case f.AnswerRemembered():
                    yield from _answers(fact)
                case f.RecordsChanged() if fact.table.name == "ANSWERS":
                    yield e.SessionsForgotten({session_of_answer(key) for key in fact.records})
                case f.RecordsChanged() if fact.table.name == "INTENTS":
                    for key, intent in fact.records.items():
                        ended = e.IntentEnded(int.from_bytes(key, "big"))
                        yield ended if intent is None else e.IntentSaved(intent)

    def _enqueued(self, fact: f.ChunkEnqueued, memory: Memory) -> Any:
        chunk = fact.chunk
        is_ordered = memory.by_id[chunk.queue_id].is_ordered
        new, states = [], []
        for number in chunk.numbers:
            self._chunks[number] = chunk
            if chunk.state_of(number) == GONE and fact.duplicates:
                continue
            state = fact.own.get(number)
            stream = chunk.stream_of(number) if is_ordered else ""
            assert chunk.payloads is not None
            due_ms = 0 if state is None else state.due_ms
            payload, throttles = chunk.payloads[number - chunk.first], chunk.lane_of(number)[1:]
            new.append(
                e.NewMessage(
                    self._id(number),
                    payload,
                    throttles,
                    stream,
                    number if stream else 0,
                    due_ms,
                    chunk.expires_ms(number),
                )
            )
            states.append(state)
        dead = [state for state in states if state is not None and state.dead_since_ms]
        if dead:
            plain = [one._replace(stream="", seq=0, due_ms=0) for one in new]
            return e.Quarantined(dead[0].queue_id, plain, dead)
        return e.Enqueued(chunk.queue_id, new)

    def _members(self, lease: GroupLease, numbers: Sequence[int], memory: Memory) -> list[e.Member]:
        terms = lease.terms
        return [
            e.Member(
                self._id(number),
                terms.claim_id,
                terms.expires_ms,
                terms.started,
                memory.own[number].deliveries + 1 if number in memory.own else 1,
            )
            for number in numbers
        ]

    def _place(self, number: int, state: OwnState, memory: Memory) -> e.Place:
        chunk, queue = self._chunks[number], memory.by_id[state.queue_id]
        is_dead = queue.is_dead_letter_queue
        where = e.DONE if state.done_ms else e.WAITING if state.due_ms else e.READY
        is_in_order = queue.is_ordered and not is_dead and where != e.DONE
        stream = chunk.stream_of(number) if is_in_order else ""
        throttles = lane_throttle_keys(state.lane) if state.lane else chunk.lane_of(number)[1:]
        return e.Place(
            state.queue_id,
            where,
            () if is_dead else throttles,
            stream,
            (state.seq or number) if stream else 0,
            state.due_ms,
            state.done_ms,
        )

    def _id(self, number: int) -> bytes:
        return id_of(self._chunks[number].prefix, number)


def _answers(fact: f.AnswerRemembered) -> Iterator[Any]:
    forgotten = [answer_key(fact.session, number) for number in fact.arrived if number]
    if forgotten:
        yield e.RequestsForgotten(forgotten)
    if fact.record.number:
        yield e.RequestRemembered(answer_key(fact.session, fact.record.number))
