"""An enqueue that is too large for one hold of the lock: its messages are staged part by part, invisible, and
then published. One record decides; from then on they become messages in steps, in their order, whatever
happens.

Before the decision a crash leaves only staged parts, which are dropped after a time. Other enqueues may come
between the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from fairlead.engine.queue import Queue
from fairlead.engine.room import MESSAGE_BYTES
from fairlead.engine.transaction import Transaction
from fairlead.engine.work.enqueue import (
    check_bounds,
    check_quarantine,
    check_room_for_dead,
    queue_of_quarantine,
    source_queue,
)
from fairlead.engine.work.publish_steps import take_step
from fairlead.engine.work.staging import decide, drop_own, own_write, stage_part, to_parts
from fairlead.errors import FairleadError, QueueNotFound, Unavailable
from fairlead.model.checks import CheckedColumns, MessageColumns, check_columns
from fairlead.model.names import Scoped
from fairlead.model.staging import Death
from fairlead.records.facts import RecordsChanged
from fairlead.request import Caller
from fairlead.store.kv.port import Table
from fairlead.store.rows import write_key
from fairlead.verbs.enqueue import EnqueueMany, Quarantine

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

#: Larger enqueues are staged. Each fairness key costs as much as several messages, and so does each row that
#: a message writes for itself: for its delay, for its dedup key, or because it begins as a dead letter.
LARGE_MESSAGES = 4096
LARGE_BYTES = 4 << 20
LARGE_KEYS = 1000
LARGE_ROWS = 1000
LARGE_DEAD = 200


def is_large_enqueue(request: EnqueueMany) -> bool:
    """Whether the enqueue is too large. A value that is no list of messages is refused by the usual way."""
    messages = request.messages
    if isinstance(messages, CheckedColumns):
        given = messages.columns
        return (
            given.length > LARGE_MESSAGES
            or (given.length > LARGE_ROWS and (given.delays is not None or given.dedup_keys is not None))
            or len(set(given.keys)) > LARGE_KEYS
            or sum(map(len, given.payloads)) > LARGE_BYTES
        )
    if not isinstance(messages, list):
        return isinstance(messages, Sequence) and len(messages) > LARGE_MESSAGES
    if len(messages) > LARGE_MESSAGES:
        return True
    try:
        if len(messages) > LARGE_ROWS and any(one.delay is not None or one.dedup_key for one in messages):
            return True
        if len(messages) > LARGE_KEYS and len({message.fairness_key for message in messages}) > LARGE_KEYS:
            return True
        return sum([len(message.payload) for message in messages]) > LARGE_BYTES
    except (AttributeError, TypeError):
        return False


def enqueue_in_parts(engine: Engine, request: EnqueueMany, caller: Caller) -> list[str] | None:
    """None: it must be one transaction, because only then the number of new messages is known."""
    given = check_columns(request.messages)
    with engine.transaction() as tx:
        queue = source_queue(tx, request.queue)
        queue_id, config = queue.record.queue_id, queue.record.config
        is_bounded = bool(config.max_messages or config.max_bytes)
        if is_bounded and given.dedup_keys is not None:
            return None
        _check(tx, queue, given)
    if engine.hooking.is_used:
        given = engine.hooking.ask_about_new(request.queue, given)
    return _add_in_parts(engine, request.queue, queue_id, given, [])


def is_large_quarantine(request: Quarantine) -> bool:
    messages = request.messages
    is_listed = type(messages) is list or isinstance(messages, Sequence)
    return is_listed and len(messages) > LARGE_DEAD


def quarantine_in_parts(engine: Engine, request: Quarantine, caller: Caller) -> list[str]:
    given, error, reason = check_quarantine(request)
    with engine.transaction() as tx:
        queue = queue_of_quarantine(tx, request)
        queue_id = queue.record.queue_id
        check_room_for_dead(tx, given, error)
    return _add_in_parts(engine, request.queue, queue_id, given, [Death(int(reason), error)])


def _add_in_parts(
    engine: Engine, queue: str, queue_id: int, given: MessageColumns, deaths: list[Death]
) -> list[str]:
    write, parts = own_write(queue), to_parts(given, deaths)
    names = tuple([f"{at:06}" for at in range(len(parts))])
    try:
        for name, part in zip(names, parts, strict=True):
            stage_part(engine, write, queue_id, name, part)
        ids = _publish(engine, write, queue_id, names)
    finally:
        _forget(engine, write)
    if len(ids) != given.length:
        raise Unavailable(
            "the messages are enqueued, but the store was loaded anew before all ids were known"
        )
    engine.confirm()
    return ids


def _check(tx: Transaction, queue: Queue, given: MessageColumns) -> None:
    """An early check, so that messages that do not fit are not staged at all. The decision checks again."""
    size = sum(map(len, given.payloads)) + sum(map(len, given.headers or ()))
    check_bounds(tx, queue, given.length, size)
    tx.store.check_room(size + MESSAGE_BYTES * given.length)


def _publish(engine: Engine, write: Scoped, queue_id: int, names: tuple[str, ...]) -> list[str]:
    """Publish the write, and return the ids of the messages."""
    ids: list[str] = []
    with engine.transaction() as tx:
        _check_queue(tx, write.queue, queue_id)
        record = decide(tx, write, names)
        tx.add(RecordsChanged(Table.PUBLISHING, {write_key(write): record}))
        tx.memory.staged.foreground.add(write)
    while True:
        told: list[str] = []
        with engine.transaction() as tx:
            following = tx.memory.staged.publishing.get(write)
            if following is None:
                return ids
            _check_queue(tx, write.queue, queue_id)
            tx.memory.staged.foreground.add(write)
            take_step(tx, following, told)
        ids += told


def _check_queue(tx: Transaction, name: str, queue_id: int) -> None:
    if queue_id not in tx.memory.by_id:
        raise QueueNotFound(name)


def _forget(engine: Engine, write: Scoped) -> None:
    """Leave a decided write to the timer, and drop an undecided one."""
    with suppress(FairleadError), engine.transaction() as tx:
        staged = tx.memory.staged
        staged.foreground.discard(write)
        if write in staged.publishing:
            staged.look_by(0)
            engine.wake_timer()
    drop_own(engine, write)
