"""Operators' verbs, by id or by filter, without a lease token. A dry run decides everything and changes
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

import msgspec

from fairlead.decide.arguments import check_bool, check_count, check_error, check_ids
from fairlead.decide.dead_filter import DeadFilter
from fairlead.engine import moves
from fairlead.engine.act import NOT_HERE, ActRun, act
from fairlead.engine.choose import Candidate
from fairlead.engine.infos import show_all
from fairlead.engine.met import Met, bounded, meet, step
from fairlead.engine.queue import Queue
from fairlead.engine.transaction import HookAnswers, Transaction
from fairlead.engine.walk import walk
from fairlead.errors import FairleadError, InvalidRequest, MessageNotFound
from fairlead.model.durations import to_ms
from fairlead.model.failure import FailureReason
from fairlead.model.ids import show_id
from fairlead.model.limits import HOLD_MESSAGES, MAX_PAGE, STEP_MESSAGES
from fairlead.model.message import HELD, record_bytes
from fairlead.model.views import MessageInfo, OperatorResult
from fairlead.records.facts import MessageGone, MessageMoved, MessageRestated, StateFact
from fairlead.records.state import OwnState
from fairlead.request import Caller
from fairlead.verbs.operate import Bury, Done, Drain, Drop, FailLeased, Hold, Prune, Reset, Retry, Unhold

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine
    from fairlead.engine.transaction import StepsTable

COMPLETED = "completed already"
NOT_FAILED = "neither dead nor waiting after a failure"
LIVE = frozenset({"leased", "ready", "waiting"})


def drop(engine: Engine, request: Drop, caller: Caller) -> OperatorResult:
    return act(engine, request, _drop)


def done(engine: Engine, request: Done, caller: Caller) -> OperatorResult:
    def decide(tx: Transaction, number: int) -> StateFact | str:
        if _is_dead(tx, number):
            return "dead; use drop, or retry first"
        if tx.state_of(number).done_ms:
            return COMPLETED
        return moves.complete(tx, number, tx.memory.by_id[tx.state_of(number).queue_id])

    return act(engine, request, decide)


def bury(engine: Engine, request: Bury, caller: Caller) -> OperatorResult:
    error, reason = check_error(request.error, request.reason)

    def decide(tx: Transaction, number: int) -> StateFact | str:
        if _is_dead(tx, number):
            return "already dead"
        return COMPLETED if tx.state_of(number).done_ms else moves.bury(tx, number, error, reason)

    return act(engine, request, decide, grows=True)


def hold(engine: Engine, request: Hold, caller: Caller) -> OperatorResult:
    record = None
    if request.reason is not None or request.error:
        reason = FailureReason.UNKNOWN if request.reason is None else request.reason
        record = check_error(request.error, reason)

    def decide(tx: Transaction, number: int) -> StateFact | str:
        if _is_dead(tx, number):
            return "dead; it is not delivered anyway"
        state = tx.state_of(number)
        if state.done_ms:
            return COMPLETED
        if state.due_ms == HELD and record is None:
            return "already held"
        if record is not None:
            state = moves.with_record(tx, state, *record)
        return moves.hold(tx, number, state)

    return act(engine, request, decide, grows=True)


def unhold(engine: Engine, request: Unhold, caller: Caller) -> OperatorResult:
    def decide(tx: Transaction, number: int) -> StateFact | str:
        state = tx.state_of(number)
        return "not held" if state.due_ms != HELD else moves.make_due(tx, number, state)

    return act(engine, request, decide, among={"waiting"}, grows=True)


def reset(engine: Engine, request: Reset, caller: Caller) -> OperatorResult:
    def decide(tx: Transaction, number: int) -> StateFact | str:
        if _is_dead(tx, number):
            return "dead; use retry or redrive"
        state = tx.state_of(number)
        if state.done_ms:
            return COMPLETED
        if not state.attempts:
            return "its count is 0"
        return MessageRestated(number, msgspec.structs.replace(state, attempts=0, returns=0))

    return act(engine, request, decide, among=LIVE)


def fail(engine: Engine, request: FailLeased, caller: Caller) -> OperatorResult:
    error, reason = check_error(request.error, request.reason)

    def decide(tx: Transaction, number: int) -> StateFact | str:
        if number not in tx.memory.held or _is_dead(tx, number):
            return "not leased"
        if request.dry_run:
            # A failure that did not happen must not count for the breaker.
            return MessageRestated(number, tx.state_of(number))
        return moves.fail(tx, number, reason=reason, error=error).fact

    def ask(raw_ids: Sequence[bytes]) -> HookAnswers:
        return engine.hooking.ask_about_leased(raw_ids, error, reason)

    return act(engine, request, decide, among={"leased"}, ask=ask)


def retry(engine: Engine, request: Retry, caller: Caller) -> OperatorResult:
    """A single id that cannot be retried raises an error; among several ids it is skipped."""
    check_bool(request.keep_count, "keep_count")

    def decide(tx: Transaction, number: int) -> StateFact | str:
        state = tx.state_of(number)
        if _is_dead(tx, number):
            if _asks_on_enqueue(tx, state) and number not in tx.hooks.lanes and not request.dry_run:
                return "died just now, before its hook could be asked; try again"
            return _redrive(tx, number, keep_count=request.keep_count)
        if state.done_ms:
            return COMPLETED
        if not state.due_ms or not state.attempts:
            return NOT_FAILED
        attempts = state.attempts if request.keep_count else 0
        return moves.make_due(tx, number, msgspec.structs.replace(state, attempts=attempts))

    ask = engine.hooking.ask_about_dead
    result = act(engine, request, decide, among={"waiting", "dead"}, ask=ask, grows=True)
    if request.ids is not None and len(request.ids) == 1 and result.skipped:
        with engine.transaction() as tx:
            raise _refusal(tx, *result.skipped[0])
    return result


def prune(engine: Engine, request: Prune, caller: Caller) -> OperatorResult:
    """Delete messages that have ended and are only retained: done or dead for long enough."""
    age_ms = to_ms(request.older_than, "older_than")
    if request.which not in ("all", "done", "dead"):
        raise InvalidRequest("which", '"all", "done" or "dead"', request.which)
    with engine.transaction() as tx:
        queue, before_ms = tx.queue(request.queue), tx.now_ms - age_ms
        dead_letters = queue if queue.is_dead_letter_queue else tx.memory.by_id[queue.record.dlq_id]
    dry_run, done = check_bool(request.dry_run, "dry_run"), OperatorResult(())
    if request.which != "dead":
        done = _prune_done(engine, queue, before_ms, dry_run=dry_run)
    if request.which == "done" or done.more:
        return done
    most = STEP_MESSAGES - len(done.changed)
    run = ActRun(engine, dead_letters.name, _drop, dry_run=dry_run, most=most)
    dead = run.change_selected(DeadFilter(older_than=request.older_than))
    return OperatorResult(done.changed + dead.changed, dead.skipped, dead.more)


def _prune_done(engine: Engine, queue: Queue, before_ms: int, *, dry_run: bool) -> OperatorResult:
    done = (met for page in walk(engine, queue.record.queue_id, "done") for met in page)
    over = takewhile(lambda met: met.state.done_ms <= before_ms, done)
    run = ActRun(engine, queue.name, _drop, dry_run=dry_run)
    return run.change_all(Candidate(met.raw_id, None) for met in over)


def drain(engine: Engine, request: Drain, caller: Caller) -> list[MessageInfo]:
    """Read and remove messages, in short transactions. If one of them fails, the answer has the messages
    removed before: they exist nowhere else.
    """
    check_count(request.limit, "limit", most=MAX_PAGE)
    with engine.transaction() as tx:
        queue_id = tx.queue(request.queue).record.queue_id
    drained: list[MessageInfo] = []
    with engine.looks.look() as look:
        found = list(bounded(walk(engine, queue_id, "ready"), request.limit))
        count = look.admit([met.size + record_bytes(met.state) for met in found])
        try:
            for start in range(0, count, HOLD_MESSAGES):
                drained += _drain_part(engine, found[start : min(count, start + HOLD_MESSAGES)])
        except FairleadError:
            if not drained:
                raise
    engine.confirm()
    return drained


def _drain_part(engine: Engine, part: Sequence[Met]) -> list[MessageInfo]:
    """Bodies are read before their messages are removed; a message that has changed meanwhile stays."""
    shown = {info.id: info for info in show_all(engine, part)}
    with step(engine) as tx:
        now = {met.number: met for met in meet(tx, [met.number for met in part])}
        unchanged = [met for met in part if met == now.get(met.number) and show_id(met.raw_id) in shown]
        for met in unchanged:
            tx.add(moves.gone(tx, met.number, "dropped"))
    return [shown[show_id(met.raw_id)] for met in unchanged]


def _drop(tx: Transaction, number: int) -> MessageGone:
    return moves.gone(tx, number, "dropped")


def _redrive(tx: Transaction, number: int, *, keep_count: bool) -> MessageMoved | str:
    if keep_count:
        return "dead; its next life begins with a count of 0"
    if number in tx.memory.held:
        return "leased in the dead-letter queue"
    return moves.redrive(tx, number, tx.state_of(number))


def _asks_on_enqueue(tx: Transaction, dead: OwnState) -> bool:
    return bool(tx.memory.by_id[dead.source_queue_id].record.config.on_enqueue)


def _is_dead(tx: Transaction, number: int) -> bool:
    return tx.memory.by_id[tx.state_of(number).queue_id].is_dead_letter_queue


def _refusal(tx: Transaction, message_id: str, why: str) -> FairleadError:
    if why is NOT_HERE:
        return MessageNotFound(message_id)
    found = _place_of(tx, message_id) if why is NOT_FAILED else why
    return InvalidRequest(f"message {message_id}", "dead, or waiting after a failure", found)


def _place_of(tx: Transaction, message_id: str) -> str:
    (raw_id,) = check_ids([message_id])
    number = tx.find_messages([raw_id]).get(raw_id)
    if number is None:
        return "gone"
    if number in tx.memory.held:
        return "leased"
    due_ms = tx.state_of(number).due_ms
    if due_ms == HELD:
        return "held"
    return "waiting" if due_ms else "ready"


WORK_IN_STEPS: StepsTable = {
    Retry: retry,
    Reset: reset,
    Drop: drop,
    Done: done,
    Bury: bury,
    Hold: hold,
    Unhold: unhold,
    FailLeased: fail,
    Prune: prune,
    Drain: drain,
}
