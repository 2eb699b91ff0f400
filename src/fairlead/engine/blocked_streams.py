"""Blocked streams: their first message is leased or waits, so the others cannot be delivered."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from fairlead.engine.met import STEP_MESSAGES, Met, meet, step
from fairlead.engine.queue import Queue
from fairlead.engine.transaction import Transaction
from fairlead.engine.walk import stream_names
from fairlead.model.durations import show_time
from fairlead.model.ids import show_id
from fairlead.model.limits import SCAN_LIMIT
from fairlead.model.message import HELD
from fairlead.model.views import BlockedStream
from fairlead.records.stream import Stream

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine


class Blocker(NamedTuple):
    """The first live message of a stream, its state, and until when in the store's time; None: without an
    end.
    """

    met: Met
    why: str
    until_ms: int | None


class HeldUp(NamedTuple):
    stream: BlockedStream
    why: str
    leased: bool


def find_blocker(engine: Engine, tx: Transaction, queue: Queue, name: str) -> Blocker | None:
    """The message that blocks the stream; None if its first message is ready, or if it has none."""
    stream = queue.streams.find(name)
    if stream is None or not stream.numbers:
        return None
    (met,) = meet(tx, stream.numbers[:1])
    if met.terms is not None:
        consumers = tx.memory.consumers
        until_ms = consumers.lease_until(met.terms)
        if in_claim := consumers.why_in_claim(tx.memory.held[met.number].terms):
            return Blocker(met, in_claim, until_ms)
        return Blocker(
            met,
            f"leased to {met.terms.consumer!r} until {show_time(engine.time.by_wall(until_ms))}",
            until_ms,
        )
    due_ms = met.state.due_ms
    if not due_ms:
        return None
    if due_ms == HELD:
        return Blocker(met, "held", None)
    return Blocker(met, f"waiting until {show_time(engine.time.by_wall(due_ms))}", due_ms)


def held_up_streams(engine: Engine, queue_id: int, *, leased: bool) -> list[HeldUp]:
    """Streams whose first message waits while others queue behind it, the longest blocked first among those
    visited; with `leased`, also streams behind a leased message, after the others.
    """
    found: list[HeldUp] = []
    names = islice(stream_names(engine, queue_id), SCAN_LIMIT)
    while some := list(islice(names, STEP_MESSAGES)):
        with step(engine) as tx:
            queue = tx.memory.by_id.get(queue_id)
            if queue is None:
                break
            looked_at = [_held_up(engine, tx, queue, name) for name in some]
        found += [one for one in looked_at if one is not None and (leased or not one.leased)]
    return sorted(found, key=lambda one: (one.leased, one.stream.since))


def _held_up(engine: Engine, tx: Transaction, queue: Queue, name: str) -> HeldUp | None:
    stream, blocker = queue.streams.find(name, 2), find_blocker(engine, tx, queue, name)
    if stream is None or blocker is None or len(stream.numbers) < 2:
        return None
    is_leased = blocker.met.terms is not None
    if not is_leased and (stream.front or stream.leased):
        # Another message may pass the waiting one, or a consumer works on one.
        return None
    state = blocker.met.state
    since = state.failures[-1].at_ms if state.failures else blocker.met.chunk.enqueued_ms
    shown, behind = show_id(blocker.met.raw_id), _count_behind(tx, queue, stream)
    return HeldUp(BlockedStream(name, shown, since, blocker.until_ms, behind), blocker.why, is_leased)


def _count_behind(tx: Transaction, queue: Queue, stream: Stream) -> int:
    """The number of messages behind a stream's first one.

    Where the stream continues on disk, the messages of a chunk count until all of its messages of the stream
    have left, so that a long stream need not be read.
    """
    behind = len(stream.numbers) - 1
    if not stream.cold_from:
        return behind
    return behind + tx.count_members(queue, stream.name, stream.cold_from)
