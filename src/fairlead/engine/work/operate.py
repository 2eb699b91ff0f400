"""Acts of operators, by id, without a lease token. A dry run decides everything and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from fairlead.decide.arguments import check_bool, check_error, check_ids
from fairlead.engine import moves
from fairlead.engine.memory import Queue
from fairlead.engine.transaction import Transaction
from fairlead.errors import FairleadError, InvalidRequest, MessageNotFound
from fairlead.model.failure import FailureReason
from fairlead.model.ids import show_id
from fairlead.model.message import HELD
from fairlead.model.views import OperatorResult
from fairlead.records.facts import MessageGone, MessageMoved, MessageRestated, StateFact
from fairlead.verbs.operate import Bury, Done, Drop, FailLeased, Hold, Operation, Reset, Retry, Unhold

#: What to do with a message, as a fact; or why not, as a text.
Act = Callable[[Transaction, int], StateFact | str]

NOT_HERE = "not found in this queue"
NOT_FAILED = "neither dead nor waiting after a failure"


def drop(tx: Transaction, request: Drop) -> OperatorResult:
    return _act(tx, request, lambda tx, number: MessageGone(number, "dropped"))


def done(tx: Transaction, request: Done) -> OperatorResult:
    def act(tx: Transaction, number: int) -> StateFact | str:
        if _is_dead(tx, number):
            return "dead; use drop, or retry first"
        return MessageGone(number, "completed")

    return _act(tx, request, act)


def bury(tx: Transaction, request: Bury) -> OperatorResult:
    error, reason = check_error(request.error, request.reason)

    def act(tx: Transaction, number: int) -> StateFact | str:
        return "already dead" if _is_dead(tx, number) else moves.bury(tx, number, error, reason)

    return _act(tx, request, act)


def hold(tx: Transaction, request: Hold) -> OperatorResult:
    record = None
    if request.reason is not None or request.error:
        reason = FailureReason.UNKNOWN if request.reason is None else request.reason
        record = check_error(request.error, reason)

    def act(tx: Transaction, number: int) -> StateFact | str:
        if _is_dead(tx, number):
            return "dead; it is not delivered anyway"
        state = tx.memory.state_of(number)
        if state.due_ms == HELD and record is None:
            return "already held"
        if record is not None:
            state = moves.with_record(tx, state, *record)
        return moves.hold(number, state, is_leased=number in tx.memory.held)

    return _act(tx, request, act)


def unhold(tx: Transaction, request: Unhold) -> OperatorResult:
    def act(tx: Transaction, number: int) -> StateFact | str:
        state = tx.memory.state_of(number)
        return "not held" if state.due_ms != HELD else moves.make_due(tx, number, state)

    return _act(tx, request, act)


def reset(tx: Transaction, request: Reset) -> OperatorResult:
    def act(tx: Transaction, number: int) -> StateFact | str:
        if _is_dead(tx, number):
            return "dead; use retry or redrive"
        state = tx.memory.state_of(number)
        if not state.attempts:
            return "its count is 0"
        return MessageRestated(number, msgspec.structs.replace(state, attempts=0))

    return _act(tx, request, act)


def fail(tx: Transaction, request: FailLeased) -> OperatorResult:
    error, reason = check_error(request.error, request.reason)

    def act(tx: Transaction, number: int) -> StateFact | str:
        if number not in tx.memory.held or _is_dead(tx, number):
            return "not leased"
        return moves.fail(tx, number, reason=reason, error=error).fact

    return _act(tx, request, act)


def retry(tx: Transaction, request: Retry) -> OperatorResult:
    check_bool(request.keep_count, "keep_count")

    def act(tx: Transaction, number: int) -> StateFact | str:
        state = tx.memory.state_of(number)
        if _is_dead(tx, number):
            return _redrive(tx, number, keep_count=request.keep_count)
        if not state.due_ms or not state.attempts:
            return NOT_FAILED
        attempts = state.attempts if request.keep_count else 0
        return moves.make_due(tx, number, msgspec.structs.replace(state, attempts=attempts))

    return _act(tx, request, act, may_raise=True)


def _redrive(tx: Transaction, number: int, *, keep_count: bool) -> MessageMoved | str:
    if keep_count:
        return "dead; its next life begins with a count of 0"
    if number in tx.memory.held:
        return "leased in the dead-letter queue"
    return moves.redrive(tx, number, tx.memory.state_of(number))


# The course of every act


def _act(
    tx: Transaction, request: Operation[OperatorResult], act: Act, *, may_raise: bool = False
) -> OperatorResult:
    given: Any = request
    check_bool(given.dry_run, "dry_run")
    if given.ids is None or given.filter is not None:
        wanted = "a list of message ids, and no filter: the new engine cannot do this yet"
        raise InvalidRequest("ids", wanted, given.ids)
    queue = tx.queue(given.queue)
    changed: list[str] = []
    skipped: list[tuple[str, str]] = []
    facts: list[StateFact] = []
    for raw_id, text in check_ids(given.ids).items():
        number = tx.memory.find_message(raw_id)
        if number is None or not _is_in(tx, number, queue):
            skipped.append((text, NOT_HERE))
            continue
        decided = act(tx, number)
        if isinstance(decided, str):
            skipped.append((show_id(raw_id), decided))
        else:
            changed.append(show_id(raw_id))
            facts.append(decided)
    if may_raise and skipped and len(given.ids) == 1:
        raise _refusal(tx, *skipped[0])
    for fact in [] if given.dry_run else facts:
        tx.add(fact)
    return OperatorResult(tuple(changed), tuple(skipped), False)


def _is_in(tx: Transaction, number: int, queue: Queue) -> bool:
    """A message of the queue, or of its dead letters; of a dead-letter queue only its own."""
    found = tx.memory.by_id[tx.memory.state_of(number).queue_id]
    return found is queue or (found.home_id == queue.home_id and not queue.is_dead_letter_queue)


def _is_dead(tx: Transaction, number: int) -> bool:
    return tx.memory.by_id[tx.memory.state_of(number).queue_id].is_dead_letter_queue


def _refusal(tx: Transaction, message_id: str, why: str) -> FairleadError:
    if why is NOT_HERE:
        return MessageNotFound(message_id)
    found = _place_of(tx, message_id) if why is NOT_FAILED else why
    return InvalidRequest(f"message {message_id}", "dead, or waiting after a failure", found)


def _place_of(tx: Transaction, message_id: str) -> str:
    (raw_id,) = check_ids([message_id])
    number = tx.memory.find_message(raw_id)
    assert number is not None, "it was found above"
    if number in tx.memory.held:
        return "leased"
    due_ms = tx.memory.state_of(number).due_ms
    if due_ms == HELD:
        return "held"
    return "waiting" if due_ms else "ready"
