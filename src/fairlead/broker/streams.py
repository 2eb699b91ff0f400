"""Streams in one commit: what each move does to the order of its stream, and who stands in the ready rows
afterwards.

Moves tell a `StreamDraft` where each of its messages goes; when all moves of a commit are known, `finish`
works out the front of every stream that was touched and writes what changed. Nothing about a stream is kept
in memory between two commits, so that a million idle or blocked streams cost nothing but their rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fairlead.broker.core import Core
from fairlead.decide.ordering import Standing, find_front, first_waiting
from fairlead.model.facts import (
    Fact,
    InReady,
    InStream,
    Moved,
    StreamEnded,
    StreamJoined,
    StreamLeft,
    StreamSaved,
)
from fairlead.model.lane import Flag, lane_key, lane_throttle_keys, move_row, pack_lane, row_stream
from fairlead.model.limits import MAX_LET_BY
from fairlead.model.message import MessageState
from fairlead.model.stream import StreamRecord, StreamRow

_PAGE = 16
#: How far back a release looks for a message that waits.
_LOOK_BACK = 1000


class StreamDraft:
    """One stream as it will be after the commit."""

    def __init__(self, core: Core, queue_id: int, name: str, record: StreamRecord | None) -> None:
        self.core = core
        self.queue_id = queue_id
        self.name = name
        self.record = record
        self.key = record.key if record else ""
        self.let_by = set(record.let_by) if record else set()
        self.all_after = record.all_after if record else 0
        self.live = record.live if record else 0
        #: Where messages that move in this commit end up; None is gone.
        self.moved: dict[int, tuple[Standing | None, StreamRow]] = {}
        self.joined: dict[int, StreamRow] = {}
        self._walked = False
        self._waits_from: int | None = None

    def join(self, row: StreamRow, standing: Standing) -> None:
        """A message comes in at the tail."""
        seq = row.seq
        self.joined[seq] = row
        self.moved[seq] = standing, row
        self.live += 1

    def move(self, row: StreamRow, standing: Standing) -> None:
        self.moved[row.seq] = standing, row

    def leave(self, row: StreamRow) -> None:
        """The message is gone, or dead: it no longer holds anyone up."""
        self.moved[row.seq] = None, row
        self.let_by.discard(row.seq)
        self.live -= 1

    def let_pass(self, seq: int) -> str:
        """A release as the switch: the message may pass those that wait before it. Says which rule applied.

        Asked when all moves of the commit are known, so one walk serves all messages of a released run.
        """
        if not self._walked:
            self._walked, self._waits_from = True, first_waiting(self.rows_from(0), self.standing, _LOOK_BACK)
        if self._waits_from is None or self._waits_from >= seq:
            return "release.order_kept"
        if len(self.let_by) >= MAX_LET_BY:
            return "release.let_by_limit"
        self.let_by.add(seq)
        return "release.let_by"

    def open_up(self) -> bool:
        """The operator's switch: all later messages pass the one that waits at the head, or nothing waits
        there.

        Said again, it is about the next one, when that waits too; what this one may pass it may pass still.
        """
        head = next(self.rows_from(0), None)
        if head is None or self.standing(head) is not Standing.WAITING:
            return False
        if self.all_after < head.seq:
            self.all_after = head.seq
            return True
        behind = next(self.rows_from(self.all_after + 1), None)
        if behind is not None and self.standing(behind) is Standing.WAITING:
            self.all_after = behind.seq
            if len(self.let_by) < MAX_LET_BY:
                self.let_by.add(behind.seq)
        return True

    def rows_from(self, seq: int) -> Iterator[StreamRow]:
        """Live messages from that seq on, with everything this commit changes."""
        new = iter(sorted((row for row in self.joined.values() if row.seq >= seq), key=lambda row: row.seq))
        for row in self._stored_from(seq):
            if row.seq in self.moved:
                standing, row = self.moved[row.seq]
                if standing is None:
                    continue
            yield row
        # Whoever joins in this commit has a higher seq than all before.
        yield from (self.moved[row.seq][1] for row in new if self.moved[row.seq][0] is not None)

    def _stored_from(self, seq: int) -> Iterator[StreamRow]:
        if self.record is None:
            return
        if self.record.first.seq >= seq:
            yield self.record.first
        after = max(seq - 1, self.record.first.seq)
        while page := self.core.store.stream_rows(self.queue_id, self.name, after, _PAGE):
            yield from page
            after = page[-1].seq

    def standing(self, row: StreamRow) -> Standing:
        known = self.moved.get(row.seq)
        if known is not None and known[0] is not None:
            return known[0]
        if self.core.leases.find(row.id) is not None:
            return Standing.LEASED
        return resting(row, self.core.store.states([row.id])[0])

    def find_front(self) -> StreamRow | None:
        leased = [
            seq for seq in self.core.leases.leased_seqs(self.queue_id, self.name) if seq not in self.moved
        ]
        return find_front(
            self.rows_from,
            self.standing,
            let_by=self.let_by,
            all_after=self.all_after,
            lowest_leased=min(leased, default=None),
        )


class StreamDrafts:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._drafts: dict[tuple[int, str], StreamDraft] = {}
        self.promoted: list[InReady] = []
        self.demoted: list[InReady] = []

    def load(self, queue_id: int, names: Sequence[str]) -> None:
        """One read for all streams a batch will touch."""
        missing = [name for name in dict.fromkeys(names) if (queue_id, name) not in self._drafts]
        for name, record in zip(
            missing, self._core.store.streams(queue_id, missing) if missing else (), strict=True
        ):
            self._drafts[queue_id, name] = StreamDraft(self._core, queue_id, name, record)

    def get(self, queue_id: int, name: str) -> StreamDraft:
        draft = self._drafts.get((queue_id, name))
        if draft is None:
            self.load(queue_id, [name])
            draft = self._drafts[queue_id, name]
        return draft

    def bound_lane(self, queue_id: int, name: str, lane: bytes) -> bytes:
        """The lane for a message that joins: a stream keeps the key of the message that opened it."""
        draft = self.get(queue_id, name)
        return (
            pack_lane(draft.key, lane_throttle_keys(lane))
            if draft.live and lane_key(lane) != draft.key
            else lane
        )

    def join(self, queue_id: int, row: StreamRow, standing: Standing) -> None:
        """A message comes in at the tail of its stream; the first of a new stream binds it to its key."""
        draft = self.get(queue_id, row_stream(row.row))
        if not draft.live:
            draft.key = lane_key(row.lane)
        draft.join(row, standing)

    def finish(self) -> list[Fact]:
        """The facts that bring every touched stream in order; `promoted` and `demoted` tell the schedulers."""
        return [
            fact
            for draft in self._drafts.values()
            if draft.moved or draft.record
            for fact in self._finish(draft)
        ]

    def _finish(self, draft: StreamDraft) -> list[Fact]:
        before, queue_id, name = draft.record, draft.queue_id, draft.name
        facts: list[Fact] = []
        if not draft.live:
            gone = [
                StreamLeft(queue_id, name, seq)
                for seq in draft.moved
                if before and seq != before.first.seq and seq not in draft.joined
            ]
            return [*gone, StreamEnded(queue_id, name)] if before else []
        if len(draft.joined) == len(draft.moved) and draft.moved and not draft.all_after:
            return self._only_joined(draft)
        first = next(draft.rows_from(0))
        for seq, (standing, row) in draft.moved.items():
            was_row = before is not None and seq != before.first.seq and seq not in draft.joined
            is_row = standing is not None and seq != first.seq
            if is_row and not was_row:
                facts.append(StreamJoined(queue_id, name, row))
            elif was_row and not is_row:
                facts.append(StreamLeft(queue_id, name, seq))
        if before is not None and first.seq != before.first.seq and first.seq not in draft.moved:
            facts.append(StreamLeft(queue_id, name, first.seq))
        front = draft.find_front()
        facts.extend(self._move_front(draft, front))
        let_by = tuple(sorted(draft.let_by))
        all_after = draft.all_after if draft.all_after >= first.seq else 0
        after = StreamRecord(draft.key, draft.live, first, front.seq if front else 0, let_by, all_after)
        if after != before:
            facts.append(StreamSaved(queue_id, name, after))
        return facts

    def _only_joined(self, draft: StreamDraft) -> list[Fact]:
        """The short way for what enqueues do: behind a live message nobody new is the front; of a new stream
        the first may be.
        """
        queue_id, name, before = draft.queue_id, draft.name, draft.record
        rows = list(draft.joined.values())
        if before is not None:
            after = StreamRecord(
                draft.key, draft.live, before.first, before.front, before.let_by, before.all_after
            )
            return [*[StreamJoined(queue_id, name, row) for row in rows], StreamSaved(queue_id, name, after)]
        first = rows[0]
        seq = first.seq
        front: list[Fact] = []
        if draft.moved[seq][0] is Standing.READY:
            spot = InReady(queue_id, first.lane, first.row)
            self.promoted.append(spot)
            front.append(Moved("promoted", first.id, InStream(queue_id, first.lane, first.row), spot, None))
        after = StreamRecord(draft.key, draft.live, first, seq if front else 0)
        return [
            *[StreamJoined(queue_id, name, row) for row in rows[1:]],
            *front,
            StreamSaved(queue_id, name, after),
        ]

    def _move_front(self, draft: StreamDraft, front: StreamRow | None) -> list[Fact]:
        facts: list[Fact] = []
        before = draft.record
        stands = before.front if before is not None and before.front not in draft.moved else 0
        if stands and self._core.leases.holds_seq(draft.queue_id, draft.name, stands):
            stands = 0
        if front is not None and front.seq == stands:
            return facts
        if stands:
            old = next(draft.rows_from(stands))
            row = self._exact(draft, old)
            spot = InReady(draft.queue_id, old.lane, row)
            facts.append(Moved("demoted", old.id, spot, InStream(draft.queue_id, old.lane, row), None))
            self.demoted.append(spot)
        if front is not None:
            row = self._exact(draft, front)
            spot = InReady(draft.queue_id, front.lane, row)
            facts.append(Moved("promoted", front.id, InStream(draft.queue_id, front.lane, row), spot, None))
            self.promoted.append(spot)
        return facts

    def _exact(self, draft: StreamDraft, row: StreamRow) -> bytes:
        """The row with its flags as they are, for a message that this commit does not move."""
        if row.seq in draft.moved:
            return draft.moved[row.seq][1].row
        return exact_row(row, self._core.store.states([row.id])[0])


def exact_row(row: StreamRow, state: MessageState | None) -> bytes:
    """The row of a ready message behind its stream's front, as the ready rows would have it."""
    flags = row.row[26] & ~Flag.DELAYED
    return move_row(row.row, row.seq, flags if state is None else flags | Flag.STATE)


def resting(row: StreamRow, state: MessageState | None) -> Standing:
    """How a message of a stream stands that nobody holds."""
    waits = bool(state.due_ms) if state else bool(row.row[26] & Flag.DELAYED)
    return Standing.WAITING if waits else Standing.READY
