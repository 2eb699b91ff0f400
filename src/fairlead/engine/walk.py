"""The messages of a queue, place by place, in pages. `walk_ids.py` visits all of them in the order of ids.

    for page in walk(engine, queue_id, "waiting"):
        for met in page:
            ...                                  # no lock: others continue, `met` stays as it was met

    with engine.transaction() as tx:             # to change what was met: look again, under the lock
        now = {met.number: met for met in meet(tx, numbers)}
        unchanged = [met for met in page if met == now.get(met.number)]

A page is read in one short transaction, of about STEP_MESSAGES messages; it may be empty. Between two pages
messages move: a message that changes its place may be met twice, or not at all. If the queue is deleted
meanwhile, the walk ends. Callers bound the number of messages themselves: `bounded(pages, SCAN_LIMIT)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import merge
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Literal

from fairlead.engine.cold import STEP_LANES
from fairlead.engine.met import STEP_MESSAGES, Met, find_queue, in_order, meet, meet_ids, step
from fairlead.engine.queue import Queue
from fairlead.engine.transaction import Transaction
from fairlead.model.lane import pack_lane
from fairlead.model.message import HELD
from fairlead.records.chunk import LaneName
from fairlead.records.lease import GroupLease
from fairlead.store.stream_rows import read_streams_of_several

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

#: Reads (time, number) of messages of a queue after one of them.
ReadByTime = Callable[[Transaction, Queue, int, tuple[int, int]], list[tuple[int, int]]]
#: "held" is a part of "waiting"; "dead" is everything in the dead-letter queue of the queue.
Where = Literal["ready", "waiting", "held", "leased", "done", "dead"]


def walk(
    engine: Engine, queue_id: int, where: Where, after: bytes | None = None, *, key: str | None = None
) -> Iterator[list[Met]]:
    """Ready messages in the order of (lane, place), then those behind the fronts of their streams; waiting
    and held ones in the order of due times, leased ones in that of their enqueues, done ones in that of
    their completions.

    `after` is the id of the last message seen: the walk continues after it, or begins anew if that message
    has moved. `key`: only messages of that fairness key; dead letters all have the same one.
    """
    with step(engine) as tx:
        queue = find_queue(tx, queue_id)
        last = None if after is None else meet_ids(tx, [after]).get(after)
        if queue is not None and where == "dead" and not queue.is_dead_letter_queue:
            queue_id = queue.record.dlq_id
    if where == "dead":
        if last is None or last.where != "leased":
            yield from walk(engine, queue_id, "ready", after, key=key)
        yield from walk(engine, queue_id, "leased", after, key=key)
        return
    if last is not None and last.where != _PLACES[where]:
        last = None
    if where == "ready":
        yield from _walk_ready(engine, queue_id, last, key)
        return
    for page in _WALKS[where](engine, queue_id, last):
        yield [met for met in page if key is None or met.lane[0] == key]


# Place by place


def _walk_ready(engine: Engine, queue_id: int, last: Met | None, key: str | None) -> Iterator[list[Met]]:
    is_behind = last is not None and _is_behind(engine, last)
    if not is_behind:
        yield from _walk_lanes(engine, queue_id, last, key)
    for page in walk_streams(engine, queue_id, last if is_behind else None):
        yield [met for met in page if key is None or met.lane[0] == key]


def _is_behind(engine: Engine, met: Met) -> bool:
    with step(engine) as tx:
        return is_behind_front(tx, met)


def is_behind_front(tx: Transaction, met: Met) -> bool:
    """Whether a ready message is in no lane, because another one of its stream goes first."""
    queue, name = find_queue(tx, met.state.queue_id), met.chunk.stream_of(met.number)
    if queue is None or not name or not queue.is_ordered or queue.is_dead_letter_queue:
        return False
    stream = queue.streams.find(name)
    return stream is not None and stream.front != met.number


def stream_names(engine: Engine, queue_id: int, start: str = "") -> Iterator[str]:
    """The streams of a queue with several messages, in the order of their names."""
    with step(engine) as tx:
        queue = find_queue(tx, queue_id)
        names = [] if queue is None else queue.streams.names_of_several()
        is_on_disk = queue is not None and queue.streams.may_be_on_disk
    in_memory = in_order(name for name in names if name >= start)
    if not is_on_disk:
        return in_memory
    on_disk = chain.from_iterable(read_streams_of_several(engine.store, queue_id, start))
    return (name for name, _ in groupby(merge(in_memory, on_disk)))


def walk_streams(
    engine: Engine, queue_id: int, last: Met | None = None, *, with_fronts: bool = False
) -> Iterator[list[Met]]:
    """Ready messages behind the fronts of their streams: stream by stream and in order. Nothing follows after
    a message of another queue. A caller that moves messages makes others the fronts meanwhile, so it walks
    with fronts.
    """
    if last is not None and last.state.queue_id != queue_id:
        return
    start = "" if last is None else last.chunk.stream_of(last.number)
    names = stream_names(engine, queue_id, start)
    name = next(names, None)
    seq = 0 if last is None or name != start else last.state.seq or last.number
    while name is not None:
        with step(engine) as tx:
            queue = find_queue(tx, queue_id)
            if queue is None:
                return
            numbers: list[int] = []
            looked_at = 0
            for _ in range(_lanes_of_step(is_on_disk=queue.streams.may_be_on_disk)):
                some = tx.stream_after(queue, name, seq, STEP_MESSAGES - looked_at)
                looked_at += len(some)
                stream = None if with_fronts else queue.streams.find(name)
                front = 0 if stream is None else stream.front
                numbers += [number for number in some if number != front]
                if looked_at >= STEP_MESSAGES:
                    seq = tx.memory.seq_of(some[-1])
                    break
                name, seq = next(names, None), 0
                if name is None:
                    break
            page = [met for met in meet(tx, numbers) if met.where == "ready"]
        yield page


def _walk_lanes(engine: Engine, queue_id: int, last: Met | None, key: str | None) -> Iterator[list[Met]]:
    """The lanes of a queue, or only those of the key."""
    with step(engine) as tx:
        queue = find_queue(tx, queue_id)
        if queue is None:
            return
        names = queue.schedule.lane_names()
    start = b"" if last is None else _packed(last.lane)
    lanes = in_order((packed, name) for name in names.of(key) if (packed := _packed(name)) >= start)
    lane = next(lanes, None)
    place = 0 if last is None or lane is None or lane[0] != start else last.state.place
    while lane is not None:
        with step(engine) as tx:
            queue = find_queue(tx, queue_id)
            if queue is None:
                return
            numbers: list[int] = []
            for _ in range(_lanes_of_step(is_on_disk=queue.schedule.cold_lanes > 0)):
                room = STEP_MESSAGES - len(numbers)
                numbers += tx.lane_after(queue, lane[1], place, room)
                if len(numbers) >= STEP_MESSAGES:
                    place = tx.memory.place_of(numbers[-1])
                    break
                lane, place = next(lanes, None), 0
                if lane is None:
                    break
            page = meet(tx, numbers)
        yield page


def _lanes_of_step(*, is_on_disk: bool) -> int:
    """How many lanes or streams a step may visit."""
    return STEP_LANES if is_on_disk else STEP_MESSAGES


def _walk_waiting(engine: Engine, queue_id: int, last: Met | None) -> Iterator[list[Met]]:
    after = (0, 0) if last is None else (last.state.due_ms, last.number)
    return _walk_by_time(engine, queue_id, Transaction.due, after)


def _walk_held(engine: Engine, queue_id: int, last: Met | None) -> Iterator[list[Met]]:
    return _walk_by_time(engine, queue_id, Transaction.due, (HELD, 0 if last is None else last.number))


def _walk_done(engine: Engine, queue_id: int, last: Met | None) -> Iterator[list[Met]]:
    after = (0, 0) if last is None else (last.state.done_ms, last.number)
    return _walk_by_time(engine, queue_id, Transaction.done, after)


def _walk_by_time(
    engine: Engine, queue_id: int, read: ReadByTime, after: tuple[int, int]
) -> Iterator[list[Met]]:
    while True:
        with step(engine) as tx:
            queue = find_queue(tx, queue_id)
            found = [] if queue is None else read(tx, queue, STEP_MESSAGES, after)
            page = meet(tx, [number for _, number in found])
        yield page
        if len(found) < STEP_MESSAGES:
            return
        after = found[-1]


def _walk_leased(engine: Engine, queue_id: int, last: Met | None) -> Iterator[list[Met]]:
    with step(engine) as tx:
        queue = find_queue(tx, queue_id)
        leases: list[GroupLease] = [] if queue is None else list(queue.leases.values())
    start = 0 if last is None else last.number + 1
    numbers = in_order(number for lease in leases for number in lease.numbers if number >= start)

    while some := list(islice(numbers, STEP_MESSAGES)):
        with step(engine) as tx:
            met = meet(tx, some)
        yield [one for one in met if _is_in(one, queue_id, "leased")]


#: The walks that do not go lane by lane.
_WALKS: dict[Where, Callable[[Engine, int, Met | None], Iterator[list[Met]]]] = {
    "waiting": _walk_waiting,
    "held": _walk_held,
    "leased": _walk_leased,
    "done": _walk_done,
}
_PLACES = {"ready": "ready", "waiting": "waiting", "held": "waiting", "leased": "leased", "done": "done"}


def find_latest_due(engine: Engine, queue_id: int) -> int | None:
    """The latest due time of messages that wait for a time; None if none does."""
    with step(engine) as tx:
        queue = find_queue(tx, queue_id)
        return None if queue is None else tx.latest_due(queue)


def _is_in(met: Met, queue_id: int, where: str) -> bool:
    return met.where == where and met.state.queue_id == queue_id


def _packed(lane: LaneName) -> bytes:
    return pack_lane(lane[0], lane[1:])
