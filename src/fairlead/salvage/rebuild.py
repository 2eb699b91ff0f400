"""Make a lawful store out of the rows that are left.

A message's own records (body and state) say where it is; index rows are made anew from them. So a message is
saved if its body is. Order of the work: queues, dedup windows, messages, leases and numbered claims, streams,
everything else.

* A message without an index row is ready again: it may have been completed.
* An index row without a body is a message that is gone, unless a readable batch deletes it.
* A lease is kept if its claim is; else the message is ready again. A numbered claim is kept if it is whole; else its
  messages are ready again and its consumer learns that the claim is lost.
* A queue whose record is lost gets a new one with default settings, under the name `recovered-<queue id>`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Generic, TypeVar

import msgspec

from fairlead.clock import SystemClock
from fairlead.decide.time_over_restarts import continue_time
from fairlead.errors import StoreCorrupt
from fairlead.model.facts import (
    AuditSaved,
    BucketsSaved,
    ClockMarked,
    ConfigSet,
    Enqueued,
    Fact,
    InDone,
    InReady,
    InStream,
    IntentSaved,
    InWaiting,
    KeySaved,
    Moved,
    Quarantined,
    QueueCleared,
    QueueSaved,
    RequestRemembered,
    RunbookSaved,
)
from fairlead.model.ids import show_id
from fairlead.model.lane import (
    DEAD_LETTER_LANE,
    PLACE_INDEX_BITS,
    ROW_BYTES,
    Flag,
    first_place,
    lane_end,
    lane_key,
    row_flags,
    row_place,
)
from fairlead.model.lease import Lease
from fairlead.model.message import Message, MessageState
from fairlead.model.queue import QueueConfig, QueueRecord
from fairlead.salvage.claims import ClaimBuilder
from fairlead.salvage.placing import Place, Spot, agrees, has_side_rows, place_of, state_is_lost, state_of
from fairlead.salvage.report import GoneMessage, QueueReport, RepairReport
from fairlead.salvage.staged import rebuild_staged
from fairlead.salvage.streams import StreamBuilder
from fairlead.store.boot_id import boot_id
from fairlead.store.rocks import RocksStore, codec
from fairlead.store.rocks.layout import read_timed_key
from fairlead.store.rocks.salvage import Row, Salvage

_BATCH_FACTS, _BATCH_BYTES = 2000, 8 << 20
T = TypeVar("T")


def rebuild(
    source: Salvage, store: RocksStore, report: RepairReport, *, step: Callable[[str, int], None]
) -> None:
    """Write everything that `source` has into an empty store, and note in `report` what is gone."""
    Rebuild(source, store, report, step).run()


class Rebuild:
    """Shared by the builders of streams, claims and staged writes: rows in, facts out."""

    def __init__(
        self, source: Salvage, store: RocksStore, report: RepairReport, step: Callable[[str, int], None]
    ) -> None:
        self.source, self.store, self.report, self.step = source, store, report, step
        self.queues: dict[int, QueueRecord] = {}
        self.counted: dict[int, int] = {}
        self.spots: dict[bytes, Spot] = {}
        #: (queue id, dedup key) -> message id and end of the window, 0 for as long as the message lives.
        self.dedup: dict[tuple[int, str], tuple[bytes, int]] = {}
        self.streams = StreamBuilder(self)
        self.claims = ClaimBuilder(self)
        self.numbers: dict[bytes, int] = {}
        self._greatest_place = 0
        self._taken: set[tuple[int, bytes, int]] = set()
        self._fresh_places = iter(range(0))
        self._facts: list[Fact] = []
        self._bytes = 0
        self.now_ms = 0

    def run(self) -> None:
        marks = [mark for _, mark in self.decoded("clock", codec.decode_clock_mark)]
        clock = SystemClock()
        # What is due is compared with the store's own time, and so is what is written here.
        self.now_ms = continue_time(
            marks[0] if marks else None,
            wall_ms=clock.now_ms(),
            steady_ms=clock.monotonic_ms(),
            origin=boot_id() or b"",
        )
        self.numbers = {row.key: value[0] for row, value in self.decoded("meta", _decode_meta)}
        known = max(self.numbers.get(b"last_commit", 0), self.source.last_commit)
        self._fresh_places = iter(range(first_place(known + 1), 1 << 63))
        self._read_queues()
        self._read_spots()
        self._write_windows()
        self._write_messages()
        self._complete_pairs()
        self.claims.write()
        self.streams.write(set(self.claims.leases))
        self._report_gone()
        self._copy_rest()
        self.flush()
        self._finish_numbers()
        self._name_lost_commits()
        self._report_queues()

    # What others use

    def rows(self, family: str) -> Iterator[Row]:
        self.step(family, 0)
        for row in self.source.rows(family):
            self.step(family, 1)
            yield row

    def decoded(self, family: str, decode: Callable[[bytes, bytes], T]) -> Iterator[tuple[Row, T]]:
        """Rows with their values. A row that does not decode is gone."""
        for row in self.rows(family):
            try:
                value = decode(row.key, row.value)
            except (StoreCorrupt, ValueError, IndexError, struct.error):
                self.report.other.append(f"the row {row.key.hex()} of {family} does not decode")
                continue
            yield row, value

    def add(self, fact: Fact, size: int = 0) -> None:
        self._facts.append(fact)
        self._bytes += size

    def flush(self) -> None:
        if self._facts:
            self.store.commit(self._facts)
            self._facts, self._bytes = [], 0

    def flush_if_large(self) -> None:
        """Between two messages: the facts of one message stay in one commit."""
        if len(self._facts) >= _BATCH_FACTS or self._bytes >= _BATCH_BYTES:
            self.flush()

    def queue_name(self, queue_id: int) -> str:
        record = self.queues.get(queue_id)
        return record.name if record is not None else f"queue id {queue_id}"

    # Queues

    def _read_queues(self) -> None:
        for row, value in self.decoded("counters", _decode_counters):
            ready, waiting, leased, done, _ = value
            self.counted[int.from_bytes(row.key, "big")] = ready + waiting + leased + done
        for _, record in self.decoded("queues", codec.decode_queue):
            self._save_queue(record)

    def _save_queue(self, record: QueueRecord) -> None:
        self.queues[record.queue_id] = record
        self.add(QueueSaved(record))
        self.flush()

    def _queue_of(self, queue_id: int, source_id: int) -> QueueRecord:
        """The record of a queue that holds a message; a new one if it is lost."""
        if queue_id not in self.queues:
            source = self.queues.get(source_id)
            name = f"{source.name}.dlq" if source is not None and source.name else f"recovered-{queue_id}"
            if name in {record.name for record in self.queues.values()}:
                name = f"recovered-{queue_id}"
            created_ms = source.created_ms if source is not None else 0
            self.report.other.append(
                f"the record of queue id {queue_id} is gone; its messages are in {name!r} with default settings"
            )
            self._save_queue(QueueRecord(queue_id, name, QueueConfig(), created_ms, source_id=source_id))
            if source is not None and source.dlq_id != queue_id:
                self._save_queue(msgspec.structs.replace(source, dlq_id=queue_id))
        return self.queues[queue_id]

    def _complete_pairs(self) -> None:
        """A queue and its dead letters have each other."""
        for record in [record for record in self.queues.values() if record.name]:
            if not record.source_id and record.dlq_id not in self.queues:
                dlq_id = record.dlq_id or max(self.numbers.get(b"last_queue_id", 0), *self.queues) + 1
                if record.dlq_id:
                    self.report.other.append(
                        f"the record of queue {record.name + '.dlq'!r} is gone; it has default settings now"
                    )
                self._save_queue(
                    QueueRecord(
                        dlq_id,
                        f"{record.name}.dlq",
                        QueueConfig(),
                        record.created_ms,
                        source_id=record.queue_id,
                    )
                )
                self._save_queue(msgspec.structs.replace(record, dlq_id=dlq_id))
            elif record.source_id and record.source_id not in self.queues:
                name = record.name.removesuffix(".dlq")
                self.report.other.append(f"the record of queue {name!r} is gone; it has default settings now")
                self._save_queue(
                    QueueRecord(
                        record.source_id, name, QueueConfig(), record.created_ms, dlq_id=record.queue_id
                    )
                )

    # Index rows

    def _read_spots(self) -> None:
        for row, (queue_id, lane, place, id, flags) in self.decoded("ready", _decode_ready):
            self._note_spot(id, Spot(queue_id, lane, bool(flags & Flag.STATE), place=place), row)
        for row, (queue_id, due_ms, id, lane, flags) in self.decoded("waiting", _decode_waiting):
            self._note_spot(id, Spot(queue_id, lane, bool(flags & Flag.STATE), due_ms=due_ms), row)
        for row, (queue_id, done_ms, id, lane) in self.decoded("done", _decode_done):
            self._note_spot(id, Spot(queue_id, lane, True, done_ms=done_ms), row)

    def _note_spot(self, id: bytes, spot: Spot, row: Row) -> None:
        if id in self.spots and row.stale:
            return
        self.spots[id] = spot

    # Dedup windows

    def _write_windows(self) -> None:
        """A window outlives its message. It is remembered by a message that is enqueued and dropped in one
        commit.
        """
        for row, (id, until_ms) in self.decoded("dedup", _decode_dedup):
            queue_id, key = int.from_bytes(row.key[:4], "big"), row.key[4:].decode("utf-8", "replace")
            self.dedup[queue_id, key] = id, until_ms
            if until_ms and queue_id in self.queues:
                message = Message(
                    id, queue_id, DEAD_LETTER_LANE, 1, b"", b"", 0, 1, dedup_key=key, dedup_until_ms=until_ms
                )
                self.add(Enqueued(queue_id, [message]))
                self.add(
                    Moved(
                        "dropped",
                        id,
                        InReady(queue_id, message.lane, message.row(1, message.flags)),
                        None,
                        None,
                    )
                )
                self.flush_if_large()
        for row in self.rows("dedup_end"):
            queue_id, key = int.from_bytes(row.key[:4], "big"), row.key[12:].decode("utf-8", "replace")
            if (queue_id, key) not in self.dedup:
                self.report.other.append(
                    f"dedup key {key!r} of queue {self.queue_name(queue_id)!r} is forgotten"
                )
        self.flush()

    # Messages

    def _write_messages(self) -> None:
        self.claims.read()
        self.streams.read()
        states = _Joined(self.decoded("state", codec.decode_state))
        leases = _Joined(self.decoded("leases", codec.decode_lease))
        for row, message in self.decoded("messages", _decode_message):
            self._write_message(message, states.find(row.key), leases.find(row.key), stale=row.stale)
            self.flush_if_large()
        leases.find(None)
        for id, lease in leases.alone:
            spot = Spot(lease.queue_id, lease.lane, False, place=row_place(lease.row))
            self.spots.setdefault(id, spot)
        self.flush()

    def _write_message(
        self, message: Message, state: MessageState | None, lease: Lease | None, *, stale: bool
    ) -> None:
        spot = self.spots.pop(message.id, None)
        if state_is_lost(message, state, spot):
            self.report.lost_history.append(show_id(message.id))
        kept = state_of(message, state, spot, now_ms=self.now_ms)
        queue_id = kept.queue_id if kept is not None else message.queue_id
        queue = self._queue_of(
            queue_id, kept.source_queue_id if kept is not None and kept.dead_since_ms else 0
        )
        in_lease = (
            lease is not None and lease.queue_id == queue_id and not (kept and (kept.due_ms or kept.done_ms))
        )
        in_stream = self.streams.known.pop(message.id, None) is not None
        contradicts = spot is not None and (lease is not None or not agrees(message, kept, spot))
        if stale or contradicts or (spot is None and not in_lease and not in_stream):
            self.report.redelivered.append(show_id(message.id))
        place = self._place(message, kept, queue)
        kept = self._settled(kept, place)
        self._greatest_place = max(
            self._greatest_place, row_place(place.row), message.place, message.seq, kept.seq if kept else 0
        )
        kept, place = self._add_message(message, kept, place, queue)
        if in_lease and lease is not None:
            self.claims.lease(lease, place)
        if not isinstance(place, InDone) and len(place.row) > ROW_BYTES:
            self.streams.add(message, kept, place)

    def _place(self, message: Message, state: MessageState | None, queue: QueueRecord) -> Place:
        holder = self.dedup.get((message.queue_id, message.dedup_key))
        holds_key = message.live_dedup and (holder is None or holder == (message.id, 0))
        place = place_of(message, state, queue, holds_key=holds_key)
        if holds_key and row_flags(place.row) & Flag.LIVE_DEDUP:
            self.dedup[message.queue_id, message.dedup_key] = message.id, 0
        return self._free(place)

    def _free(self, place: Place) -> Place:
        """Two rows at one place would overwrite each other."""
        if not isinstance(place, InReady):
            return place
        spot = (place.queue_id, place.lane, row_place(place.row))
        if not spot[2] or spot in self._taken:
            at = next(self._fresh_places)
            place = InReady(place.queue_id, place.lane, at.to_bytes(8, "big") + place.row[8:])
            spot = (place.queue_id, place.lane, at)
        self._taken.add(spot)
        return place

    def _settled(self, state: MessageState | None, place: Place) -> MessageState | None:
        """The state with the place that the message really got."""
        if state is None or not isinstance(place, InReady | InStream):
            return state
        return msgspec.structs.replace(state, queue_id=place.queue_id, place=row_place(place.row), due_ms=0)

    def _add_message(
        self, message: Message, state: MessageState | None, place: Place, queue: QueueRecord
    ) -> tuple[MessageState | None, Place]:
        """As it was enqueued and then moved; or, if its dedup key is no longer its own, put there without
        one.

        Returns the state and the place that the message got: without its key it needs a state.
        """
        queue_id = queue.queue_id
        key_row = self.dedup.get((message.queue_id, message.dedup_key))
        own_key = not message.dedup_key or key_row == (
            message.id,
            0 if message.live_dedup else message.dedup_until_ms,
        )
        as_enqueued = (
            has_side_rows(message, state, queue)
            and own_key
            and (state is not None or self._is_first_place(message, place))
        )
        before: Place
        if as_enqueued:
            behind = frozenset({message.id}) if message.seq and not message.due_ms else frozenset[bytes]()
            self.add(Enqueued(queue_id, [message], behind), message.size)
            before = _first_place(message, queue_id)
        else:
            if state is None:
                due_ms = place.due_ms if isinstance(place, InWaiting) else 0
                state = MessageState(queue_id, row_place(place.row), due_ms)
                place = _with_state(place)
            self.add(Quarantined(queue_id, [message], [state]), message.size)
            before = InReady(queue_id, DEAD_LETTER_LANE, message.row(state.place, message.flags | Flag.STATE))
        if before != place:
            key = (queue_id, message.dedup_key)
            loses_key = (
                key
                if as_enqueued and message.live_dedup and not row_flags(place.row) & Flag.LIVE_DEDUP
                else None
            )
            expires_ms = message.expires_ms if as_enqueued or row_flags(place.row) & Flag.TTL else 0
            self.add(Moved("released", message.id, before, place, state, expires_ms, loses_key))
        return state, place

    def _is_first_place(self, message: Message, place: Place) -> bool:
        return place == _first_place(message, place.queue_id)

    # What is gone

    def _report_gone(self) -> None:
        named = self.streams.known | self.spots
        deleted = self.source.deleted_in_logs(set(named)) if named else set()
        for id, spot in named.items():
            if id not in deleted:
                key = lane_key(spot.lane)
                self.report.gone.append(
                    GoneMessage(show_id(id), self.queue_name(spot.queue_id), key, spot.where)
                )

    def _report_queues(self) -> None:
        gone: dict[str, int] = {}
        for message in self.report.gone:
            gone[message.queue] = gone.get(message.queue, 0) + 1
        for queue_id, record in self.queues.items():
            counts = self.store.counters(queue_id)
            saved = counts.messages + counts.done
            self.report.queues.append(
                QueueReport(record.name, self.counted.get(queue_id), saved, gone.get(record.name, 0))
            )
            self.report.messages += saved
            self.report.leases += counts.leased

    # Everything else

    def _copy_rest(self) -> None:
        text = {
            family: lambda key, raw, family=family: codec.decode_text(family, key, raw)
            for family in ("config", "runbooks")
        }
        for row, value in self.decoded("config", text["config"]):
            self._copy(ConfigSet(row.key.decode(), value))
        for row, value in self.decoded("runbooks", text["runbooks"]):
            self._copy(RunbookSaved(row.key.decode(), value))
        # The mark dates everything that is due. It does not count as one of an orderly close: claims may be
        # missing.
        for _, mark in self.decoded("clock", codec.decode_clock_mark):
            self._copy(ClockMarked(msgspec.structs.replace(mark, closed=False)))
        for _, level in self.decoded("buckets", codec.decode_bucket):
            self._copy(BucketsSaved([level]))
        for _, key in self.decoded("keys", codec.decode_key):
            self._copy(KeySaved(key))
        for _, entry in self.decoded("audit", codec.decode_audit):
            self._copy(AuditSaved(entry))
        for row, outcome in self.decoded("requests", _decode_request):
            self._copy(RequestRemembered(row.key, outcome))
        for _, intent in self.decoded("intents", codec.decode_intent):
            if intent.queue_id in self.queues:
                self._copy(IntentSaved(intent))
            else:
                self.report.other.append(
                    f"the {intent.kind} {intent.intent_id} of queue id {intent.queue_id}, which is gone"
                )
        rebuild_staged(self)

    def _copy(self, fact: Fact) -> None:
        self.add(fact)
        self.flush_if_large()

    def _finish_numbers(self) -> None:
        last_queue_id = self.numbers.get(b"last_queue_id", 0)
        if last_queue_id > self.store.last_queue_id:
            self.store.commit([QueueSaved(QueueRecord(last_queue_id, "", QueueConfig(), 0))])
            self.store.commit([QueueCleared(last_queue_id)])
        # Lost, it becomes a number that is greater than that of any life so far and fits into the 32 bits of
        # a claim id.
        boot = self.numbers.get(b"boot") or self.now_ms // 1000
        places = (self._greatest_place >> PLACE_INDEX_BITS) + 1
        self.store.continue_after(
            boot=boot, commit=max(self.numbers.get(b"last_commit", 0), self.source.last_commit, places)
        )

    def _name_lost_commits(self) -> None:
        """Behind the last row that is left, the first lost commit is the one after its number."""
        last = self.numbers.get(b"last_commit", 0)
        gaps = self.source.gaps
        gaps[:] = [
            replace(gap, first_commit=last + 1) if last and not (gap.first_commit or gap.last_commit) else gap
            for gap in gaps
        ]


class _Joined(Generic[T]):
    """A walk through rows in step with another one over the same, rising keys. `alone`: values that the other
    one did not have.
    """

    def __init__(self, rows: Iterator[tuple[Row, T]]) -> None:
        self._rows = rows
        self._next = next(rows, None)
        self.alone: list[tuple[bytes, T]] = []

    def find(self, key: bytes | None) -> T | None:
        """None as the key: to the end."""
        while self._next is not None and (key is None or self._next[0].key < key):
            self.alone.append((self._next[0].key, self._next[1]))
            self._next = next(self._rows, None)
        if self._next is None or self._next[0].key != key:
            return None
        found, self._next = self._next[1], next(self._rows, None)
        return found


def _first_place(message: Message, queue_id: int) -> Place:
    """Where an enqueue puts a message."""
    if message.due_ms:
        return InWaiting(queue_id, message.due_ms, message.lane, message.row(0, message.flags))
    row = message.row(message.place, message.flags)
    return InStream(queue_id, message.lane, row) if message.seq else InReady(queue_id, message.lane, row)


def _with_state(place: Place) -> Place:
    row = place.row[:26] + bytes((place.row[26] | Flag.STATE,)) + place.row[27:]
    return msgspec.structs.replace(place, row=row)


def _decode_message(key: bytes, raw: bytes) -> Message:
    (message,) = codec.decode_messages([key], [raw])
    assert message is not None
    return message


def _decode_meta(key: bytes, raw: bytes) -> tuple[int, ...]:
    return codec.decode_fixed("meta", key, raw, codec.META)


def _decode_counters(key: bytes, raw: bytes) -> tuple[int, ...]:
    return codec.decode_fixed("counters", key, raw, codec.COUNTERS)


def _decode_dedup(key: bytes, raw: bytes) -> tuple[bytes, int]:
    id, until_ms = codec.decode_fixed("dedup", key, raw, codec.DEDUP)
    return id, until_ms


def _decode_request(key: bytes, raw: bytes) -> bytes:
    if raw[:1] != codec.V1:
        raise codec.undecodable("requests", key, "version")
    return raw[1:]


def _decode_ready(key: bytes, raw: bytes) -> tuple[int, bytes, int, bytes, int]:
    _, id, _, flags, _ = codec.READY.unpack_from(raw)
    return int.from_bytes(key[:4], "big"), key[4:-8], int.from_bytes(key[-8:], "big"), id, flags


def _decode_waiting(key: bytes, raw: bytes) -> tuple[int, int, bytes, bytes, int]:
    queue_id, due_ms, id = read_timed_key(key)
    return queue_id, due_ms, id, raw[8 : lane_end(raw, 8)], raw[3]


def _decode_done(key: bytes, raw: bytes) -> tuple[int, int, bytes, bytes]:
    queue_id, done_ms, id = read_timed_key(key)
    return queue_id, done_ms, id, raw[16:]
