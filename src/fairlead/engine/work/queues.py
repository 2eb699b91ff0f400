"""Creating, changing, pausing, purging, deleting and listing queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.engine.consumer_steps import lose_queues
from fairlead.engine.queue import Queue
from fairlead.engine.reduce.queues import sweep_states, take_discarded
from fairlead.engine.transaction import StepsTable, Transaction, WorkTable
from fairlead.errors import InvalidRequest, LimitReached, QueueExists
from fairlead.model.names import DEAD_LETTER_SUFFIX, check_queue_name, dead_letter_name, is_dead_letter_name
from fairlead.model.queue import (
    DEAD_LETTER_OPTIONS,
    QueueConfig,
    QueueRecord,
    read_queue_options,
    with_defaults,
)
from fairlead.model.views import QueueInfo
from fairlead.records.facts import QueueDeleted, QueueStored
from fairlead.request import Caller
from fairlead.verbs.queues import CreateQueue, DeleteQueue, ListQueues, Pause, Purge, Resume, UpdateQueue

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

#: States of deleted queues' messages that memory drops in one hold.
_SWEPT_STATES = 5000


def create_queue(tx: Transaction, request: CreateQueue) -> QueueInfo:
    name = check_queue_name(request.name)
    if is_dead_letter_name(name):
        wanted = f"a name that does not end in {DEAD_LETTER_SUFFIX!r}: dead-letter queues are made with their queue"
        raise InvalidRequest("queue", wanted, name)
    check_queue_name(dead_letter_name(name))
    options = _check_options(request.options)
    config = read_queue_options(with_defaults(options), QueueConfig())
    for taken in (name, dead_letter_name(name)):
        if taken in tx.memory.by_name:
            raise QueueExists(taken)
    # Each queue has its dead-letter queue.
    if len(tx.memory.by_name) // 2 >= tx.settings.max_queues:
        raise LimitReached("queues", tx.settings.max_queues)
    first_id = tx.memory.last_queue_id + 1
    tx.add(QueueStored(QueueRecord(first_id, name, config, tx.now_ms, dlq_id=first_id + 1)))
    dead_letters = QueueRecord(
        first_id + 1, dead_letter_name(name), QueueConfig(), tx.now_ms, source_id=first_id
    )
    tx.add(QueueStored(dead_letters))
    return _info(tx, tx.queue(name))


def update_queue(tx: Transaction, request: UpdateQueue) -> QueueInfo:
    """Later failures, claims and enqueues follow the new options; current deliveries do not change."""
    options = _check_options(request.options)
    queue = tx.queue(request.name)
    record = queue.record
    refused = sorted(options.keys() - DEAD_LETTER_OPTIONS)
    if queue.is_dead_letter_queue and refused:
        own = ", ".join(sorted(DEAD_LETTER_OPTIONS))
        wanted = f"set on the source queue; a dead-letter queue has only {own}"
        raise InvalidRequest(refused[0], wanted, options[refused[0]])
    config = read_queue_options(options, record.config)
    _check_ordering(queue, config)
    tx.add(QueueStored(msgspec.structs.replace(record, config=config)))
    return _info(tx, queue)


def _check_options(options: object) -> dict[str, Any]:
    if not isinstance(options, Mapping):
        raise InvalidRequest("options", "a mapping of option names to values", type(options))
    return dict(options)


def _check_ordering(queue: Queue, config: QueueConfig) -> None:
    """Refuse a change of ordering that concerns live messages: whether streams order a message is decided at
    its enqueue.
    """
    before, after = queue.record.config.ordering, config.ordering
    if before != after and "none" in (before, after) and queue.counts.messages:
        raise InvalidRequest("ordering", f"{before!r} as long as the queue holds messages", after)


def delete_queue(engine: Engine, request: DeleteQueue, caller: Caller) -> None:
    """Delete the queue in one write; then drop the states of its messages in steps, and free its objects
    without the lock.
    """
    with engine.transaction() as tx:
        _delete(tx, request)
        discarded = take_discarded(tx.memory)
    engine.confirm()
    is_left = True
    while is_left:
        _free(discarded)
        with engine.transaction() as tx:
            is_left = sweep_states(tx.memory, _SWEPT_STATES)
            discarded = take_discarded(tx.memory)
    _free(discarded)


def _free(discarded: list[object]) -> None:
    """Without the lock, and piece by piece: Python frees a dictionary of a hundred thousand keys at once, and
    no other thread runs meanwhile.
    """
    while discarded:
        gone = discarded.pop()
        if isinstance(gone, Queue):
            for parts in gone.containers():
                take = parts.popitem if isinstance(parts, dict) else parts.pop
                while parts:
                    take()


def _delete(tx: Transaction, request: DeleteQueue) -> None:
    """Delete all rows of a queue and its dead letters. Consumers that wait on them get `QueueNotFound`,
    settles of leased messages get `not_found`.
    """
    queue = tx.queue(request.name)
    if queue.is_dead_letter_queue:
        wanted = "a source queue: a dead-letter queue goes with its source, and a purge empties it"
        raise InvalidRequest("queue", wanted, request.name)
    lose_queues(tx, (queue.record.queue_id, queue.record.dlq_id))
    tx.add(QueueDeleted(queue.record.queue_id, tx.memory.last_queue_id))


def purge(engine: Engine, request: Purge, caller: Caller) -> int:
    """Drop ready and waiting messages; leased, retained and later messages stay. Returns the number of
    dropped messages.
    """
    with engine.transaction() as tx:
        queue = tx.queue(request.name)
        operation = engine.operations.begin(tx, "purge", queue.record.queue_id)
    return engine.operations.run_to_end(operation).done


def list_queues(tx: Transaction, request: ListQueues) -> list[QueueInfo]:
    if not isinstance(request.prefix, str):
        raise InvalidRequest("prefix", "text", request.prefix)
    queues = sorted(tx.memory.by_name.items())
    return [_info(tx, queue) for name, queue in queues if name.startswith(request.prefix)]


def pause(tx: Transaction, request: Pause) -> None:
    _set_paused(tx, request.name, True)


def resume(tx: Transaction, request: Resume) -> None:
    _set_paused(tx, request.name, False)


def _set_paused(tx: Transaction, name: str, paused: bool) -> None:
    record = tx.queue(name).record
    if record.paused != paused:
        tx.add(QueueStored(msgspec.structs.replace(record, paused=paused)))


def _info(tx: Transaction, queue: Queue) -> QueueInfo:
    record, by_id = queue.record, tx.memory.by_id
    dead_letters, source = by_id.get(record.dlq_id), by_id.get(record.source_id)
    return QueueInfo(
        name=record.name,
        config=record.config,
        created_at=record.created_ms,
        paused=record.paused,
        dead_letter_queue=dead_letters.name if dead_letters is not None else None,
        source=source.name if source is not None else None,
    )


WORK: WorkTable = {
    CreateQueue: create_queue,
    UpdateQueue: update_queue,
    ListQueues: list_queues,
    Pause: pause,
    Resume: resume,
}
WORK_IN_STEPS: StepsTable = {
    DeleteQueue: delete_queue,
    Purge: purge,
}
