"""The invariants of an engine at rest. Property, crash and differential tests check them after every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import msgspec

from fairlead.decide.fronts import find_front
from fairlead.engine.cold import cached_weight
from fairlead.engine.consumer_laws import broken_consumer_laws, consumer_differences
from fairlead.engine.engine import Engine, memory_of
from fairlead.engine.memory import Memory
from fairlead.engine.queue import Queue
from fairlead.engine.reduce.kept_chunks import may_be_thinned
from fairlead.engine.reduce.letting_go import is_kept
from fairlead.engine.session_laws import broken_session_laws
from fairlead.engine.staging_laws import broken_staging_laws, staging_differences
from fairlead.records.chunk import Chunk, LaneName
from fairlead.records.ids import find_number, id_of
from fairlead.records.lease import GroupLease
from fairlead.records.state import Counts
from fairlead.records.stream import Stream
from fairlead.schedule.throttle import Bucket
from fairlead.store.kv.port import KeyValueStore, Table
from fairlead.store.row_check import find_incomplete
from fairlead.store.rows import (
    find_orphans,
    read_all_dedup,
    read_counts,
    read_lease_groups,
    read_stream_names,
    read_windows,
)
from fairlead.store.stored_messages import (
    StoredMessage,
    count_messages,
    find_wrong_indexes,
    read_messages,
    read_streams,
)


def broken_laws(engine: Engine) -> list[str]:
    """Check that memory equals what a reopening would build, stored counts equal a recount, and every message
    is in exactly one place.
    """
    memory, again, stored = engine.memory, memory_of(engine.store), read_counts(engine.store)
    broken = []
    if memory.by_name.keys() != again.by_name.keys():
        return [f"queues {sorted(memory.by_name)} are {sorted(again.by_name)} after a reopening"]
    for queue_id, queue in memory.by_id.items():
        broken += [
            f"{queue.name}: {difference}"
            for difference in _differences(queue, again.by_id[queue_id], stored[queue_id])
        ]
    if memory.records != again.records:
        broken.append("records beside the messages differ after a reopening")
    if (memory.config, memory.configured_weights()) != (again.config, again.configured_weights()):
        broken.append("the configuration differs after a reopening")
    now_ms = engine.time.now_ms()
    if _tokens(memory, now_ms) != _tokens(again, now_ms):
        broken.append("token buckets differ after a reopening")
    messages = read_messages(engine.store)
    streams = read_streams(engine.store, messages, find_front)
    broken += broken_laws_of_memory(memory, messages, streams)
    broken += [f"after a reopening, {wrong}" for wrong in broken_laws_of_memory(again, messages, streams)]
    if _terms(memory) != _terms(again):
        broken.append("leases differ after a reopening")
    broken += consumer_differences(memory, again)
    broken += staging_differences(memory, again)
    unknown = [
        chunk.first
        for chunk in memory.chunks.values()
        if may_be_thinned(memory, chunk) and not engine.evacuation.is_known(chunk.block)
    ]
    if unknown:
        broken.append(f"nobody looks at the sparse chunks {unknown}")
    return broken + broken_laws_of_rows(memory, engine.store)


def broken_laws_of_rows(memory: Memory, store: KeyValueStore) -> list[str]:
    """The laws of stored rows, and of the memory loaded from them: every message is complete and in exactly
    one place, and no row is left over.
    """
    broken = find_incomplete(store)
    stored, recounted = read_counts(store), count_messages(store)
    messages = {message.number: message for message in read_messages(store)}
    for queue_id, queue in memory.by_id.items():
        counted = recounted[queue_id]
        if stored.get(queue_id) != counted:
            broken.append(f"{queue.name}: counted {counted}, stored {stored.get(queue_id)}")
        broken += _dedup_differences(messages, store, queue)
        broken += _empty_streams(messages, store, queue)
    broken += find_wrong_indexes(store, find_front)
    held = {group for queue in memory.by_id.values() for group in queue.leases}
    ended = read_lease_groups(store) - held
    if ended:
        broken.append(f"leases without members are stored: {sorted(ended)}")
    broken += broken_consumer_laws(memory, store)
    broken += broken_staging_laws(memory, store)
    broken += broken_session_laws(memory, store)
    broken += [f"{orphan} belongs to nothing" for orphan in find_orphans(store)]
    for key, bucket in [*memory.buckets.all().items(), *memory.idle_buckets.items()]:
        if not 0 <= bucket.tokens <= bucket.burst:
            broken.append(f"the bucket of throttle {key!r} has {bucket.tokens} of {bucket.burst} tokens")
    broken += _closed_differences(memory)
    twice = [number for number, count in Counter(_everywhere(memory)).items() if count > 1]
    if twice:
        broken.append(f"in more than one place: {twice}")
    return broken


def broken_laws_of_memory(
    memory: Memory, messages: Sequence[StoredMessage], streams: Mapping[tuple[int, str], Stream]
) -> list[str]:
    """Memory holds what it must, as it is stored, and nothing else that could be outdated."""
    chunks = {one.chunk.block: one.chunk for one in messages}
    hot_blocks = {block for block, chunk in chunks.items() if not chunk.is_cold}
    if hot_blocks != memory.chunks.keys() - memory.cold_chunks.keys():
        # Many of the following checks need chunks.
        return ["the hot chunks in memory are not those that are stored"]
    broken = broken_laws_of_streams(memory, messages, streams)
    lanes: dict[tuple[int, LaneName], list[StoredMessage]] = {}
    for message in sorted(messages, key=lambda message: message.state.place):
        if message.is_in_lane:
            lanes.setdefault((message.state.queue_id, message.lane), []).append(message)
    for (home_id, _), stream in streams.items():
        if stream.front:
            front = next(message for message in messages if message.number == stream.front)
            lanes.setdefault((home_id, front.lane), []).append(front)
    for queue_id, queue in memory.by_id.items():
        known = memory.known_waits.states(queue_id)
        waiting = {
            one.number: one.state for one in messages if one.is_waiting and one.state.queue_id == queue_id
        }
        if known is not None and known != waiting:
            broken.append(f"{queue.name}: waiting messages are not those that are stored")
        broken += _late_looks(queue, [one for one in messages if one.state.queue_id == queue_id])
        found = _lanes(memory, queue)
        for lane in {*found, *(lane for of_queue, lane in lanes if of_queue == queue_id)}:
            cold_from = queue.schedule.cold_from(lane)
            stored = sorted(lanes.get((queue_id, lane), []), key=lambda message: message.state.place)
            hot = [one.number for one in stored if _stands_in_memory(one, cold_from)]
            if found.get(lane, []) != hot:
                broken.append(
                    f"{queue.name}: lane {lane} has {found.get(lane, [])} in memory, and must have {hot}"
                )
    broken += _wrong_lease_indexes(memory)
    own = {one.number: one.state for one in messages if one.is_own}
    kept = {number: state for number, state in own.items() if is_kept(memory, number, state)}
    if memory.own != kept:
        wrong = [number for number in {*memory.own, *kept} if memory.own.get(number) != kept.get(number)]
        broken.append(f"the states in memory are not those that it must hold: {sorted(wrong)}")
    for block, chunk in memory.chunks.items():
        stored_chunk = chunks.get(block)
        if stored_chunk is None or _content(chunk) != _content(stored_chunk):
            broken.append(f"chunk {chunk.first} in memory is not what is stored")
    if memory.hot_messages != sum(
        memory.hot_weight(chunks[block].columns) * chunks[block].live
        for block in hot_blocks
        if block in chunks
    ):
        broken.append(f"{memory.hot_messages} messages are said to be hot")
    if memory.cached_messages != sum(map(cached_weight, memory.cold_chunks.values())):
        broken.append(f"{memory.cached_messages} messages are said to be kept in memory")
    body_bytes = sum(sum(chunk.columns.sizes) for chunk in memory.chunks.values() if chunk.kept_bytes)
    if not memory.body_bytes == body_bytes <= memory.max_body_bytes:
        broken.append(f"{memory.body_bytes} bytes of payloads are said to be in memory, and {body_bytes} are")
    if memory.cold_count != sum(chunk.is_cold for chunk in chunks.values()):
        broken.append(f"{memory.cold_count} chunks are said to be cold")
    return broken


def _late_looks(queue: Queue, messages: Sequence[StoredMessage]) -> list[str]:
    """Due times in a queue that memory would miss. `messages` are those in the queue."""
    found = []
    due = [one.state.due_ms for one in messages if one.is_waiting]
    if due and not 0 < queue.next_due_ms <= min(due):
        found.append(f"{queue.name}: nobody looks when the next wait ends")
    done = [one.state.done_ms for one in messages if one.state.done_ms]
    if done and not 0 < queue.first_done_ms <= min(done):
        found.append(f"{queue.name}: nobody looks when a completed message has been kept long enough")
    lives = [one.end_of_life for one in messages if one.end_of_life and one.terms is None]
    if lives and not 0 < queue.next_life_ms <= min(lives):
        found.append(f"{queue.name}: nobody looks when the next life ends")
    return found


def _wrong_lease_indexes(memory: Memory) -> list[str]:
    """Leases are found by every index, and each lease that can expire is found when it does."""
    found = []
    leases = set(memory.held.values())
    listed = {(expires_ms, lease) for expires_ms, _, lease in memory.expiries}
    for lease in leases:
        name = f"lease {lease.terms.group:x}"
        if not lease.is_numbered and (lease.terms.expires_ms, lease) not in listed:
            found.append(f"{name}: nobody looks when it expires")
        if lease.live != len(memory.members_of(lease)):
            found.append(f"{name} counts {lease.live} members, and has {len(memory.members_of(lease))}")
    indexes: tuple[tuple[str, Iterable[GroupLease], Iterable[GroupLease]], ...] = (
        ("consumer", leases, chain.from_iterable(memory.by_consumer.values())),
        ("token", [one for one in leases if one.terms.token], chain.from_iterable(memory.by_token.values())),
        ("queue", leases, chain.from_iterable(one.leases.values() for one in memory.by_id.values())),
    )
    for name, expected, known in indexes:
        if set(expected) != set(known):
            found.append(f"the leases by {name} are not those that are held")
    return found


def _stands_in_memory(message: StoredMessage, cold_from: int) -> bool:
    is_hot_front = message.in_stream and not message.is_cold_member
    return is_hot_front or not cold_from or message.state.place < cold_from


def broken_laws_of_streams(
    memory: Memory, messages: Sequence[StoredMessage], streams: Mapping[tuple[int, str], Stream]
) -> list[str]:
    """Memory has the beginning of each stream, with all messages of hot chunks. All messages of a stream have
    one fairness key.
    """
    broken = []
    in_streams = {message.number: message for message in messages if message.in_stream}
    for queue_id, queue in memory.by_id.items():
        known = queue.streams.by_name
        names = {name for home_id, name in streams if home_id == queue_id}
        if known.keys() - names:
            broken.append(f"{queue.name}: streams {sorted(known.keys() - names)} are not stored")
        for name in names:
            stored = streams[queue_id, name]
            wrong = _wrong_stream(known.get(name), stored, in_streams)
            keys = {in_streams[number].lane[0] for number in stored.numbers}
            if len(keys) > 1:
                wrong = f"its messages have the keys {sorted(keys)}"
            if wrong:
                broken.append(f"{queue.name}: stream {name!r}: {wrong}")
        on_disk = any(streams[queue_id, name].numbers for name in names - known.keys())
        if on_disk and not queue.streams.may_be_on_disk:
            broken.append(f"{queue.name}: nobody looks for streams on disk")
    counted = sum(stream.counted for stream in memory.cold_streams.values())
    if memory.cached_members != counted:
        broken.append(f"{memory.cached_members} messages of streams are said to be kept in memory")
    return broken


def _wrong_stream(
    known: int | Stream | None, stored: Stream, messages: Mapping[int, StoredMessage]
) -> str | None:
    hot = [number for number in stored.numbers if not messages[number].is_cold_member]
    if known is None:
        is_wrong = hot or stored.row() is not None
        return "memory knows nothing of it" if is_wrong else None
    if isinstance(known, int):
        return None if known == stored.numbers[0] and len(hot) <= 1 else f"memory has only {known}"
    if known.row() != stored.row():
        return f"memory has the row {known.row()}, stored is {stored.row()}"
    beginning = [number for number in stored.numbers if known.covers(messages[number].seq)]
    if known.numbers != beginning or not set(hot) <= set(beginning):
        return f"memory has {known.numbers}, and must have {beginning}, among them {hot}"
    if known.leased != [number for number in stored.leased if number in beginning]:
        return f"memory has {known.leased} leased, stored are {stored.leased}"
    if not known.is_unread and (known.front, known.key) != (stored.front, stored.key):
        return f"its front and key are {known.front}, {known.key!r}, not {stored.front}, {stored.key!r}"
    return None


def _content(chunk: Chunk) -> object:
    states = bytes(chunk.states or bytes(chunk.count))
    where = chunk.is_cold, chunk.has_runs, chunk.body, chunk.left
    # In stored form: memory may have a tuple where a list is read.
    return where, chunk.live, chunk.dead_bytes, states, msgspec.msgpack.encode(chunk.columns)


def _differences(queue: Queue, reopened: Queue, stored: Counts) -> list[str]:
    found = []
    if queue.record != reopened.record:
        found.append("its record differs after a reopening")
    if not queue.counts == reopened.counts == stored:
        found.append(f"in memory {queue.counts}, reopened {reopened.counts}, stored {stored}")
    return found


def _dedup_differences(
    messages: Mapping[int, StoredMessage], store: KeyValueStore, queue: Queue
) -> list[str]:
    """A key without a window belongs to a live message of its queue; a window ends eventually, and the engine
    knows when to check.
    """
    queue_id, found = queue.record.queue_id, []
    rows = read_all_dedup(store, queue_id)
    windows = read_windows(store, queue_id, limit=1_000_000)
    for key, row in rows.items():
        number = find_number(row.raw_id)
        if row.until_ms:
            if (row.until_ms, key) not in windows:
                found.append(f"{queue.name}: the window of dedup key {key!r} never ends")
        elif number is None or number not in messages:
            found.append(f"{queue.name}: dedup key {key!r} stands for a message that is gone")
        elif messages[number].state.queue_id != queue_id:
            found.append(f"{queue.name}: dedup key {key!r} stands for a dead letter")
    if windows and not 0 < queue.next_window_ms <= windows[0][0]:
        found.append(f"{queue.name}: nobody looks when the next window ends")
    for message in messages.values():
        if message.chunk.queue_id != queue_id or not message.live_key:
            continue
        remembered = rows.get(message.live_key)
        if remembered is None or remembered.raw_id != id_of(message.chunk.prefix, message.number):
            found.append(f"{queue.name}: dedup key {message.live_key!r} of message {message.number} is lost")
    return found


def _empty_streams(messages: Mapping[int, StoredMessage], store: KeyValueStore, queue: Queue) -> list[str]:
    """Rows of streams without messages: a later stream of that name would inherit them."""
    queue_id = queue.record.queue_id
    known = {
        message.chunk.stream_of(message.number)
        for message in messages.values()
        if message.in_stream and message.state.queue_id == queue_id
    }
    return [
        f"{queue.name}: stream {name!r} has a row and no message"
        for name in read_stream_names(store, queue_id)
        if name not in known
    ]


def _closed_differences(memory: Memory) -> list[str]:
    """Keys are closed as stored, and only messages that a claim holds are probes."""
    stored = {key.decode(): closure.until_ms for key, closure in memory.records[Table.CLOSED].items()}
    closed = memory.buckets.closed
    if {key: one.until_ms for key, one in closed.items()} != stored:
        return [f"throttles {sorted(closed)} are closed, stored are {sorted(stored)}"]
    return [
        f"throttle {key!r} waits for probes that are not out: {sorted(gone)}"
        for key, one in closed.items()
        if (gone := one.probes - memory.held.keys())
    ]


def _tokens(memory: Memory, now_ms: int) -> list[tuple[str, Bucket]]:
    """Buckets refilled to now: a refill in memory is not written, because the passed time is enough to repeat
    it.
    """
    buckets = [*memory.buckets.all().items(), *memory.idle_buckets.items()]
    return [
        (key, bucket._replace(tokens=round(bucket.tokens_at(now_ms), 6), at_ms=now_ms))
        for key, bucket in sorted(buckets)
    ]


def _lanes(memory: Memory, queue: Queue) -> dict[LaneName, list[int]]:
    return {
        lane: sorted(numbers, key=memory.place_of)
        for lane, numbers in queue.schedule.lanes().items()
        if numbers
    }


def _terms(memory: Memory) -> dict[int, object]:
    return {number: lease.terms for number, lease in memory.held.items()}


def _everywhere(memory: Memory) -> list[int]:
    numbers = list(memory.held)
    for queue in memory.by_id.values():
        numbers += queue.schedule.numbers()
        numbers += queue.streams.stream_backlog()
    return numbers
