"""Every stored message, read from all rows: for laws, verification and repair, which must not trust an index
or a counter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from fairlead.model.lane import DEFAULT_KEY, lane_key, lane_throttle_keys
from fairlead.model.queue import QueueRecord
from fairlead.records.chunk import OWN, Chunk, LaneName
from fairlead.records.ids import BLOCK_MASK
from fairlead.records.lease import LeaseTerms
from fairlead.records.state import Counts, MemberRow, OwnState, RunRow
from fairlead.records.stream import SeqOf, Stream
from fairlead.store.cold_rows import run_key
from fairlead.store.kv.port import KeyValueStore, Table
from fairlead.store.row_keys import pack_key
from fairlead.store.rows import (
    decode_value,
    encode_value,
    read_chunks,
    read_leases,
    read_own,
    read_queues,
    read_table,
)
from fairlead.store.stream_rows import member_key


class StoredMessage(NamedTuple):
    """`state` is the one that its chunk implies, if it has no row of its own. `terms`: None unless a claim
    holds it. `in_stream`: a stream orders it, and brings it into its lane while it is at the front.
    """

    chunk: Chunk
    number: int
    state: OwnState
    terms: LeaseTerms | None
    in_stream: bool

    @property
    def is_own(self) -> bool:
        return self.chunk.state_of(self.number) == OWN

    @property
    def is_waiting(self) -> bool:
        return self.terms is None and self.state.due_ms != 0

    @property
    def is_in_lane(self) -> bool:
        is_ready = not self.state.due_ms and not self.state.done_ms
        return self.terms is None and is_ready and not self.in_stream

    @property
    def seq(self) -> int:
        return self.state.seq or self.number

    @property
    def is_cold_member(self) -> bool:
        """For a message in a stream: whether memory need not hold it."""
        return self.chunk.is_cold or self.state.seq != 0

    @property
    def lane(self) -> LaneName:
        packed = self.state.lane
        if self.state.source_queue_id:
            return (DEFAULT_KEY,)
        return (lane_key(packed), *lane_throttle_keys(packed)) if packed else self.chunk.lane_of(self.number)

    @property
    def is_in_first_life(self) -> bool:
        return self.state.queue_id == self.chunk.queue_id and not self.state.redrives

    @property
    def live_key(self) -> str:
        """The dedup key that is remembered while the message is live or retained; empty if there is none."""
        keeps_key = self.is_in_first_life and (not self.state.done_ms or self.state.keeps_key)
        return self.chunk.live_key(self.number) if keeps_key else ""

    @property
    def end_of_life(self) -> int:
        """0: never, as for a message that was dead or is done."""
        has_end = self.is_in_first_life and not self.state.done_ms
        return self.chunk.expires_ms(self.number) if has_end else 0


def read_messages(store: KeyValueStore) -> list[StoredMessage]:
    homes = [record for record in read_queues(store) if not record.source_id]
    return [message for record in homes for message in _read_home(store, record)]


def _read_home(store: KeyValueStore, record: QueueRecord) -> Iterator[StoredMessage]:
    home_id, is_ordered = record.queue_id, record.config.ordering != "none"
    own = read_own(store, home_id)
    chunks = {chunk.block: chunk for chunk in read_chunks(store, home_id)}
    held = read_leases(store, home_id, chunks, own)
    for chunk in chunks.values():
        for number in [*chunk.implied(), *chunk.with_own_rows()]:
            is_own = chunk.state_of(number) == OWN
            state = own[number] if is_own else OwnState(home_id, number)
            is_there = state.queue_id == home_id and not state.done_ms
            in_stream = is_ordered and is_there and chunk.stream_of(number) != ""
            terms = held[number].terms if number in held else None
            yield StoredMessage(chunk, number, state, terms, in_stream)


def count_messages(store: KeyValueStore) -> dict[int, Counts]:
    """The counts of each queue, counted message by message."""
    found = {record.queue_id: Counts() for record in read_queues(store)}
    for message in read_messages(store):
        counts = found[message.state.queue_id]
        if message.state.done_ms:
            counts.done += 1
            continue
        counts.bytes += message.chunk.columns.size_of(message.number & BLOCK_MASK)
        if message.terms is not None:
            counts.leased += 1
        elif message.is_waiting:
            counts.waiting += 1
        else:
            counts.ready += 1
    for key, _ in read_table(store, Table.COLD):
        found[int.from_bytes(key[:8], "big")].cold += 1
    return found


#: `decide.fronts.find_front`.
FindFront = Callable[[Stream, SeqOf, Callable[[int], bool]], int]


def read_streams(
    store: KeyValueStore, messages: Iterable[StoredMessage], find_front: FindFront
) -> dict[tuple[int, str], Stream]:
    """All streams as they would be in memory, by queue and name."""
    found: dict[tuple[int, str], Stream] = {}
    in_streams = {message.number: message for message in messages if message.in_stream}
    for message in sorted(in_streams.values(), key=lambda message: message.seq):
        name = message.chunk.stream_of(message.number)
        stream = found.setdefault((message.chunk.queue_id, name), Stream(name))
        stream.key = stream.key or message.lane[0]
        stream.numbers.append(message.number)
        if message.terms is not None:
            stream.leased.append(message.number)
    for key, raw in read_table(store, Table.STREAMS):
        known = found.get((int.from_bytes(key[:8], "big"), key[8:].decode()))
        row = decode_value(Table.STREAMS, raw)
        if known is not None:
            known.allowed_to_pass, known.all_after = set(row.allowed_to_pass), row.all_after
    for stream in found.values():
        stream.front = find_front(
            stream, lambda number: in_streams[number].seq, lambda number: in_streams[number].is_waiting
        )
    return found


def index_rows(store: KeyValueStore, find_front: FindFront) -> dict[Table, dict[bytes, bytes]]:
    """The rows that must lead to messages, by table and key."""
    found: dict[Table, dict[bytes, bytes]] = {
        table: {} for table in (Table.DUE, Table.DONE, Table.LIVES, Table.RUNS, Table.MEMBERS)
    }
    in_chunks: Counter[tuple[Chunk, LaneName]] = Counter()
    weights: dict[tuple[Chunk, LaneName], int] = {}
    messages = read_messages(store)
    streams = read_streams(store, messages, find_front)
    _index_streams(messages, streams, found)
    for message in messages:
        chunk, number, state = message.chunk, message.number, message.state
        home_id = chunk.queue_id
        if message.is_waiting:
            found[Table.DUE][pack_key(home_id, state.due_ms, number)] = b""
        if state.done_ms:
            found[Table.DONE][pack_key(home_id, state.done_ms, number)] = b""
        if message.end_of_life and message.terms is None:
            found[Table.LIVES][pack_key(home_id, message.end_of_life, chunk.first)] = b""
        if message.is_in_lane and message.is_own:
            weight = 1 if state.source_queue_id else state.weight or chunk.weight_of(number)
            key = run_key(home_id, state.queue_id, message.lane, state.place, True)
            found[Table.RUNS][key] = encode_value(RunRow(number, 0, weight))
        if chunk.has_runs and not message.is_own and not message.in_stream:
            in_chunks[chunk, message.lane] += 1
            weights[chunk, message.lane] = chunk.weight_of(number)
    for (chunk, lane), count in in_chunks.items():
        first = chunk.first_of_lanes()[lane]
        key = run_key(chunk.queue_id, chunk.queue_id, lane, first, False)
        found[Table.RUNS][key] = encode_value(RunRow(first, count, weights[chunk, lane], chunk.count == 1))
    return found


def _index_streams(
    messages: Iterable[StoredMessage],
    streams: Mapping[tuple[int, str], Stream],
    found: dict[Table, dict[bytes, bytes]],
) -> None:
    """Rows of streams, and of lanes in which their fronts stand."""
    in_chunks: Counter[tuple[Chunk, str]] = Counter()
    for message in messages:
        if not message.in_stream or not message.is_cold_member:
            continue
        chunk, number, home_id = message.chunk, message.number, message.chunk.queue_id
        name = chunk.stream_of(number)
        if message.is_own:
            row = MemberRow(number, 0, message.lane[0])
            found[Table.MEMBERS][member_key(home_id, name, message.seq, True)] = encode_value(row)
        else:
            in_chunks[chunk, name] += 1
        if streams[home_id, name].front == number:
            key = run_key(home_id, home_id, message.lane, message.seq, True)
            weight = message.state.weight or chunk.weight_of(number)
            found[Table.RUNS][key] = encode_value(RunRow(number, 0, weight))
    for (chunk, name), count in in_chunks.items():
        first = chunk.members_of(name)[0]
        row = MemberRow(first, count, chunk.lane_of(first)[0])
        found[Table.MEMBERS][member_key(chunk.queue_id, name, first, False)] = encode_value(row)


def find_wrong_indexes(store: KeyValueStore, find_front: FindFront) -> list[str]:
    """Rows that are missing or lead nowhere. Rows for the ends of lives in a chunk may stay until it is gone."""
    expected = index_rows(store, find_front)
    allowed = {table: set(rows) for table, rows in expected.items()}
    for chunk in {message.chunk.first: message.chunk for message in read_messages(store)}.values():
        home_id = chunk.queue_id
        allowed[Table.LIVES] |= {pack_key(home_id, end_ms, chunk.first) for end_ms in chunk.ends_of_life()}
    found = []
    for table, rows in expected.items():
        stored = dict(read_table(store, table))
        found += [
            f"{table.name.lower()} {key.hex()} is missing" for key in sorted(rows.keys() - stored.keys())
        ]
        found += [
            f"{table.name.lower()} {key.hex()} leads nowhere"
            for key in sorted(stored.keys() - allowed[table])
        ]
        if table is Table.RUNS:
            found += [f"runs {key.hex()} leads to too few" for key in sorted(_find_short(stored, rows))]
    return found


def _find_short(stored: Mapping[bytes, bytes], expected: Mapping[bytes, bytes]) -> Iterator[bytes]:
    """Rows of lanes that state fewer messages than they lead to: a reader would stop too early."""
    for key, raw in expected.items():
        if stored.get(key, raw) != raw:
            row, wanted = decode_value(Table.RUNS, stored[key]), decode_value(Table.RUNS, raw)
            if row.count < wanted.count:
                yield key
