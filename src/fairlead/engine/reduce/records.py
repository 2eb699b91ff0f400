"""Records beside the messages: config, buckets of throttles, pages of staged payloads, and the tables of records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.engine.reduce.throttles import closed_changed
from fairlead.model.config_keys import WEIGHT
from fairlead.records.facts import AnswerRemembered, BucketChanged, ConfigChanged, PagesStaged, RecordsChanged
from fairlead.store.kv.port import Table
from fairlead.store.rows import answer_key, claim_of_outcomes, session_of_answer

if TYPE_CHECKING:
    from fairlead.engine.memory import Memory


def records_changed(memory: Memory, fact: RecordsChanged) -> None:
    if fact.table is Table.ANSWERS:
        memory.changes.answers.update(fact.records)
        memory.sessions.forget({session_of_answer(key) for key in fact.records})
        return
    memory.changes.records.update({(fact.table, key): record for key, record in fact.records.items()})
    kept = memory.records.get(fact.table, {})
    for key, record in fact.records.items():
        if fact.table is Table.CONSUMERS:
            memory.consumers.consumer_changed(kept.get(key), record)
        elif fact.table is Table.OUTCOMES:
            memory.consumers.outcomes_changed(claim_of_outcomes(key), record)
        elif fact.table is Table.STAGED:
            memory.staged.chunk_changed(kept.get(key), record)
        elif fact.table is Table.PUBLISHING:
            memory.staged.publishing_changed(kept.get(key), record)
    if fact.table is Table.CLOSED:
        closed_changed(memory, fact.records)
    kept.update(fact.records)
    for key in [key for key, record in fact.records.items() if record is None]:
        del kept[key]


def answer_remembered(memory: Memory, fact: AnswerRemembered) -> None:
    answers, session = memory.changes.answers, fact.session
    answers[answer_key(session, fact.row)] = fact.record
    for row in fact.emptied:
        answers[answer_key(session, row)] = None
    memory.sessions.remembered(session, fact.row, fact.record, fact.arrived)


def config_changed(memory: Memory, fact: ConfigChanged) -> None:
    memory.changes.config.update(fact.entries)
    for entry, value in fact.entries.items():
        if value is None:
            memory.config.pop(entry, None)
        else:
            memory.config[entry] = value
        if entry.startswith(WEIGHT):
            _weight_changed(memory, entry, value)


def _weight_changed(memory: Memory, entry: str, value: str | None) -> None:
    queue_name, _, key = entry.removeprefix(WEIGHT).partition(":")
    if value is None:
        memory.weights[queue_name].pop(key, None)
        return
    memory.weights[queue_name][key] = int(value)
    queue = memory.by_name.get(queue_name)
    if queue is not None:
        queue.schedule.reweigh(key, int(value))


def bucket_changed(memory: Memory, fact: BucketChanged) -> None:
    key, bucket = fact.throttle_key, fact.bucket
    memory.changes.buckets[key] = bucket
    memory.idle_buckets.pop(key, None)
    if bucket is not None and fact.is_idle:
        memory.idle_buckets[key] = bucket
    memory.buckets.set(key, None if fact.is_idle else bucket)
    for queue in memory.by_id.values():
        queue.schedule.bucket_changed(key, fact.at_ms)


def pages_staged(memory: Memory, fact: PagesStaged) -> None:
    memory.changes.staged_pages[fact.queue_id, fact.number] = fact
