"""Redrive of dead letters: by id, by count, by filter, at a rate, and as a dry run that counts exactly."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from fairlead.decide.arguments import check_bool, check_count, check_filter, check_ids, check_rate
from fairlead.decide.dead_filter import DeadLetterTest, filter_to_record
from fairlead.decide.holds import in_holds
from fairlead.engine.choose import Candidate, apply_filter, message_of
from fairlead.engine.dead_letters import redrive_all
from fairlead.engine.met import STEP_MESSAGES, Met, meet_ids
from fairlead.engine.operations import end_operation, find_operation, next_dead_letters
from fairlead.engine.queue import Queue
from fairlead.engine.room import MESSAGE_BYTES
from fairlead.engine.transaction import StepsTable, Transaction, WorkTable
from fairlead.errors import InvalidRequest
from fairlead.model.intent import Intent
from fairlead.model.limits import MAX_REDRIVE_COUNT
from fairlead.model.views import RedriveResult
from fairlead.request import Caller
from fairlead.store.kv.port import Table
from fairlead.verbs.dead_letters import CancelIntent, Intents, Redrive

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine


def redrive(engine: Engine, request: Redrive, caller: Caller) -> RedriveResult:
    """Redrive dead letters. The request names a queue or its `.dlq`."""
    limit = 0 if request.count is None else check_count(request.count, "count", most=MAX_REDRIVE_COUNT)
    rate = check_rate(request.rate)
    check_bool(request.dry_run, "dry_run")
    check_bool(request.clear_progress, "clear_progress")
    if request.ids is not None and rate:
        raise InvalidRequest("rate", "None when ids are given: those go at once", request.rate)
    given = check_filter(request.filter)
    test = DeadLetterTest(given, now_ms=engine.time.now_ms())
    if request.ids is not None:
        return _redrive_ids(engine, request, test, limit)
    with engine.transaction() as tx:
        if not request.dry_run:
            tx.store.check_room(MESSAGE_BYTES)
        operation = engine.operations.begin(
            tx,
            "redrive",
            _dead_letters_of(tx, request.queue).record.queue_id,
            limit=limit,
            rate=rate,
            clear_progress=request.clear_progress,
            filter=filter_to_record(given),
        )
        if rate and not request.dry_run:
            engine.operations.leave_to_timer(tx, operation)
    if request.dry_run:
        return RedriveResult(_count_selected(engine, operation, test), 0)
    if rate:
        engine.confirm()
        return RedriveResult(_count_selected(engine, operation, test), 0, operation.intent_id)
    done = engine.operations.run_to_end(operation).done
    with engine.transaction() as tx:
        is_left = find_operation(tx, operation.intent_id) is not None
    return RedriveResult(done, done, operation.intent_id if is_left else None)


def _dead_letters_of(tx: Transaction, name: str) -> Queue:
    queue = tx.queue(name)
    return queue if queue.is_dead_letter_queue else tx.memory.by_id[queue.record.dlq_id]


def _redrive_ids(engine: Engine, request: Redrive, test: DeadLetterTest, limit: int) -> RedriveResult:
    """The oldest dead letters first, whatever the order of the ids. Messages that are not ready in the
    dead-letter queue are skipped.
    """
    raw_ids = list(check_ids(request.ids, "; use a filter for more"))
    met: dict[bytes, Met] = {}
    for start in range(0, len(raw_ids) or 1, STEP_MESSAGES):
        with engine.transaction() as tx:
            queue_id = _dead_letters_of(tx, request.queue).record.queue_id
            met |= meet_ids(tx, raw_ids[start : start + STEP_MESSAGES])
    here = [one for one in met.values() if one.where == "ready" and one.state.queue_id == queue_id]
    here.sort(key=lambda one: one.state.place)
    selected = (Candidate.of(one) for one in here if test.selects(message_of(one), one.state))
    chosen = list(islice(selected, limit or len(here)))
    if request.dry_run:
        return RedriveResult(len(chosen), 0)
    moved = 0
    for part in in_holds(chosen):
        answers = engine.hooking.ask_about_dead([candidate.raw_id for candidate in part])
        with engine.transaction(answers) as tx:
            moved += redrive_all(tx, part, queue_id, clear_progress=request.clear_progress)
    engine.confirm()
    return RedriveResult(moved, moved)


def _count_selected(engine: Engine, operation: Intent, test: DeadLetterTest) -> int:
    """The exact number. Dead letters that are leased at the moment do not count."""
    count = 0
    while page := next_dead_letters(engine, operation):
        left = operation.limit - count if operation.limit else len(page)
        looked_at = apply_filter(engine, test, page, left)
        count += sum(is_selected for _, is_selected in looked_at)
        if count == operation.limit > 0:
            break
        operation = msgspec.structs.replace(operation, cursor=looked_at[-1][0].state.place)
    return count


def intents(tx: Transaction, request: Intents) -> list[Intent]:
    return list(tx.memory.records[Table.INTENTS].values())


def cancel_intent(tx: Transaction, request: CancelIntent) -> bool:
    """Stop a redrive where it is; messages that returned stay. A purge cannot be stopped halfway."""
    if isinstance(request.intent_id, bool) or not isinstance(request.intent_id, int):
        raise InvalidRequest("intent_id", "the number of an intent", request.intent_id)
    operation = find_operation(tx, request.intent_id)
    if operation is None or operation.kind != "redrive":
        return False
    end_operation(tx, operation.intent_id)
    return True


WORK: WorkTable = {
    Intents: intents,
    CancelIntent: cancel_intent,
    # The form that carries the queue to the audit.
    **dict.fromkeys(CancelIntent.__subclasses__(), cancel_intent),
}
WORK_IN_STEPS: StepsTable = {
    Redrive: redrive,
}
