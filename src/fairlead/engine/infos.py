"""Messages as they are shown to people. Bodies are read without the lock, from what a step met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from fairlead.engine.chunk_messages import find_chunk_now
from fairlead.engine.met import Met
from fairlead.model.failure import FailureReason, Progress
from fairlead.model.ids import show_id
from fairlead.model.message import HELD, unpack_headers
from fairlead.model.views import MessageInfo
from fairlead.records.chunk import Chunk
from fairlead.records.ids import BLOCK_MASK
from fairlead.store.rows import find_payloads

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

NameOf = Callable[[int], str | None]


def show_all(engine: Engine, found: Sequence[Met]) -> list[MessageInfo]:
    """Messages as they were met, in order, without those that were gone before their bodies were read."""
    name_of = names_of(engine)
    shown = []
    for chunk, members in groupby(found, key=lambda met: met.chunk):
        part = list(members)
        payloads = _payloads(engine, chunk, [met.number for met in part])
        shown += [
            _info(engine, met, payload, name_of)
            for met, payload in zip(part, payloads, strict=True)
            if payload is not None
        ]
    return shown


def names_of(engine: Engine) -> NameOf:
    def name_of(queue_id: int) -> str | None:
        queue = engine.memory.by_id.get(queue_id)
        return None if queue is None else queue.name

    return name_of


def _payloads(engine: Engine, chunk: Chunk, numbers: Sequence[int]) -> Sequence[bytes | None]:
    """Payloads; None for messages that are gone. They are not cached in the chunk, because a look at a large
    queue must not fill memory.
    """
    payloads = chunk.payloads
    if payloads is not None:
        return [payloads[number & BLOCK_MASK] for number in numbers]
    found = find_payloads(engine.store, chunk, numbers)
    if None not in found:
        return found
    now = find_chunk_now(engine, chunk)
    if now is None or now.body == chunk.body:
        return found
    # The chunk was rewritten without those of its messages that were gone.
    sizes = chunk.columns.sizes
    again = _payloads(engine, now, numbers)
    return [
        payload if payload is not None and len(payload) == sizes[number & BLOCK_MASK] else None
        for number, payload in zip(numbers, again, strict=True)
    ]


def _info(engine: Engine, met: Met, payload: bytes, name_of: NameOf) -> MessageInfo:
    chunk, number, state, terms = met
    lane = met.shown_lane
    is_waiting = met.where == "waiting"
    return MessageInfo(
        id=show_id(met.raw_id),
        queue=name_of(state.queue_id) or "",
        where=met.where,
        payload=payload,
        headers=unpack_headers(chunk.headers_of(number)),
        fairness_key=lane[0],
        weight=state.weight or chunk.weight_of(number),
        throttle_keys=lane[1:],
        stream=chunk.stream_of(number) or None,
        enqueued_at=chunk.enqueued_ms,
        place=0 if is_waiting else state.place,
        seq=_seq(engine, met),
        attempts=state.attempts,
        deliveries=state.deliveries + (terms is not None),
        progress=Progress(state.progress),
        carry=state.carry,
        failures=state.failures,
        failures_cut=state.failures_cut,
        reason=FailureReason(state.reason) if state.reason else None,
        rule=state.rule,
        due_at=state.due_ms if is_waiting and state.due_ms != HELD else None,
        expires_at=met.expires_ms or None,
        lease_until=None if terms is None else engine.memory.consumers.lease_until(terms),
        consumer=None if terms is None else terms.consumer,
        source=name_of(state.source_queue_id),
        dead_since=state.dead_since_ms or None,
        done_at=state.done_ms or None,
    )


def _seq(engine: Engine, met: Met) -> int:
    """The order in its stream; 0 if no stream orders it. A dead letter shows the order of its enqueue; a
    message that was quarantined joins its stream when it is redriven.
    """
    state = met.state
    is_quarantined = state.failures and state.failures[0].rule == "quarantine" and not state.redrives
    if state.seq or is_quarantined:
        return state.seq
    home = engine.memory.by_id.get(met.chunk.queue_id)
    is_ordered = home is not None and home.is_ordered and met.chunk.stream_of(met.number)
    return met.number if is_ordered else 0
