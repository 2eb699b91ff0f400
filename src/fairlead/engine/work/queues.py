"""Making, pausing and listing queues."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fairlead.engine.memory import Queue
from fairlead.engine.transaction import Transaction
from fairlead.errors import InvalidRequest, QueueExists
from fairlead.model.names import DEAD_LETTER_SUFFIX, check_queue_name, dead_letter_name, is_dead_letter_name
from fairlead.model.queue import QueueConfig, QueueRecord, read_queue_options, with_defaults
from fairlead.model.views import QueueInfo
from fairlead.records.facts import QueueStored
from fairlead.verbs.queues import CreateQueue, ListQueues, Pause, Resume


def create_queue(tx: Transaction, request: CreateQueue) -> QueueInfo:
    name = check_queue_name(request.name)
    if is_dead_letter_name(name):
        wanted = f"a name that does not end in {DEAD_LETTER_SUFFIX!r}: dead-letter queues are made with their queue"
        raise InvalidRequest("queue", wanted, name)
    check_queue_name(dead_letter_name(name))
    options = request.options
    if not isinstance(options, Mapping):
        raise InvalidRequest("options", "a mapping of option names to values", type(options))
    config = read_queue_options(with_defaults(dict(options)), QueueConfig())
    for taken in (name, dead_letter_name(name)):
        if taken in tx.memory.by_name:
            raise QueueExists(taken)
    first_id = tx.memory.last_queue_id + 1
    tx.add(QueueStored(QueueRecord(first_id, name, config, tx.now_ms, dlq_id=first_id + 1)))
    dead_letters = QueueRecord(
        first_id + 1, dead_letter_name(name), QueueConfig(), tx.now_ms, source_id=first_id
    )
    tx.add(QueueStored(dead_letters))
    return _info(tx, tx.queue(name))


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
