"""Putting a numbered claim together: picked as any claim is, pinned piece by piece, sealed by the commit that
ends the last piece.

Each piece is one commit under the lock: leases that do not end by themselves, the next page of the member
list, and the consumer's record. Until the seal nobody has been told of the claim; whoever asks for its number
goes on where the last piece ended, in this process or after a crash.
"""

from __future__ import annotations

from itertools import takewhile
from typing import NamedTuple

import msgspec

from fairlead.broker.claim import allowance, any_touched, take_or_wait
from fairlead.broker.consumer_close import at_rest
from fairlead.broker.core import Core
from fairlead.broker.queue_state import QueueState
from fairlead.broker.room import leases_that_fit
from fairlead.broker.runs import followers_of
from fairlead.broker.states import states_of
from fairlead.broker.timers import run_queue_due
from fairlead.decide.numbered_claims import check_next
from fairlead.errors import QueueNotFound, StoreFull
from fairlead.model.consumer import ConsumerRecord, NumberedClaim
from fairlead.model.facts import ConsumerSaved, Fact, Leased, MembersPinned
from fairlead.model.lane import ROW_BYTES, row_place, row_size
from fairlead.model.lease import NEVER_EXPIRES_MS, Claim, Lease
from fairlead.model.names import Scoped

#: Messages leased in one hold of the lock.
PIECE = 2000
#: Rows taken at a time where the bytes of the claim may run out.
_HANDFUL = 256


class Wanted(NamedTuple):
    """What the caller asks for."""

    consumer: Scoped
    generation: int
    number: int
    limit: int
    max_bytes: int
    up_to: int | None
    max_per_stream: int


class _Run(NamedTuple):
    """Where a piece ended in the middle of a stream: the last message taken, whether nothing waits before it,
    and how many more may follow.
    """

    lane: bytes
    row: bytes
    free: bool
    left: int


def claim(core: Core, wanted: Wanted, wait_ms: int) -> NumberedClaim:
    filling = _Filling(core, wanted)
    with at_rest(core, wanted.consumer):
        record = filling.look()
        if record.phase != "open":
            queue = filling.queue(record)
            taken = take_or_wait(core, [queue.name], wanted.consumer.name, wait_ms, filling.piece)
            if taken is None:
                return NumberedClaim(wanted.number, 0, 0)
            record = taken
        else:
            filling.touch()
        commit = core.store.last_commit
    while record.phase != "open":
        with core.step():
            core.check_open()
            record = filling.piece() or record
            commit = core.store.last_commit
    core.confirm(commit, synced=True)
    return NumberedClaim(record.number, record.messages, record.bytes)


class _Filling:
    """One call's work on a claim. Others may work on the same one at the same time: each piece begins at what
    is stored.
    """

    def __init__(self, core: Core, wanted: Wanted) -> None:
        self.core = core
        self.wanted = wanted
        self.run: _Run | None = None
        self._begun = False

    def look(self) -> ConsumerRecord:
        """The consumer, for whom the number wanted is the next one or the one in hand."""
        book, wanted = self.core.consumer_book, self.wanted
        record = book.get(wanted.consumer).record
        check_next(record, wanted.generation, wanted.number)
        return record

    def queue(self, record: ConsumerRecord) -> QueueState:
        queue = self.core.by_id.get(record.queue_id)
        if queue is None:
            raise QueueNotFound(record.queue)
        return queue

    def touch(self) -> None:
        core = self.core
        state = core.consumer_book.get(self.wanted.consumer)
        record = msgspec.structs.replace(state.record, seen_ms=core.now_ms())
        core.commit([ConsumerSaved(record)])
        core.consumer_book.seen(core.consumer_book.put(record), core.clock)

    def piece(self) -> ConsumerRecord | None:
        """One commit, under the lock: the record after it, or None when there is nothing to hand out and
        nothing was begun.
        """
        core, wanted, before = self.core, self.wanted, self.look()
        if before.phase == "open":
            return before
        queue = self.queue(before)
        run_queue_due(core, queue)
        most = (
            0
            if queue.closed_to_claims
            else min(PIECE, wanted.limit - before.messages, allowance(core, queue, wanted.consumer.name))
        )
        picked: list[tuple[bytes, bytes, bool]] = []
        if most > 0 and before.bytes < wanted.max_bytes:
            most = self._fitting(before, most)
            picked = self._pick(queue, before, most) if most else []
        if not picked and before.phase == "idle":
            return None
        return self._pinned(
            queue,
            before,
            picked,
            sealed=len(picked) < most or most < PIECE or before.messages + len(picked) >= wanted.limit,
        )

    def _fitting(self, before: ConsumerRecord, most: int) -> int:
        """A claim that was begun is handed out as it is when no more leases fit: closing it frees space."""
        try:
            return leases_that_fit(self.core, most)
        except StoreFull:
            if before.phase == "idle":
                raise
            return 0

    def _pinned(
        self,
        queue: QueueState,
        before: ConsumerRecord,
        picked: list[tuple[bytes, bytes, bool]],
        *,
        sealed: bool,
    ) -> ConsumerRecord:
        core, wanted, now_ms = self.core, self.wanted, self.core.now_ms()
        size = before.bytes + sum([row_size(row) for _, row, _ in picked])
        granted = self._granted(before, now_ms)
        after = msgspec.structs.replace(
            before,
            phase="open" if sealed else "filling",
            number=wanted.number,
            claim_id=granted.claim_id,
            messages=before.messages + len(picked),
            bytes=size,
            pages=before.pages + (1 if picked else 0),
            seen_ms=now_ms,
        )
        facts: list[Fact] = [ConsumerSaved(after)]
        leases: list[Lease] = []
        if picked:
            leases = self._leases(queue, granted, picked)
            behind = [lease for lease, (_, _, follows) in zip(leases, picked, strict=True) if follows]
            fronts = (
                [lease for lease, (_, _, follows) in zip(leases, picked, strict=True) if not follows]
                if behind
                else leases
            )
            ids = [lease.row[8:24] for lease in leases]
            facts += [
                Leased(granted, fronts, behind),
                MembersPinned(wanted.consumer, wanted.number, before.pages, b"".join(ids)),
            ]
        core.commit(facts)
        if leases:
            core.leases.add(granted, leases)
        state = core.consumer_book.put(after)
        core.consumer_book.seen(state, core.clock)
        core.wake_timer(now_ms + after.ttl_ms)
        return after

    def _granted(self, record: ConsumerRecord, now_ms: int) -> Claim:
        if record.claim_id:
            return self.core.leases.claim(record.claim_id)
        return self.core.next_claim(record.name, "", now_ms, NEVER_EXPIRES_MS)

    def _leases(
        self, queue: QueueState, granted: Claim, picked: list[tuple[bytes, bytes, bool]]
    ) -> list[Lease]:
        queue_id, claim_id, name = queue.queue_id, granted.claim_id, granted.consumer
        leases = [
            Lease(queue_id, lane, row, claim_id, NEVER_EXPIRES_MS, 1, True, NEVER_EXPIRES_MS, name)
            for lane, row, _ in picked
        ]
        if any_touched(leases):
            for lease, state in zip(leases, states_of(self.core, leases), strict=True):
                lease.deliveries = (state.deliveries if state else 0) + 1
        return leases

    # Picking: (lane, row, whether it follows another of its stream), in the order of the claim

    def _pick(self, queue: QueueState, before: ConsumerRecord, most: int) -> list[tuple[bytes, bytes, bool]]:
        core, wanted = self.core, self.wanted
        room_bytes = wanted.max_bytes - before.bytes
        now_ms = core.clock.monotonic_ms()
        if core.store.streams_after(queue.queue_id, "", 1):
            return self._pick_runs(queue, before, most, room_bytes, now_ms)
        if core.store.counters(queue.queue_id).bytes <= room_bytes:
            return [(lane, row, False) for lane, row in queue.scheduler.take(most, now_ms, wanted.up_to)]
        picked: list[tuple[bytes, bytes, bool]] = []
        while len(picked) < most and room_bytes > 0:
            more = queue.scheduler.take(
                min(most - len(picked), self._handful(queue, room_bytes)), now_ms, wanted.up_to
            )
            if not more:
                break
            picked += [(lane, row, False) for lane, row in more]
            room_bytes -= sum([row_size(row) for _, row in more])
        return picked

    def _handful(self, queue: QueueState, room_bytes: int) -> int:
        """What has been taken is paid for, so as few at a time as may fill what room is left."""
        counters = self.core.store.counters(queue.queue_id)
        mean_bytes = counters.bytes // max(1, counters.messages)
        return max(1, min(_HANDFUL, room_bytes // (2 * mean_bytes + 1)))

    def _pick_runs(
        self, queue: QueueState, before: ConsumerRecord, most: int, room_bytes: int, now_ms: int
    ) -> list[tuple[bytes, bytes, bool]]:
        """Heads by their turn, each with those that may follow it; first what is left of the run that the
        last piece broke off.
        """
        core, up_to = self.core, self.wanted.up_to
        picked: list[tuple[bytes, bytes, bool]] = []
        run = self.run if self._begun else self._last_run(queue, before)
        self._begun, self.run = True, None
        while True:
            room = most - len(picked)
            if room <= 0 or room_bytes <= 0:
                self.run = run
                return picked
            if run is not None:
                more = followers_of(
                    core, queue, run[:2], min(room, run.left), room_bytes, now_ms, free=run.free, up_to=up_to
                )
                picked += [(lane, row, True) for lane, row in more]
                room_bytes -= sum([row_size(row) for _, row in more])
                if len(more) == room or room_bytes <= 0:
                    run = _Run(*more[-1], run.free or self._is_first(queue, run.row), run.left - len(more))
                    continue
            head = queue.scheduler.take(1, now_ms, up_to)
            if not head:
                return picked
            lane, row = head[0]
            picked.append((lane, row, False))
            room_bytes -= row_size(row)
            run = _Run(lane, row, False, self.wanted.max_per_stream - 1) if len(row) > ROW_BYTES else None

    def _is_first(self, queue: QueueState, row: bytes) -> bool:
        record = self.core.store.streams(queue.queue_id, [row[ROW_BYTES:].decode()])[0]
        return record is not None and record.first.seq == row_place(row)

    def _last_run(self, queue: QueueState, before: ConsumerRecord) -> _Run | None:
        """For a claim begun by another call, or before a crash: its last message may be in the middle of a
        run.
        """
        if not before.messages:
            return None
        members = self.core.store.claim_members(before.key, before.number)
        last = self.core.leases.find(members[-1])
        if last is None or len(last.row) <= ROW_BYTES:
            return None
        leases = (self.core.leases.find(member) for member in reversed(members))
        taken = sum(
            1
            for _ in takewhile(
                lambda lease: lease is not None and lease.row[ROW_BYTES:] == last.row[ROW_BYTES:], leases
            )
        )
        return _Run(
            last.lane,
            last.row,
            self._nothing_waits_before(queue, last),
            max(0, self.wanted.max_per_stream - taken),
        )

    def _nothing_waits_before(self, queue: QueueState, last: Lease) -> bool:
        stream, seq = last.row[ROW_BYTES:].decode(), row_place(last.row)
        record = self.core.store.streams(queue.queue_id, [stream])[0]
        page = [record.first] if record is not None else []
        while page:
            earlier = [row for row in page if row.seq < seq]
            leases = [self.core.leases.find(row.id) for row in earlier]
            if not all(lease is not None and lease.claim_id == last.claim_id for lease in leases):
                return False
            if len(earlier) < len(page):
                return True
            page = self.core.store.stream_rows(queue.queue_id, stream, page[-1].seq, _HANDFUL)
        return False
