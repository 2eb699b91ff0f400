"""Build a valid store from the rows that are left of a damaged directory.

A message is saved if the head of its chunk and its page of payloads can be read. Nothing is invented:

* A message whose state names a row of its own, and whose row is lost, is ready again without its history.
* A message whose page is lost is lost, and so are all messages of a chunk whose head is lost.
* A lease is kept if its row is; a message that a lost lease held is ready again.
* Counters are counted anew. Dedup keys of live messages come from the chunks.
* A numbered claim is kept with all of its members and outcomes, or not at all; a staged chunk with all of its
  messages. The rest of a published write becomes messages, because the broker confirmed the publication.
* A queue whose record is lost gets a new one with default settings, under the name `recovered-<queue id>`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from fairlead.decide.fronts import find_front
from fairlead.model.ids import show_id
from fairlead.model.queue import QueueConfig, QueueRecord
from fairlead.records.chunk import GONE, IMPLIED, OWN, Chunk, Head, page_sizes, page_starts
from fairlead.records.consumer import ChosenParts, RecordedCall
from fairlead.records.ids import BLOCK_MASK, BLOCK_SHIFT, COMMIT_SHIFT, find_number, id_of
from fairlead.records.lease import LeaseRow
from fairlead.records.staging import StagedPart
from fairlead.records.state import Counts, DedupRow, OwnState
from fairlead.salvage.records import ClaimMember, StagedRows, keep_staged, lose_claim, why_broken
from fairlead.salvage.report import GoneMessage, QueueReport, RepairReport
from fairlead.store.kv.fence import read_fence
from fairlead.store.kv.port import Batch, Table
from fairlead.store.kv.rocks import FENCE_KEY, RocksKeyValueStore
from fairlead.store.kv.rocks_options import family_name
from fairlead.store.rocks.salvage import Salvage, SalvageLayout
from fairlead.store.row_check import TABLES_OF_QUEUES, problem_of
from fairlead.store.rows import (
    decode_value,
    encode_value,
    find_missing_pages,
    made_key,
    outcomes_key,
    own_key,
    part_key,
    payload_range,
    published_end_key,
    read_key,
    session_of_answer,
    session_of_end,
    write_of_published_end,
)
from fairlead.store.stored_messages import count_messages, index_rows

#: The fence is a row of the default family: version, epoch, commit number.
LAYOUT = SalvageLayout(tuple(map(family_name, Table)), b"\x05fence\x19\x01", commit_offset=8)

#: Commits that the damage hides may have issued numbers, which new ids and leases must not repeat.
_SKIPPED_COMMITS = 1_000_000
_EPOCH_SHIFT = 44
_BATCH_BYTES = 8 << 20
#: Tables that are rebuilt, or that belong to the messages.
_NOT_COPIED = {
    Table.QUEUES,
    Table.COUNTERS,
    *TABLES_OF_QUEUES,
    Table.CONSUMERS,
    Table.OUTCOMES,
    Table.STAGED,
    Table.STAGED_PARTS,
    Table.PUBLISHING,
    Table.PUBLISHED,
    Table.PUBLISHED_END,
    Table.ANSWERS,
    Table.SESSION_ENDS,
}


def rebuild(
    source: Salvage, store: RocksKeyValueStore, report: RepairReport, *, step: Callable[[str, int], None]
) -> None:
    """Write everything that `source` holds into an empty store, and record in `report` what is lost."""
    _RowsRebuild(source, store, report, step).run()


class _RowsRebuild:
    def __init__(
        self,
        source: Salvage,
        store: RocksKeyValueStore,
        report: RepairReport,
        step: Callable[[str, int], None],
    ) -> None:
        self._source, self._store, self._report, self._step = source, store, report, step
        self._queues: dict[int, QueueRecord] = {}
        self._own: dict[bytes, OwnState] = {}
        self._chunks: dict[int, Chunk] = {}
        #: Key of a lost page, and the bytes of its payloads.
        self._lost_pages: dict[bytes, int] = {}
        #: The queue and the number under which pages of saved messages, published or staged, are stored.
        self._bodies: set[tuple[int, int]] = set()
        #: The number of lost messages of each queue.
        self._gone: dict[int, int] = {}
        self._epoch = self._commit = 0
        self._batch = Batch()
        self._batch_bytes = 0

    def run(self) -> None:
        self._continue_numbers()
        self._queues = {record.queue_id: record for _, record, _ in self._decoded(Table.QUEUES)}
        self._own = {key: state for key, state, _ in self._decoded(Table.OWN)}
        for table in Table:
            if table not in _NOT_COPIED:
                for key, _, raw in self._decoded(table):
                    self._put(table, key, raw)
        pages = {key: len(raw) for key, _, raw in self._decoded(Table.PAGES)}
        self._save_chunks(pages)
        self._save_staged(pages)
        self._save_pages()
        self._save_leases()
        self._save_own()
        self._save_streams()
        self._save_dedup()
        self._forget_sessions()
        for record in self._queues.values():
            self._put(Table.QUEUES, made_key(record.queue_id), encode_value(record))
        self._write()
        self._save_indexes()
        self._count()
        self._store.sync()

    # Rows in, rows out

    def _decoded(self, table: Table) -> Iterator[tuple[bytes, Any, bytes]]:
        """Key, value and raw value of each readable row of a table."""
        name = family_name(table)
        self._step(name, 0)
        for row in self._source.rows(name):
            self._step(name, 1)
            problem = problem_of(table, row.key, row.value)
            if problem is None:
                yield row.key, decode_value(table, row.value), row.value
            else:
                self._report.other.append(f"table {name}, row {row.key.hex()}: {problem}")

    def _put(self, table: Table, key: bytes, value: bytes) -> None:
        self._batch.put(table, key, value)
        self._batch_bytes += len(key) + len(value)
        if self._batch_bytes > _BATCH_BYTES:
            self._write()

    def _write(self) -> None:
        self._commit += 1
        self._store.write(self._batch, self._epoch, self._commit)
        self._batch, self._batch_bytes = Batch(), 0

    def _continue_numbers(self) -> None:
        epoch, commit = 0, self._source.last_commit
        for row in self._source.rows("default"):
            if row.key == FENCE_KEY:
                try:
                    fence = read_fence(row.value)
                except ValueError:
                    continue
                epoch, commit = fence.epoch, max(commit, fence.commit)
        for row in self._source.rows(family_name(Table.CHUNKS)):
            commit = max(commit, read_key(row.key)[-1] >> COMMIT_SHIFT)
        for _, lease, _ in self._decoded(Table.LEASES):
            epoch = max(epoch, lease.terms.group >> _EPOCH_SHIFT)
        self._epoch, self._commit = epoch + 1, commit + _SKIPPED_COMMITS
        self._store.continue_behind(self._epoch, self._commit)

    # Messages

    def _save_chunks(self, pages: dict[bytes, int]) -> None:
        """Save the chunks. `pages` has the bytes of the payloads of each readable page."""
        states = {key: bytearray(value) for key, value, _ in self._decoded(Table.STATES)}
        stale = {row.key for row in self._source.rows(family_name(Table.STATES)) if row.stale}
        for key, head, is_cold in self._heads():
            chunk = self._make_chunk(read_key(key)[0], head, states.pop(key, None))
            self._lose_pages(chunk, pages)
            if not chunk.live:
                continue
            self._fit_own_rows(chunk)
            self._chunks[chunk.block] = chunk
            if not chunk.is_inline:
                self._bodies.add((chunk.queue_id, chunk.body))
            if key in stale:
                alive = [number for number in chunk.numbers if chunk.state_of(number) != GONE]
                self._report.redelivered += [_shown(chunk, number) for number in alive]
            self._put_head(key, chunk, head, is_cold=is_cold)
            if chunk.states is not None:
                self._put(Table.STATES, key, bytes(chunk.states))
        for key, lost in states.items():
            self._lose_headless(key, len(lost) - lost.count(GONE))

    def _heads(self) -> Iterator[tuple[bytes, Head, bool]]:
        """Each head, with whether it is cold. A chunk never becomes hot again, so its cold head is the later
        one.
        """
        cold = set()
        for key, head, _ in self._decoded(Table.COLD):
            cold.add(key)
            yield key, head, True
        for key, head, _ in self._decoded(Table.CHUNKS):
            if key not in cold:
                yield key, head, False

    def _put_head(self, key: bytes, chunk: Chunk, head: Head, *, is_cold: bool) -> None:
        """Write the head of a chunk.

        A chunk whose states are lost has implied messages again, which need rows of their lanes. Only the end
        of a stream may be cold, and the chunk may be anywhere in it, so all chunks with streams become cold.
        """
        is_ordered = self._queues[chunk.queue_id].config.ordering != "none"
        is_cold = is_cold or (is_ordered and chunk.columns.streams is not None)
        has_runs = is_cold and chunk.has_implied()
        self._put(
            Table.COLD if is_cold else Table.CHUNKS, key, encode_value(replace(head, has_runs=has_runs))
        )

    def _save_pages(self) -> None:
        """Save the pages, with zeros in place of lost payloads."""
        for key, _, raw in self._decoded(Table.PAGES):
            if _body_of(key) in self._bodies and key not in self._lost_pages:
                self._put(Table.PAGES, key, raw)
        for key, size in self._lost_pages.items():
            if _body_of(key) in self._bodies:
                self._put(Table.PAGES, key, bytes(size))

    def _save_staged(self, pages: dict[bytes, int]) -> None:
        def has_pages(where: tuple[int, int], part: StagedPart) -> bool:
            sizes = page_sizes(page_starts(part.sizes), part.sizes)
            keys = [made_key(*where) + page.to_bytes(2, "big") for page in range(len(sizes))]
            return [pages.get(key) for key in keys] == sizes

        parts = {_body_of(key): part for key, part, _ in self._decoded(Table.STAGED_PARTS)}
        found = StagedRows(
            {key: chunk for key, chunk, _ in self._decoded(Table.STAGED)},
            parts,
            {key: record for key, record, _ in self._decoded(Table.PUBLISHING)},
            {key: done for key, done, _ in self._decoded(Table.PUBLISHED)},
        )
        used = {(chunk.queue_id, chunk.body) for chunk in self._chunks.values() if chunk.body != chunk.first}
        kept = keep_staged(found, self._queues.keys(), used, has_pages, self._report)
        for key, chunk in kept.chunks.items():
            self._put(Table.STAGED, key, encode_value(chunk))
        for (queue_id, number), part in kept.parts.items():
            self._put(Table.STAGED_PARTS, part_key(queue_id, number), encode_value(part))
            if part.inline is None:
                self._bodies.add((queue_id, number))
        for key, record in kept.publishing.items():
            self._put(Table.PUBLISHING, key, encode_value(record))
        for key, done in kept.published.items():
            self._put(Table.PUBLISHED, key, encode_value(done))
            self._put(Table.PUBLISHED_END, published_end_key(done.until_ms, done.write), encode_value(True))
        for key, _, _ in self._decoded(Table.PUBLISHED_END):
            if write_of_published_end(key) not in kept.published:
                self._report.other.append(
                    "a published write is forgotten: publishing it again would double it"
                )

    def _forget_sessions(self) -> None:
        """Drop sessions with a missing answer. Such a session would carry out its request again; an unknown
        session refuses it.
        """
        sessions = {session_of_end(key) for key, _, _ in self._decoded(Table.SESSION_ENDS)}
        sessions |= {session_of_answer(key) for key, _, _ in self._decoded(Table.ANSWERS)}
        if sessions:
            self._report.other.append(
                f"{len(sessions)} sessions are forgotten: a request that is repeated in one of them is refused"
            )

    def _make_chunk(self, queue_id: int, head: Head, states: bytearray | None) -> Chunk:
        self._need_queue(queue_id, 0)
        count = len(head.columns.sizes)
        if states is not None and (len(states) != count or max(states, default=0) > GONE):
            self._report.other.append(f"chunk {head.first} of queue {queue_id}: its states are lost")
            states = None
        if head.left is not None:
            # The other messages are gone, whatever older states say.
            left, known = set(head.left), states or bytearray(count)
            states = bytearray([known[index] if index in left else GONE for index in range(count)])
        return Chunk.of(queue_id, head, head.inline, states)

    def _lose_pages(self, chunk: Chunk, pages: dict[bytes, int]) -> None:
        """Count messages without payloads as lost."""
        for page in find_missing_pages(chunk, lambda key, size: pages.get(key) == size):
            numbers, key = payload_range(chunk, page)
            for number in numbers:
                if chunk.state_of(number) != GONE:
                    self._lose(chunk, number, "its payload cannot be read")
                    chunk.mark([number], GONE)
                    chunk.live -= 1
            self._lost_pages[key] = page_sizes(chunk.page_starts(), chunk.columns.sizes)[page]

    def _lose(self, chunk: Chunk, number: int, where: str) -> None:
        queue = self._queues[chunk.queue_id]
        self._gone[chunk.queue_id] = self._gone.get(chunk.queue_id, 0) + 1
        self._report.gone.append(
            GoneMessage(_shown(chunk, number), queue.name, chunk.lane_of(number)[0], where)
        )

    def _lose_headless(self, key: bytes, count: int) -> None:
        queue_id, first = read_key(key)
        self._gone[queue_id] = self._gone.get(queue_id, 0) + count
        self._report.other.append(
            f"queue {queue_id}: {count} messages of the chunk {first} are gone: its head cannot be read"
        )

    def _fit_own_rows(self, chunk: Chunk) -> None:
        """Reconcile a chunk's states with its messages' own rows: they may be of different times, or some of
        them lost.
        """
        for number in chunk.numbers:
            state, row = chunk.state_of(number), self._own.get(own_key(chunk, number))
            if state == OWN and row is None:
                self._report.lost_history.append(_shown(chunk, number))
                # Not implied, because a lease that the message has left may still list it.
                self._own[own_key(chunk, number)] = OwnState(chunk.queue_id, number)
            elif state == IMPLIED and row is not None:
                chunk.mark([number], OWN)
            if row is not None:
                self._need_queue(row.queue_id, chunk.queue_id)

    def _need_queue(self, queue_id: int, source_id: int) -> None:
        if queue_id in self._queues:
            return
        source = self._queues.get(source_id)
        is_dead = source is not None and source.dlq_id == queue_id
        name = f"{source.name}.dlq" if source is not None and is_dead else f"recovered-{queue_id}"
        self._queues[queue_id] = QueueRecord(queue_id, name, QueueConfig(), 0, source_id=source_id)
        self._report.other.append(f"the settings of queue {queue_id} are lost; it is called {name!r} now")

    def _find(self, number: int) -> Chunk | None:
        """The chunk of a saved message, or None."""
        chunk = self._chunks.get(number >> BLOCK_SHIFT)
        if chunk is None or number & BLOCK_MASK >= chunk.count or chunk.state_of(number) == GONE:
            return None
        return chunk

    def _save_leases(self) -> None:
        """Save the leases. A member that several rows of a claim list belongs to the latest one.

        A lease without members is dropped, and so is a lease of a numbered claim that is not kept.
        """
        held: set[int] = set()
        kept: dict[bytes, tuple[LeaseRow, list[int]]] = {}
        rows = sorted(self._decoded(Table.LEASES), key=lambda found: found[1].terms.group, reverse=True)
        for key, row, _ in rows:
            claim_id = row.terms.claim_id
            members = [one for one in _members(row) if one not in held and self._is_held(one, claim_id)]
            if members and row.terms.queue_id in self._queues:
                kept[key] = row, members
                held |= {*members}
        lost = self._save_consumers(kept)
        for key, (row, members) in kept.items():
            if row.terms.is_numbered and row.terms.claim_id in lost:
                held -= {*members}
                self._report.redelivered += [_shown(self._chunk_of(number), number) for number in members]
            else:
                self._put(Table.LEASES, key, encode_value(row))
        for key, state in self._own.items():
            if state.claim_id and read_key(key)[1] not in held:
                self._own[key] = replace(state, claim_id=0)

    def _is_held(self, number: int, claim_id: int) -> bool:
        """Whether, according to the message's own row, the claim that lists the message holds it."""
        chunk = self._find(number)
        if chunk is None:
            return False
        state = self._own.get(own_key(chunk, number))
        return state is None or state.claim_id == claim_id

    def _save_consumers(self, leases: dict[bytes, tuple[LeaseRow, list[int]]]) -> set[int]:
        """Save the consumers, and return the claims that are not kept."""
        members: dict[int, list[ClaimMember]] = {}
        for row, numbers in leases.values():
            if row.terms.is_numbered:
                members.setdefault(row.terms.claim_id, []).extend(map(self._member, numbers))
        said: dict[int, dict[int, RecordedCall | ChosenParts]] = {}
        for key, call, _ in self._decoded(Table.OUTCOMES):
            claim_id, number = read_key(key)
            said.setdefault(claim_id, {})[number] = call
        whole: set[int] = set()
        for key, record, _ in self._decoded(Table.CONSUMERS):
            found = record
            if record.claim_id:
                claim_id = record.claim_id
                why = why_broken(record, members.get(claim_id, []), said.get(claim_id, {}))
                if why is None:
                    whole.add(claim_id)
                else:
                    found = lose_claim(record, why, self._report)
            elif record.turns:
                found = record.without_claim()
            self._put(Table.CONSUMERS, key, encode_value(found))
        for claim_id in whole & said.keys():
            for call, recorded in said[claim_id].items():
                self._put(Table.OUTCOMES, outcomes_key(claim_id, call), encode_value(recorded))
        for claim_id in said.keys() - whole - members.keys():
            self._report.other.append(f"what was recorded of numbered claim {claim_id:x} is gone")
        return members.keys() - whole

    def _member(self, number: int) -> ClaimMember:
        chunk = self._chunk_of(number)
        return ClaimMember(id_of(chunk.prefix, number), chunk.columns.size_of(number & BLOCK_MASK))

    def _chunk_of(self, number: int) -> Chunk:
        return self._chunks[number >> BLOCK_SHIFT]

    def _save_own(self) -> None:
        for key, state in self._own.items():
            queue_id, number = read_key(key)
            chunk = self._find(number)
            if chunk is not None and chunk.queue_id == queue_id:
                self._put(Table.OWN, key, encode_value(state))

    def _save_streams(self) -> None:
        """Save what is known about a stream beside its messages, while one of them is live in its queue."""
        live = {
            (chunk.queue_id, chunk.stream_of(number))
            for chunk in self._chunks.values()
            for number in (chunk.numbers if chunk.columns.streams else ())
            if self._is_in_queue(chunk, number)
        }
        for key, row, _ in self._decoded(Table.STREAMS):
            if (read_key(key)[0], key[8:].decode()) in live:
                allowed = tuple(number for number in row.allowed_to_pass if self._find(number) is not None)
                self._put(Table.STREAMS, key, encode_value(replace(row, allowed_to_pass=allowed)))

    def _is_in_queue(self, chunk: Chunk, number: int) -> bool:
        """Whether a message is live in the queue that it was enqueued into."""
        state = self._own.get(own_key(chunk, number))
        return chunk.state_of(number) != GONE and (state is None or state.queue_id == chunk.queue_id)

    def _save_dedup(self) -> None:
        kept: set[bytes] = set()
        for key, row, raw in self._decoded(Table.DEDUP):
            queue_id = read_key(key)[0]
            if queue_id in self._queues and (row.until_ms or self._owns_key(queue_id, row)):
                kept.add(key)
                self._put(Table.DEDUP, key, raw)
                if row.until_ms:
                    self._put(Table.DEDUP_END, made_key(queue_id, row.until_ms) + key[8:], b"")
        for chunk in self._chunks.values():
            for number in chunk.numbers if chunk.columns.live_keys else ():
                row = DedupRow(id_of(chunk.prefix, number), 0)
                key = made_key(chunk.queue_id) + chunk.live_key(number).encode()
                if chunk.live_key(number) and key not in kept and self._owns_key(chunk.queue_id, row):
                    kept.add(key)
                    self._put(Table.DEDUP, key, encode_value(row))

    def _owns_key(self, queue_id: int, row: DedupRow) -> bool:
        """Whether the key belongs to a message in its first life in this queue."""
        number = find_number(row.raw_id)
        chunk = None if number is None else self._find(number)
        if number is None or chunk is None or id_of(chunk.prefix, number) != row.raw_id:
            return False
        state = self._own.get(own_key(chunk, number))
        return chunk.queue_id == queue_id and (
            state is None or (state.queue_id == queue_id and not state.redrives)
        )

    def _save_indexes(self) -> None:
        for table, rows in index_rows(self._store, find_front).items():
            for key, raw in sorted(rows.items()):
                self._put(table, key, raw)

    def _count(self) -> None:
        before: dict[int, Counts] = {
            read_key(key)[0]: counts for key, counts, _ in self._decoded(Table.COUNTERS)
        }
        for queue_id, counts in count_messages(self._store).items():
            self._put(Table.COUNTERS, made_key(queue_id), encode_value(counts))
            stored = before.get(queue_id)
            counted = None if stored is None else stored.messages + stored.done
            saved, gone = counts.messages + counts.done, self._gone.get(queue_id, 0)
            name = self._queues[queue_id].name
            self._report.queues.append(QueueReport(name, counted, saved, gone))
            # Messages of dead-letter queues are counted as lost in the queue that they were enqueued into.
            if counted is not None and counted != saved and not self._gone:
                self._report.other.append(f"queue {name!r} counted {counted} messages, and {saved} are saved")
        self._write()


def _body_of(key: bytes) -> tuple[int, int]:
    queue_id, number = read_key(key)
    return queue_id, number


def _members(row: LeaseRow) -> Iterator[int]:
    for first, count in row.runs:
        yield from range(first, first + count)


def _shown(chunk: Chunk, number: int) -> str:
    return show_id(id_of(chunk.prefix, number))
