"""Messages enter and leave lanes.

Memory holds the beginning of a lane, in the queue's scheduler. Rows lead to the messages after that, and to
messages with rows of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from fairlead.engine.cold import read_on
from fairlead.engine.own_states import own_lane
from fairlead.engine.queue import Queue
from fairlead.engine.reduce.hot_room import has_room_at_tail
from fairlead.records.chunk import OWN, Chunk, LaneName
from fairlead.records.facts import LaneFound, LaneRead
from fairlead.records.ids import BLOCK_MASK, BLOCK_SHIFT
from fairlead.records.state import OwnState, RunRow

if TYPE_CHECKING:
    from fairlead.engine.memory import Memory


def lane_found(memory: Memory, fact: LaneFound) -> None:
    schedule = memory.by_id[fact.queue_id].schedule
    for number in fact.numbers:
        schedule.insert(fact.lane, fact.weight or 1, number)
    if fact.cold_from:
        schedule.add_cold(fact.lane, fact.weight or 1, fact.cold_from)
    elif fact.weight:
        schedule.join(fact.lane, fact.weight)


def lane_read(memory: Memory, fact: LaneRead) -> None:
    memory.by_id[fact.queue_id].schedule.promote(fact.lane, fact.numbers, fact.cold_from)


def fill_lanes(memory: Memory) -> None:
    """At open, once all hot chunks are loaded: add their ready messages to their lanes."""
    for queue_id, lanes in memory.found_lanes.items():
        schedule = memory.by_id[queue_id].schedule
        # The latest message of a key sets its weight, in whichever of its lanes it is.
        latest: dict[str, int] = {}
        for lane, numbers in lanes.items():
            latest[lane[0]] = max(numbers[-1], latest.get(lane[0], 0))
        for lane, numbers in lanes.items():
            number = latest[lane[0]]
            schedule.add(lane, memory.chunks[number >> BLOCK_SHIFT].weight_of(number), numbers)
    memory.found_lanes.clear()


def add_to_lanes(memory: Memory, queue: Queue, chunk: Chunk, numbers: Sequence[int]) -> None:
    """Add new messages of a chunk to their lanes, and set the weights of their keys."""
    columns = chunk.columns
    add = _cold_lanes_of(memory, queue, chunk) if chunk.has_runs else queue.schedule.add
    if columns.lane_at is None:
        if numbers:
            weights = columns.weights
            weight = weights if isinstance(weights, int) else weights[numbers[-1] & BLOCK_MASK]
            add(columns.lanes[0], weight, numbers)
        return
    is_whole = len(numbers) == chunk.count
    if is_whole and len(columns.lanes) == chunk.count:
        if not chunk.has_runs and columns.weights == 1 and queue.schedule.add_lone(columns.lanes, numbers):
            return
        filled = [(lane, [number]) for lane, number in zip(columns.lanes, numbers, strict=True)]
    else:
        # Lanes join the ring in the order of the messages that enter them.
        parts: defaultdict[int, list[int]] = defaultdict(list)
        lane_at, first = columns.lane_at, chunk.first
        entering = lane_at if is_whole else [lane_at[number - first] for number in numbers]
        for number, at in zip(numbers, entering, strict=True):
            parts[at].append(number)
        filled = [(columns.lanes[at], part) for at, part in parts.items()]
    if isinstance(columns.weights, int):
        for lane, part in filled:
            add(lane, columns.weights, part)
        return
    # The latest message of a key sets its weight, in whichever of its lanes it is.
    latest: dict[str, int] = {}
    for lane, part in filled:
        latest[lane[0]] = max(part[-1], latest.get(lane[0], 0))
    for lane, part in filled:
        add(lane, chunk.weight_of(latest[lane[0]]), part)


def _cold_lanes_of(
    memory: Memory, queue: Queue, chunk: Chunk
) -> Callable[[LaneName, int, Sequence[int]], None]:
    """Returns a function that adds messages of a cold chunk to a lane as a row that leads to them."""
    firsts, runs, home_id = chunk.first_of_lanes(), memory.changes.runs, chunk.queue_id
    streams = chunk.columns.streams if queue.is_ordered else None

    def add(lane: LaneName, weight: int, numbers: Sequence[int]) -> None:
        first, fronts = firsts[lane], list[int]()
        if streams is not None:
            fronts = [number for number in numbers if streams[number & BLOCK_MASK]]
        if len(fronts) < len(numbers):
            count = len(numbers) - len(fronts)
            runs[home_id, home_id, lane, first, False] = RunRow(first, count, weight, chunk.count == 1)
        for number in fronts:
            runs[home_id, home_id, lane, number, True] = RunRow(number, 0, weight)
        queue.schedule.add_cold(lane, weight, numbers[0])

    return add


def stand_at_tail(memory: Memory, queue: Queue, numbers: Sequence[int], states: Sequence[OwnState]) -> None:
    """Add messages without a stream to the tails of their lanes, as `enter_place` does for one."""
    runs, home_id, queue_id = memory.changes.runs, queue.home_id, queue.record.queue_id
    lanes: defaultdict[LaneName, list[int]] = defaultdict(list)
    #: The latest message of a key sets its weight, in whichever of its lanes it is.
    weights: dict[str, int] = {}
    for number, state in zip(numbers, states, strict=True):
        chunk = memory.chunks[number >> BLOCK_SHIFT]
        lane, weight = own_lane(chunk, number, state), state.weight or chunk.weight_of(number)
        runs[home_id, queue_id, lane, state.place, True] = RunRow(number, 0, weight)
        lanes[lane].append(number)
        weights[lane[0]] = weight
    schedule, has_room = queue.schedule, has_room_at_tail(memory, queue)
    for lane, some in lanes.items():
        if has_room and not (schedule.cold_lanes and schedule.cold_from(lane)):
            schedule.add(lane, weights[lane[0]], some)
            # Memory holds them while they are in it.
            memory.touched_states.difference_update(some)
        else:
            schedule.add_cold(lane, weights[lane[0]], memory.own[some[0]].place)
            memory.touched_states.update(some)


def leave_plain_lane(memory: Memory, queue: Queue, chunk: Chunk, number: int, state: OwnState) -> None:
    """A ready message without a stream leaves its lane, other than by a claim."""
    if chunk.state_of(number) == OWN:
        _delete_run(memory, queue, number)
    lane = memory.lane_in(queue, number)[0]
    memory.thinned_lanes[queue.record.queue_id, lane] = None
    if not is_behind_memory(queue, lane, state):
        queue.schedule.remove(lane, number)


def _delete_run(memory: Memory, queue: Queue, number: int) -> None:
    """A ready message with a row of its own leaves its lane."""
    if memory.stream_of(number, queue.record.queue_id):
        return
    place, lane = memory.place_of(number), memory.lane_in(queue, number)[0]
    memory.changes.runs[queue.home_id, queue.record.queue_id, lane, place, True] = None


def enter_lane_as_front(memory: Memory, queue: Queue, number: int) -> None:
    """A message has become the front of its stream."""
    lane, weight = memory.lane_and_weight(number)
    if memory.is_cold_member(number):
        place = memory.place_of(number)
        memory.changes.runs[queue.home_id, queue.home_id, lane, place, True] = RunRow(number, 0, weight)
        if 0 < queue.schedule.cold_from(lane) <= place:
            return
    queue.schedule.insert(lane, weight, number)


def leave_lane_as_front(memory: Memory, queue: Queue, number: int) -> None:
    """A message is no longer the front of its stream."""
    lane = memory.lane_and_weight(number)[0]
    memory.thinned_lanes[queue.record.queue_id, lane] = None
    if memory.is_cold_member(number):
        place = memory.place_of(number)
        memory.changes.runs[queue.home_id, queue.home_id, lane, place, True] = None
        if 0 < queue.schedule.cold_from(lane) <= place:
            return
    queue.schedule.remove(lane, number)


def end_dry_lanes(memory: Memory) -> None:
    """End a lane without messages at once, instead of at its turn."""
    lanes: defaultdict[int, list[LaneName]] = defaultdict(list)
    for queue_id, lane in memory.thinned_lanes:
        lanes[queue_id].append(lane)
    memory.thinned_lanes.clear()
    for queue_id, thinned in lanes.items():
        queue = memory.by_id[queue_id]
        while dry := [lane for lane in thinned if queue.schedule.ran_dry(lane)]:
            read_on(memory, memory.store, queue, dict.fromkeys(dry, 1))


def find_in_lanes(memory: Memory, home: Queue, chunk: Chunk) -> dict[LaneName, list[int]]:
    """Messages of a hot chunk that are in lanes because of it, and not because of rows of their own: implied
    ones, and fronts of streams.
    """
    found: defaultdict[LaneName, list[int]] = defaultdict(list)
    held, streams = memory.held, chunk.columns.streams if home.is_ordered else None
    for number in chunk.implied():
        if number not in held and not (streams and streams[number & BLOCK_MASK]):
            found[chunk.lane_of(number)].append(number)
    for name in set(streams or ()) & home.streams.by_name.keys():
        front = home.streams.front_of(name)
        if front >> BLOCK_SHIFT == chunk.block and not memory.is_cold_member(front):
            found[memory.lane_and_weight(front)[0]].append(front)
    return found


def demote_lanes(
    memory: Memory, home: Queue, chunk: Chunk, in_lanes: Mapping[LaneName, Sequence[int]]
) -> None:
    """Write rows of lanes that lead to these messages of a chunk, and keep only the messages before them in
    memory.
    """
    runs, home_id, firsts = memory.changes.runs, chunk.queue_id, chunk.first_of_lanes()
    is_ordered = home.is_ordered and chunk.columns.streams is not None
    latest: dict[str, int] = {}
    for lane, numbers in in_lanes.items():
        latest[lane[0]] = max(numbers[-1], latest.get(lane[0], 0))
    for lane, numbers in in_lanes.items():
        weight = memory.lane_and_weight(latest[lane[0]])[1]
        fronts = [number for number in numbers if is_ordered and chunk.stream_of(number)]
        if len(fronts) < len(numbers):
            first = firsts[lane]
            runs[home_id, home_id, lane, first, False] = RunRow(first, len(numbers) - len(fronts), weight)
        for number in fronts:
            own_weight = memory.lane_and_weight(number)[1]
            runs[home_id, home_id, lane, memory.place_of(number), True] = RunRow(number, 0, own_weight)
        for number in home.schedule.demote(lane, min(map(memory.place_of, numbers))):
            if _is_hot_front(memory, home_id, number):
                # It waits for the messages on disk before it.
                home.schedule.insert(lane, weight, number)
            memory.touched_states.add(number)


def _is_hot_front(memory: Memory, home_id: int, number: int) -> bool:
    """For a message in a lane: whether it represents a stream, and must be in memory."""
    known = memory.chunks.get(number >> BLOCK_SHIFT)
    if known is None or known.is_cold:
        return False
    return memory.stream_of(number, home_id) != "" and not memory.is_cold_member(number)


def stands_in_memory(memory: Memory, queue: Queue, number: int, state: OwnState) -> bool:
    """Whether a message is in the part of its lane in memory."""
    if state.due_ms:
        return False
    return queue.schedule.has(own_lane(memory.chunk_of(number), number, state), number, state.place)


def is_behind_memory(queue: Queue, lane: LaneName, state: OwnState) -> bool:
    """Whether a ready message is in the part of its lane that only the disk has."""
    return 0 < queue.schedule.cold_from(lane) <= state.place
