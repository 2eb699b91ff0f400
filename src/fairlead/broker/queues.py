"""Making, changing, pausing, emptying and deleting queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fairlead.broker.core import Core
from fairlead.broker.intents import begin_intent, run_to_end
from fairlead.broker.queue_state import QueueState
from fairlead.errors import InvalidRequest, LimitReached, QueueExists
from fairlead.hooks import HOOK_FUNCTIONS
from fairlead.model.facts import IntentSaved, QueueSaved, QueueUnlinked
from fairlead.model.names import DEAD_LETTER_SUFFIX, check_queue_name, dead_letter_name, is_dead_letter_name
from fairlead.model.queue import (
    DEAD_LETTER_OPTIONS,
    QueueConfig,
    QueueRecord,
    read_queue_options,
    with_defaults,
)
from fairlead.model.views import QueueInfo


def create_queue(core: Core, name: str, options: Mapping[str, Any]) -> QueueInfo:
    """The queue and its `.dlq`, in one commit."""
    name = check_queue_name(name)
    if is_dead_letter_name(name):
        raise InvalidRequest(
            "queue",
            f"a name that does not end in {DEAD_LETTER_SUFFIX!r}: dead-letter queues are made with their queue",
            name,
        )
    check_queue_name(dead_letter_name(name))
    options = _check_options(options)
    config = read_queue_options(with_defaults(options), QueueConfig())
    _check_scripts(core, options)
    with core.lock:
        core.check_open()
        for taken in (name, dead_letter_name(name)):
            if taken in core.by_name:
                raise QueueExists(taken)
        # Each queue has its `.dlq` beside it.
        if len(core.by_name) // 2 >= core.settings.max_queues:
            raise LimitReached("queues", core.settings.max_queues)
        now_ms, first_id = core.now_ms(), core.store.last_queue_id + 1
        queue = QueueRecord(first_id, name, config, now_ms, dlq_id=first_id + 1)
        dead_letters = QueueRecord(
            first_id + 1, dead_letter_name(name), QueueConfig(), now_ms, source_id=first_id
        )
        core.commit([QueueSaved(queue), QueueSaved(dead_letters)])
        state = core.add_queue(queue)
        core.add_queue(dead_letters)
        info, commit = queue_info(core, state), core.store.last_commit
    core.confirm(commit)
    return info


def update_queue(core: Core, name: str, options: Mapping[str, Any]) -> QueueInfo:
    """Later failures, claims and enqueues follow the new options; what is under way does not change."""
    options = _check_options(options)
    _check_scripts(core, options)
    with core.lock:
        state = core.queue(name)
        if state.is_dead_letter_queue and not DEAD_LETTER_OPTIONS.issuperset(options):
            refused = sorted(set(options) - DEAD_LETTER_OPTIONS)[0]
            own = ", ".join(sorted(DEAD_LETTER_OPTIONS))
            raise InvalidRequest(
                refused, f"set on the source queue; a dead-letter queue has only {own}", options[refused]
            )
        before, config = state.config, read_queue_options(options, state.config)
        _check_ordering(core, state, config)
        _save(core, state, msgspec.structs.replace(state.record, config=config))
        core.set_scripts(state.queue_id, config)
        if (before.quantum, before.max_unsettled_per_key) != (config.quantum, config.max_unsettled_per_key):
            core.reload_queue(state)
        for touched in (state, core.by_id.get(state.record.dlq_id)):
            if touched is not None:
                core.look_ahead(touched)
                core.wake_timer(touched.next_wake_ms())
        state.wake_all()
        info, commit = queue_info(core, state), core.store.last_commit
    core.confirm(commit)
    return info


def _check_options(options: object) -> dict[str, Any]:
    if not isinstance(options, Mapping):
        raise InvalidRequest("options", "a mapping of option names to values", type(options))
    return dict(options)


def _check_scripts(core: Core, options: Mapping[str, Any]) -> None:
    """Without the lock: a script that does not compile or lacks its function is refused at the call that sets
    it.
    """
    for function in HOOK_FUNCTIONS:
        if options.get(function):
            read_queue_options({function: options[function]}, QueueConfig())
            core.hooks.check(options[function], function)


def _check_ordering(core: Core, state: QueueState, config: QueueConfig) -> None:
    """Whether streams order a message is decided when it is enqueued."""
    before = state.config.ordering
    if (
        before != config.ordering
        and "none" in (before, config.ordering)
        and core.store.counters(state.queue_id).messages
    ):
        raise InvalidRequest("ordering", f"{before!r} as long as the queue holds messages", config.ordering)


def set_paused(core: Core, name: str, paused: bool) -> None:
    """A paused queue takes messages and settles, and hands nothing out."""
    with core.lock:
        state = core.queue(name)
        if state.record.paused != paused:
            _save(core, state, msgspec.structs.replace(state.record, paused=paused))
            state.wake_all()
        commit = core.store.last_commit
    core.confirm(commit)


def purge(core: Core, name: str) -> int:
    """Drop what is ready or waiting now; leased messages, completed ones that are kept, and later ones stay.
    Returns how many went.

    A crash in between leaves a durable intent that is finished at the next open.
    """
    with core.lock:
        state = core.queue(name)
        intent = begin_intent(core, "purge", state.queue_id)
    return run_to_end(core, intent).intent.done


def delete_queue(core: Core, name: str) -> None:
    """The names of the queue and its `.dlq` are free at once; their messages go in durable steps.

    Consumers waiting on them get `QueueNotFound`, settles of what was leased get `not_found`.
    """
    with core.lock:
        state = core.queue(name)
        if state.is_dead_letter_queue:
            raise InvalidRequest(
                "queue",
                "a source queue: a dead-letter queue goes with its source, and a purge empties it",
                name,
            )
        dead_letters = core.by_id[state.record.dlq_id]
        intent = begin_intent(core, "delete", state.queue_id)
        unlinked = [QueueUnlinked(gone.queue_id, gone.name) for gone in (state, dead_letters)]
        lost = core.consumer_book.lose_queues((state.queue_id, dead_letters.queue_id))
        core.commit([*unlinked, IntentSaved(intent), *core.consumer_book.facts_of(lost)])
        core.consumer_book.lost(lost)
        core.intents[intent.intent_id] = intent
        # Still under the lock, or the timer takes it for an intent without a caller.
        core.foreground.add(intent.intent_id)
        for gone in (state, dead_letters):
            del core.by_name[gone.name], core.by_id[gone.queue_id], core.epochs[gone.queue_id]
            gone.scheduler.discard()
            core.set_scripts(gone.queue_id, QueueConfig())
            core.retaining.discard(gone.queue_id)
            gone.wake_all()
        commit = core.store.last_commit
    core.confirm(commit)
    run_to_end(core, intent)


def list_queues(core: Core, prefix: str) -> list[QueueInfo]:
    if not isinstance(prefix, str):
        raise InvalidRequest("prefix", "text", prefix)
    with core.lock:
        core.check_open()
        return [
            queue_info(core, state) for name, state in sorted(core.by_name.items()) if name.startswith(prefix)
        ]


def queue_info(core: Core, state: QueueState) -> QueueInfo:
    record = state.record
    dead_letters, source = core.by_id.get(record.dlq_id), core.by_id.get(record.source_id)
    return QueueInfo(
        name=record.name,
        config=record.config,
        created_at=record.created_ms,
        paused=record.paused,
        dead_letter_queue=dead_letters.name
        if dead_letters
        else dead_letter_name(record.name)
        if record.dlq_id
        else None,
        source=source.name if source else None,
    )


def _save(core: Core, state: QueueState, record: QueueRecord) -> None:
    core.commit([QueueSaved(record)])
    state.record = record
    core.note_retaining(record)
