"""Long operations: an unfinished request is one record, and each step is one transaction that also stores the
progress.

The selection is frozen when the operation begins: only messages whose numbers and places are before `cutoff`.
A crash between two steps leaves the record, and the next engine that opens the store continues. An operation
that finishes in its first step is never stored. The caller's thread runs the steps; the timer runs those of
operations with a rate, and of operations that were found at open or whose caller met an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from math import ceil
from typing import TYPE_CHECKING, Literal

import msgspec

from fairlead.decide.dead_filter import DeadLetterTest, filter_from_record
from fairlead.engine.choose import Candidate, apply_filter
from fairlead.engine.dead_letters import redrive_all
from fairlead.engine.met import Met, meet, step
from fairlead.engine.moves import STEP_MESSAGES, forget_keys, gone
from fairlead.engine.queue import DEAD_LANE, Queue
from fairlead.engine.room import SHORT_STEP
from fairlead.engine.transaction import Transaction
from fairlead.engine.walk import walk, walk_streams
from fairlead.errors import ServerStopping
from fairlead.model.intent import Intent
from fairlead.records.facts import RecordsChanged
from fairlead.store.kv.port import Table

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

#: The work on regular expressions in one turn of the timer, in instructions of RE2: about 10 ms, at most 200
#: ms.
_MAX_BACKGROUND_WORK = 2_000_000
_MAX_ID = 1 << 63
#: Messages that one step of a purge removes.
_PURGE_STEP = 50


class LongOperations:
    """The running operations, and what this process knows of them beyond their records."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._last_id = 0
        #: Operations whose callers run them.
        self._foreground: set[int] = set()
        #: Operations of which a thread runs a step in the background.
        self._in_step: set[int] = set()
        self._paces: dict[int, Pace] = {}
        self._purges: dict[int, PurgeWalk] = {}

    # A caller's operation

    def begin(
        self, tx: Transaction, kind: Literal["purge", "redrive"], queue_id: int, **fields: object
    ) -> Intent:
        """Freeze the selection. Nothing is stored yet."""
        # Two operations may begin before either is stored, so a number is used up when it is assigned.
        self._last_id = max(self._last_id, tx.commit, *map(_number, tx.memory.records[Table.INTENTS])) + 1
        begun = Intent(self._last_id, kind, queue_id, tx.now_ms, cutoff=tx.next_block())
        return msgspec.structs.replace(begun, **fields)

    def run_to_end(self, operation: Intent) -> Intent:
        """Run all steps. After an error the timer continues an operation that has begun. A server that stops
        ends a redrive between two steps; the stored operation continues at the next open.
        """
        self._foreground.add(operation.intent_id)
        following: Intent | None = operation
        try:
            while following is not None:
                operation, following = self._step(following, STEP_MESSAGES)
        except ServerStopping:
            if operation.kind != "redrive" or not operation.done:
                raise
        finally:
            self._foreground.discard(operation.intent_id)
            self._purges.pop(operation.intent_id, None)
        self._engine.confirm()
        return operation

    def leave_to_timer(self, tx: Transaction, operation: Intent) -> None:
        _store(tx, operation)
        self._pace(operation)
        self._engine.wake_timer()

    # For the timer

    def run_step(self) -> bool:
        """Run a step of an operation that no caller runs; False if none may continue."""
        if not self._engine.memory.records[Table.INTENTS] or self._engine.waits_over:
            return False
        with self._engine.lock:
            chosen = self._choose()
            if chosen is None:
                return False
            self._in_step.add(chosen[0].intent_id)
        try:
            self._background_step(*chosen)
        finally:
            self._in_step.discard(chosen[0].intent_id)
        return True

    def _choose(self) -> tuple[Intent, int] | None:
        """An operation that may continue, and by how many messages. Another thread may be in a step of the
        same operation; two at once would make its rate and its counts wrong.
        """
        for operation in self._engine.memory.records[Table.INTENTS].values():
            if operation.intent_id in self._foreground or operation.intent_id in self._in_step:
                continue
            allowed = self._pace(operation).allowed(operation, self._engine.clock.monotonic_ms())
            if allowed > 0:
                return operation, min(allowed, STEP_MESSAGES)
        return None

    def next_ms(self) -> int | None:
        """When the timer may run a step, in steady time; None if no operation waits for it."""
        operations = self._engine.memory.records[Table.INTENTS].values()
        times = [self._pace(one).next_ms(one) for one in operations if one.intent_id not in self._foreground]
        return min(times, default=None)

    def _pace(self, operation: Intent) -> Pace:
        pace = self._paces.get(operation.intent_id)
        if pace is None:
            now_ms = self._engine.clock.monotonic_ms()
            pace = self._paces[operation.intent_id] = Pace(now_ms, operation.done)
        return pace

    def _background_step(self, operation: Intent, most: int) -> None:
        try:
            following = self._step(operation, most, _MAX_BACKGROUND_WORK)[1]
        except BaseException:
            self._purges.pop(operation.intent_id, None)
            raise
        if following is None:
            self._paces.pop(operation.intent_id, None)
            self._purges.pop(operation.intent_id, None)

    # Steps: the operation as it is now, and what is left of it

    def _step(
        self, operation: Intent, most: int, max_work: int | None = None
    ) -> tuple[Intent, Intent | None]:
        if operation.kind == "purge":
            return self._purge_step(operation)
        return self._redrive_step(operation, most, max_work)

    def _purge_step(self, operation: Intent) -> tuple[Intent, Intent | None]:
        purge = self._purges.get(operation.intent_id)
        if purge is None:
            purge = self._purges[operation.intent_id] = PurgeWalk(self._engine, operation.queue_id)
        page, is_last = purge.next_part()
        with self._engine.transaction() as tx:
            queue = tx.memory.by_id.get(operation.queue_id)
            if queue is None:
                return _end(tx, operation)
            found = [met for met in meet(tx, page) if _is_purged(met, operation)]
            for met in found:
                tx.add(gone(tx, met.number, "dropped", "purge"))
            after = msgspec.structs.replace(operation, done=operation.done + len(found))
            if not is_last or forget_keys(tx, queue):
                _store(tx, after)
                return after, after
            forget_empty_keys(tx, queue)
            return _end(tx, after)

    def _redrive_step(
        self, operation: Intent, most: int, max_work: int | None
    ) -> tuple[Intent, Intent | None]:
        page = next_dead_letters(self._engine, operation)
        test = DeadLetterTest(filter_from_record(operation.filter), now_ms=operation.created_ms)
        most = min(most, SHORT_STEP) if self._engine.store.room() <= 0 else most
        left = min(most, operation.limit - operation.done) if operation.limit else most
        looked_at = apply_filter(self._engine, test, page, left, max_work)
        chosen = [Candidate.of(met) for met, is_selected in looked_at if is_selected]
        answers = self._engine.hooking.ask_about_dead([candidate.raw_id for candidate in chosen])
        with self._engine.transaction(answers) as tx:
            was_stored = operation.done > 0 or operation.intent_id not in self._foreground
            is_cancelled = was_stored and find_operation(tx, operation.intent_id) is None
            if is_cancelled or operation.queue_id not in tx.memory.by_id:
                return _end(tx, operation)
            moved = redrive_all(tx, chosen, operation.queue_id, clear_progress=operation.clear_progress)
            after = msgspec.structs.replace(
                operation,
                done=operation.done + moved,
                cursor=looked_at[-1][0].state.place if looked_at else operation.cursor,
            )
            is_over = len(looked_at) == len(page) < STEP_MESSAGES
            if is_over or 0 < after.limit <= after.done:
                return _end(tx, after)
            if moved or find_operation(tx, operation.intent_id) is not None:
                _store(tx, after)
            return after, after


def forget_empty_keys(tx: Transaction, queue: Queue) -> None:
    """If no message can be claimed: remove keys without messages from the ring, as would happen at their
    turns.
    """
    plan = queue.schedule.plan(1, tx.now_ms)
    while plan.needs:
        tx.read_on(queue, plan.needs)
        plan = queue.schedule.plan(1, tx.now_ms)
    if not plan.numbers:
        queue.schedule.apply(plan)


class PurgeWalk:
    """Walks over what a purge removes, one page ahead. Not stored: after a crash the walk begins anew, and
    finds only what is left.
    """

    def __init__(self, engine: Engine, queue_id: int) -> None:
        # Streams first: once its front is gone, the second of two messages is in a lane that may have been
        # walked already.
        self._pages: Iterator[list[Met]] = chain(
            walk_streams(engine, queue_id, with_fronts=True),
            walk(engine, queue_id, "ready"),
            walk(engine, queue_id, "waiting"),
        )
        self._page: list[Met] = next(self._pages, [])
        self._next = next(self._pages, None)

    def next_part(self) -> tuple[list[int], bool]:
        """The numbers of the next messages, and whether they are the last."""
        part, self._page = self._page[:_PURGE_STEP], self._page[_PURGE_STEP:]
        if not self._page and self._next is not None:
            self._page, self._next = self._next, next(self._pages, None)
            return [met.number for met in part], False
        return [met.number for met in part], not self._page


class Pace:
    """The permitted speed of an operation, counted from when this process began it: no burst after a long
    stop.
    """

    def __init__(self, since_ms: int, done: int) -> None:
        self._since_ms = since_ms
        self._done = done

    def allowed(self, operation: Intent, now_ms: int) -> int:
        if not operation.rate:
            return STEP_MESSAGES
        due = int(operation.rate * (now_ms - self._since_ms) / 1000) + 1
        return due - (operation.done - self._done)

    def next_ms(self, operation: Intent) -> int:
        if not operation.rate:
            return self._since_ms
        return self._since_ms + ceil((operation.done - self._done) * 1000 / operation.rate)


def next_dead_letters(engine: Engine, operation: Intent) -> list[Met]:
    """The next dead letters that a redrive considers: those that no claim holds, the oldest first."""
    with step(engine) as tx:
        queue = tx.memory.by_id.get(operation.queue_id)
        if queue is None:
            return []
        numbers = tx.lane_after(queue, DEAD_LANE, operation.cursor, STEP_MESSAGES)
        return [met for met in meet(tx, numbers) if met.state.place < operation.cutoff]


def is_purged(tx: Transaction, queue_id: int) -> bool:
    """Whether a purge of the queue is running: then the queue delivers nothing."""
    operations = tx.memory.records[Table.INTENTS].values()
    return bool(operations) and any(one.kind == "purge" and one.queue_id == queue_id for one in operations)


def find_operation(tx: Transaction, intent_id: int) -> Intent | None:
    operations: dict[bytes, Intent] = tx.memory.records[Table.INTENTS]
    return operations.get(_key(intent_id)) if 0 <= intent_id < _MAX_ID else None


def end_operation(tx: Transaction, intent_id: int) -> None:
    tx.add(RecordsChanged(Table.INTENTS, {_key(intent_id): None}))


def _end(tx: Transaction, operation: Intent) -> tuple[Intent, None]:
    if find_operation(tx, operation.intent_id) is not None:
        end_operation(tx, operation.intent_id)
    return operation, None


def _store(tx: Transaction, operation: Intent) -> None:
    tx.add(RecordsChanged(Table.INTENTS, {_key(operation.intent_id): operation}))


def _is_purged(met: Met, operation: Intent) -> bool:
    """Whether the purge removes the message: leased, completed and later messages stay."""
    if met.state.queue_id != operation.queue_id or met.where not in ("ready", "waiting"):
        return False
    return max(met.number, met.state.place) < operation.cutoff


def _key(intent_id: int) -> bytes:
    return intent_id.to_bytes(8, "big")


def _number(key: bytes) -> int:
    return int.from_bytes(key, "big")
