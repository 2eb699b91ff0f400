"""A store, and the few sentences the conformance tests say to it. Nothing here knows which store it is."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any, Protocol

from fairlead.model.facts import Enqueued, InDone, InLease, InReady, InWaiting, Leased, Moved, QueueSaved
from fairlead.model.ids import IdSource
from fairlead.model.lane import DEAD_LETTER_LANE, ROW_BYTES, Flag, first_place, move_row, pack_lane
from fairlead.model.lease import Claim, Lease
from fairlead.model.message import Message, MessageState
from fairlead.model.queue import QueueConfig, QueueRecord
from fairlead.store.memory import MemoryStore
from fairlead.store.port import Store
from fairlead.store.rocks import RocksStore

NOW = 1_700_000_000_000
WORK, DEAD, OTHER = 1, 2, 3


class Factory(Protocol):
    """How a kind of store begins, ends and comes back. A third store needs one more of these, and no new
    test.
    """

    def open(self) -> Store: ...

    def reopen(self, store: Store) -> Store:
        """After an orderly close."""
        ...

    def crash(self, store: Store) -> Store:
        """As after a killed process: nothing was closed or flushed."""
        ...


class MemoryFactory:
    def open(self) -> Store:
        return MemoryStore()

    def reopen(self, store: Store) -> Store:
        assert isinstance(store, MemoryStore)
        return store.reopen()

    crash = reopen


class RocksFactory:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lives = 0

    def open(self) -> Store:
        return RocksStore.open(self.path)

    def reopen(self, store: Store) -> Store:
        store.close()
        return self.open()

    def crash(self, store: Store) -> Store:
        left = self.path
        self.lives += 1
        shutil.copytree(left, self.path)
        store.close()
        return self.open()

    @property
    def path(self) -> Path:
        return self.directory / f"life-{self.lives}"


class Scene:
    def __init__(self, factory: Factory) -> None:
        self.factory = factory
        self.store = factory.open()
        self.ids = IdSource(random.Random(7).randbytes)
        self.claims = 0

    def reopen(self) -> None:
        self.store = self.factory.reopen(self.store)

    def crash(self) -> None:
        self.store = self.factory.crash(self.store)

    def make_queues(self) -> None:
        """`work` with its dead letters, and `other` with none."""
        records = [
            QueueRecord(WORK, "work", QueueConfig(), NOW, dlq_id=DEAD),
            QueueRecord(DEAD, "work.dlq", QueueConfig(), NOW, source_id=WORK),
            QueueRecord(OTHER, "other", QueueConfig(), NOW),
        ]
        self.store.commit([QueueSaved(record) for record in records])

    def messages(
        self,
        count: int = 1,
        *,
        queue_id: int = WORK,
        key: str = "k",
        throttle_keys: tuple[str, ...] = (),
        payload: bytes | None = None,
        **fields: Any,
    ) -> list[Message]:
        """New messages for the next commit; with `due_ms` they begin waiting."""
        lane = pack_lane(key, throttle_keys)
        place = 0 if fields.get("due_ms") else first_place(self.store.last_commit + 1)
        return [
            Message(
                id,
                queue_id,
                lane,
                1,
                b"",
                b"body-%d" % n if payload is None else payload,
                NOW,
                place and place + n,
                **fields,
            )
            for n, id in enumerate(self.ids.next(NOW, count))
        ]

    def enqueue(self, count: int = 1, *, queue_id: int = WORK, **fields: Any) -> list[Message]:
        messages = self.messages(count, queue_id=queue_id, **fields)
        self.store.commit([Enqueued(queue_id, messages)])
        return messages

    def claim(self) -> Claim:
        self.claims += 1
        return Claim(self.store.boot << 32 | self.claims, "consumer", "", NOW, 30_000)

    def lease(self, messages: list[Message], expires_ms: int = NOW + 30_000) -> list[Lease]:
        """Lease messages that are ready at their first place."""
        claim = self.claim()
        leases = [leased(message, claim, expires_ms) for message in messages]
        self.store.commit([Leased(claim, leases)])
        self.last_claim = claim
        return leases


def row(message: Message) -> bytes:
    return message.row(message.place, message.flags)


def leased(message: Message, claim: Claim, expires_ms: int) -> Lease:
    return Lease(message.queue_id, message.lane, row(message), claim.claim_id, expires_ms, 1, True)


def in_done(message: Message, done_ms: int, flags: int = Flag.STATE) -> InDone:
    return InDone(message.queue_id, done_ms, message.lane, move_row(row(message)[:ROW_BYTES], 0, flags))


def in_ready(message: Message) -> InReady:
    return InReady(message.queue_id, message.lane, row(message))


def retried(lease: Lease, place: int) -> Moved:
    """A failed try that is ready again at a new place."""
    state = MessageState(lease.queue_id, place=place, attempts=1, deliveries=1)
    target = InReady(lease.queue_id, lease.lane, move_row(lease.row, place, lease.row[26] | Flag.STATE))
    return Moved("retried", lease.id, InLease(lease), target, state)


def delayed(lease: Lease, due_ms: int) -> Moved:
    state = MessageState(lease.queue_id, due_ms=due_ms, attempts=1, deliveries=1)
    target = InWaiting(lease.queue_id, due_ms, lease.lane, move_row(lease.row, 0, lease.row[26] | Flag.STATE))
    return Moved("delayed", lease.id, InLease(lease), target, state)


def buried(lease: Lease, place: int, expires_ms: int = 0, live_dedup: tuple[int, str] | None = None) -> Moved:
    state = MessageState(DEAD, place=place, attempts=1, source_queue_id=lease.queue_id, dead_since_ms=NOW)
    target = InReady(DEAD, DEAD_LETTER_LANE, move_row(lease.row, place, Flag.STATE))
    return Moved("buried", lease.id, InLease(lease), target, state, expires_ms, live_dedup)
