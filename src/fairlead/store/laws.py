"""What must hold in any store after any commit and any crash, asked through the port alone.

Every message is in exactly one place, and where its own record says; nothing stands in a place without a
message; counters, leases and claims, times to live and dedup rows agree with the messages. Works in pages:
memory holds the ids. What holds about staged writes is in staged_laws.py, about numbered claims in
consumer_laws.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from fairlead.model.facts import InDone, InReady, InStream, InWaiting
from fairlead.model.ids import show_id
from fairlead.model.lane import (
    DEAD_LETTER_LANE,
    ROW_BYTES,
    Flag,
    move_row,
    row_flags,
    row_id,
    row_place,
    row_size,
)
from fairlead.model.lease import Lease
from fairlead.model.message import HELD, Message, MessageState, lane_of
from fairlead.model.queue import Counters, QueueRecord
from fairlead.store.consumer_laws import check_consumers
from fairlead.store.port import Store
from fairlead.store.staged_laws import check_staged

_PAGE = 2000
_FIRST_ID, _LAST_ID = b"\0" * 16, b"\xff" * 16

T = TypeVar("T")


def check_laws(store: Store) -> list[str]:
    """Every broken law, as a sentence that names the message or queue; empty when all hold."""
    return _Check(store).run() + check_staged(store) + check_consumers(store)


class _Check:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.problems: list[str] = []
        self.queues: dict[int, QueueRecord] = {record.queue_id: record for record in store.queues()}
        self.placed: set[bytes] = set()
        self.ready_in_stream: set[bytes] = set()
        self.in_streams: set[bytes] = set()
        self.counted: dict[int, Counter[str]] = {queue_id: Counter() for queue_id in self.queues}
        self.expiring: set[tuple[int, int, bytes]] = set()

    def run(self) -> list[str]:
        for queue_id in self.queues:
            self.expiring |= {
                (queue_id, expires_ms, id) for expires_ms, id in self.store.expired(queue_id, HELD, 1 << 60)
            }
        for queue_id in self.queues:
            self._ready(queue_id)
            self._waiting(queue_id)
            self._done(queue_id)
        self._leases()
        for queue_id in self.queues:
            self._streams(queue_id)
        for id in self.ready_in_stream - self.in_streams:
            self._say(f"message {show_id(id)} is ready for a stream that does not know it")
        self._messages()
        for queue_id, record in self.queues.items():
            self._counters(queue_id)
            self._dedup_windows(queue_id)
            if record.queue_id > self.store.last_queue_id:
                self._say(f"queue id {queue_id} is above the last queue id {self.store.last_queue_id}")
        for level in self.store.bucket_levels():
            if not 0 <= level.tokens <= level.burst:
                self._say(
                    f"the bucket of throttle key {level.key!r} holds {level.tokens} tokens, and its burst is {level.burst}"
                )
        return self.problems

    def _say(self, problem: str) -> None:
        self.problems.append(problem)

    def _ready(self, queue_id: int) -> None:
        ends: dict[bytes, tuple[bytes, bytes]] = {}
        last: tuple[bytes, int] | None = None
        for page in _pages(lambda after: self.store.ready(queue_id, b"", after, _PAGE)):
            for spot in page:
                at = (spot.lane, row_place(spot.row))
                if last is not None and at <= last:
                    self._say(f"ready rows of queue id {queue_id} are out of order at place {at[1]}")
                last = at
                if len(spot.row) > ROW_BYTES:
                    self.ready_in_stream.add(row_id(spot.row))
                ends[spot.lane] = (ends.get(spot.lane, (spot.row, b""))[0], spot.row)
            self._rows("ready", queue_id, page)
        seen = {lane: (first, tail) for lane, first, tail in self.store.lanes(queue_id)}
        if seen != ends:
            self._say(
                f"lanes of queue id {queue_id} do not agree with its ready rows: {len(seen)} lanes told, {len(ends)} found"
            )

    def _waiting(self, queue_id: int) -> None:
        last: tuple[int, bytes] | None = None
        for page in _pages(lambda after: self.store.waiting(queue_id, after, _PAGE)):
            for spot in page:
                at = (spot.due_ms, row_id(spot.row))
                if last is not None and at <= last:
                    self._say(f"waiting rows of queue id {queue_id} are out of order at {show_id(at[1])}")
                last = at
            self._rows("waiting", queue_id, page)

    def _done(self, queue_id: int) -> None:
        last: tuple[int, bytes] | None = None
        for page in _pages(lambda after: self.store.done(queue_id, after, HELD, _PAGE)):
            for spot in page:
                at = (spot.done_ms, row_id(spot.row))
                if last is not None and at <= last:
                    self._say(f"done rows of queue id {queue_id} are out of order at {show_id(at[1])}")
                last = at
            self._rows("done", queue_id, page)

    def _leases(self) -> None:
        leases = self.store.leases()
        groups = {(expires_ms, claim.claim_id) for expires_ms, claim in self.store.claims()}
        for start in range(0, len(leases), _PAGE):
            page = leases[start : start + _PAGE]
            self._rows("leased", None, page)
            for lease in page:
                if (lease.expires_ms, lease.claim_id) not in groups:
                    self._say(
                        f"message {show_id(lease.id)} is leased, but claim {lease.claim_id:x} has no group expiring at {lease.expires_ms}"
                    )
        for expires_ms, claim_id in groups - {(lease.expires_ms, lease.claim_id) for lease in leases}:
            self._say(f"claim {claim_id:x} has a group expiring at {expires_ms} without a lease")

    def _streams(self, queue_id: int) -> None:
        """Members agree with the record; whoever is in no other place is ready behind the front; one front
        each at most.
        """
        name = ""
        while page := self.store.streams_after(queue_id, name, _PAGE):
            for name, record in page:
                members = [record.first]
                while rows := self.store.stream_rows(queue_id, name, members[-1].seq, _PAGE):
                    members += rows
                if len(members) != record.live:
                    self._say(
                        f"stream {name!r} of queue id {queue_id} counts {record.live} live messages, has {len(members)}"
                    )
                behind = [
                    InStream(queue_id, member.lane, member.row)
                    for member in members
                    if member.id not in self.placed
                ]
                fronts = [member.seq for member in members if member.id in self.ready_in_stream]
                if len(fronts) > 1 or (fronts and fronts[0] != record.front):
                    self._say(
                        f"stream {name!r} of queue id {queue_id} has fronts {fronts}, its record says {record.front}"
                    )
                self.in_streams |= {member.id for member in members}
                stated = self.store.states([row_id(spot.row) for spot in behind])
                flags = [
                    row_flags(spot.row) & ~Flag.DELAYED | (Flag.STATE if state else 0)
                    for spot, state in zip(behind, stated, strict=True)
                ]
                rows_of_ready = [
                    move_row(spot.row, row_place(spot.row), flag)
                    for spot, flag in zip(behind, flags, strict=True)
                ]
                self._rows(
                    "ready",
                    queue_id,
                    [
                        InStream(queue_id, spot.lane, row)
                        for spot, row in zip(behind, rows_of_ready, strict=True)
                    ],
                )

    def _rows(
        self,
        where: str,
        queue_id: int | None,
        spots: Sequence[InReady | InStream | InWaiting | InDone | Lease],
    ) -> None:
        ids = [row_id(spot.row) for spot in spots]
        for spot, id, message, state in zip(
            spots, ids, self.store.messages(ids), self.store.states(ids), strict=True
        ):
            if id in self.placed:
                self._say(f"message {show_id(id)} is in a second place: {where} in queue id {spot.queue_id}")
            self.placed.add(id)
            if spot.queue_id not in self.queues or (queue_id is not None and spot.queue_id != queue_id):
                self._say(
                    f"message {show_id(id)} is {where} in queue id {spot.queue_id}, which does not exist here"
                )
                continue
            count = self.counted[spot.queue_id]
            count[where] += 1
            if where != "done":
                count["bytes"] += row_size(spot.row)
            if message is None:
                self._say(f"message {show_id(id)} is {where} in queue id {spot.queue_id} but not stored")
            else:
                self._row(where, spot, message, state)

    def _row(
        self,
        where: str,
        spot: InReady | InStream | InWaiting | InDone | Lease,
        message: Message,
        state: MessageState | None,
    ) -> None:
        name, row, flags = f"message {show_id(message.id)}", spot.row, row_flags(spot.row)
        known_queue = state.queue_id if state else message.queue_id
        known_place = state.place if state else message.place
        known_due = state.due_ms if state else message.due_ms
        due_ms = spot.due_ms if isinstance(spot, InWaiting) else 0
        done_ms = spot.done_ms if isinstance(spot, InDone) else 0
        if (state.done_ms if state else 0) != done_ms:
            self._say(
                f"{name} is {where} in queue id {spot.queue_id}, done {done_ms}; its record says done {state.done_ms if state else 0}"
            )
        if (known_queue, known_due) != (spot.queue_id, due_ms) or known_place != row_place(row):
            self._say(
                f"{name} is {where} in queue id {spot.queue_id} at place {row_place(row)}, due {due_ms}; "
                f"its record says queue id {known_queue}, place {known_place}, due {known_due}"
            )
        if row_size(row) != message.size:
            self._say(f"{name} has {message.size} bytes, its row says {row_size(row)}")
        if bool(flags & Flag.STATE) != (state is not None):
            self._say(f"{name} has {'a' if state else 'no'} state, its row says otherwise")
        if spot.lane != (
            DEAD_LETTER_LANE if self.queues[spot.queue_id].source_id else lane_of(message, state)
        ):
            self._say(f"{name} is {where} in a lane that is not its own")
        has_ttl_row = (spot.queue_id, message.expires_ms, message.id) in self.expiring
        # Leased beyond its time, a message has lost the row and is looked at again when the lease ends.
        if has_ttl_row != bool(flags & Flag.TTL) and (has_ttl_row or where != "leased"):
            self._say(f"{name} has {'a' if has_ttl_row else 'no'} time-to-live row, its row says otherwise")
        if flags & Flag.LIVE_DEDUP:
            (held,) = self.store.dedup(message.queue_id, [message.dedup_key])
            if held != (message.id, 0):
                self._say(f"{name} should hold dedup key {message.dedup_key!r} while it is live")

    def _messages(self) -> None:
        low, stored = _FIRST_ID, 0
        while ids := self.store.ids_between(low, _LAST_ID, _PAGE):
            stored += len(ids)
            for id in ids:
                if id not in self.placed:
                    self._say(f"message {show_id(id)} is stored but in no place")
            low = ids[-1] + b"\0"
        for queue_id, expires_ms, id in self.expiring:
            if id not in self.placed:
                self._say(
                    f"message {show_id(id)} is gone, but its time to live in queue id {queue_id} ends at {expires_ms}"
                )

    def _counters(self, queue_id: int) -> None:
        count, told = self.counted[queue_id], self.store.counters(queue_id)
        found = Counters(count["ready"], count["waiting"], count["leased"], count["done"], count["bytes"])
        if found != told:
            self._say(f"counters of queue id {queue_id} say {told}, counted {found}")

    def _dedup_windows(self, queue_id: int) -> None:
        ended = self.store.dedup_over(queue_id, HELD, 1 << 60)
        for (_, key, until_ms), held in zip(
            ended, self.store.dedup(queue_id, [key for _, key, _ in ended]), strict=True
        ):
            # A key used again after its window has a newer row, and the old end is still to be swept.
            if held is None or 0 < held[1] < until_ms:
                self._say(
                    f"dedup key {key!r} of queue id {queue_id} has a window until {until_ms} without its row"
                )


def _pages(ask: Callable[[T | None], list[T]]) -> Iterator[list[T]]:
    after: T | None = None
    while page := ask(after):
        yield page
        after = page[-1]
