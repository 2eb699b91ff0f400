"""What an operator may do to messages, by id or by filter, with no lease token.

A lease that stands in the way is revoked: its holder's settle says `lost_lease`, and nothing runs a second time because
of it. Only what is in a numbered claim is left alone, and the result says so. A pending due time ends with the move. Each
call is one commit of at most 10,000 messages. A filter looks only where its verb finds anything to do, and at 100,000
messages at most, because it holds the lock; when there are more of either, the result says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import msgspec

from fairlead.broker.core import Core
from fairlead.broker.hooking import Answers, FailedTry, Lanes, ask_on_failure, ask_on_redrive, has_enqueue_hook, has_failure_hook
from fairlead.broker.locate import behind_fronts, locate
from fairlead.broker.looking import infos_of, within_an_answer
from fairlead.broker.moves import Moves
from fairlead.broker.queue_state import QueueState
from fairlead.broker.requests import check_bool, check_count, check_filter, check_ids
from fairlead.decide.dead_filter import DeadFilter, DeadLetterTest
from fairlead.errors import InvalidRequest
from fairlead.model.checks import check_text
from fairlead.model.durations import Duration, to_ms
from fairlead.model.facts import InDone, InLease, InReady, InStream, InWaiting, Spot, spot_queue_id
from fairlead.model.failure import FailureReason, FailureRecord
from fairlead.model.ids import show_id
from fairlead.model.lane import row_id
from fairlead.model.limits import MAX_KEY_BYTES, SCAN_LIMIT, STEP_MESSAGES
from fairlead.model.message import HELD, Message, MessageState, with_failure
from fairlead.model.views import MessageInfo, OperatorResult

#: What a verb does to one message; the answer is why it did nothing, or "".
Act = Callable[[Moves, QueueState, Message, MessageState | None, Spot], str]

_PAGE = 1000
EVERYWHERE = frozenset({"leased", "ready", "waiting", "dead"})
LEASED = frozenset({"leased"})
WAITING = frozenset({"waiting"})
DEAD = frozenset({"dead"})
#: Why a verb leaves alone what is done and only kept to be looked at.
COMPLETED = "completed already"


def act(
    core: Core,
    queue_name: str,
    ids: Sequence[str] | None,
    filter: DeadFilter | None,
    verb: Act,
    *,
    among: frozenset[str] = EVERYWHERE,
    dry_run: bool = False,
    most: int | None = None,
) -> OperatorResult:
    """`among` is where a filter looks; ids are looked up wherever they are. A dry run decides everything and commits nothing."""
    most = STEP_MESSAGES if most is None else most
    check_bool(dry_run, "dry_run")
    if (ids is None) == (filter is None):
        raise InvalidRequest("ids", "a list of message ids, or None and a filter", ids)
    with core.lock:
        queue = core.queue(queue_name)
        moves = Moves(core, core.clock.now_ms())
        changed: list[str] = []
        skipped: list[tuple[str, str]] = []
        seen = _Looked()
        selected = _by_id(core, queue, ids, skipped) if ids is not None else _by_filter(core, queue, filter or DeadFilter(), among, seen)
        for message, state, spot in selected:
            if len(changed) >= most:
                seen.all = False
                break
            why_not = _pinned(core, spot) or verb(moves, queue, message, state, spot)
            if not why_not:
                changed.append(show_id(message.id))
            elif len(skipped) < STEP_MESSAGES:
                skipped.append((show_id(message.id), why_not))
        if not dry_run:
            moves.commit()
        commit = core.store.last_commit
    core.confirm(commit)
    return OperatorResult(tuple(changed), tuple(skipped), not seen.all)


def _pinned(core: Core, spot: Spot) -> str:
    """What is in a numbered claim stays as it is until that is over."""
    return core.consumer_book.why_pinned(spot.lease) if isinstance(spot, InLease) else ""


class _Looked:
    """Whether a filter has looked at everything."""

    def __init__(self) -> None:
        self.all = True


def _by_id(core: Core, queue: QueueState, ids: Sequence[str], skipped: list[tuple[str, str]]) -> Iterator[tuple[Message, MessageState | None, Spot]]:
    for raw_id, text in check_ids(ids).items():
        found = _find(core, raw_id)
        if found is None or spot_queue_id(found[2]) not in (queue.queue_id, queue.record.dlq_id):
            skipped.append((text, "not found in this queue"))
        else:
            yield found


def _find(core: Core, raw_id: bytes) -> tuple[Message, MessageState | None, Spot] | None:
    message = core.message(raw_id)
    lease = core.leases.find(raw_id)
    spot: Spot | None = InLease(lease) if lease is not None else locate(core, raw_id)
    if message is None or spot is None:
        return None
    return message, core.store.states([raw_id])[0], spot


def _by_filter(
    core: Core, queue: QueueState, filter: DeadFilter, among: frozenset[str], seen: _Looked
) -> Iterator[tuple[Message, MessageState | None, Spot]]:
    """What the filter selects in these places of the queue and its dead letters."""
    test = DeadLetterTest(check_filter(filter), now_ms=core.clock.now_ms())
    for looked_at, raw_id in enumerate(_all_ids(core, queue, among)):
        if looked_at >= SCAN_LIMIT:
            seen.all = False
            return
        found = _find(core, raw_id)
        if found is not None and test.selects(found[0], found[1] or MessageState(queue.queue_id)):
            yield found


def _all_ids(core: Core, queue: QueueState, among: frozenset[str]) -> Iterator[bytes]:
    for queue_id in _queue_ids(queue):
        where = among | {"leased", "ready"} if _is_dead_queue(core, queue_id) and "dead" in among else among
        if "leased" in where:
            yield from [lease.id for lease in core.leases.of_queue(queue_id)]
        if "ready" in where:
            yield from _ready_ids(core, queue_id)
        waiting: InWaiting | None = None
        while "waiting" in where and (late := core.store.waiting(queue_id, waiting, _PAGE)):
            yield from (row_id(spot.row) for spot in late)
            waiting = late[-1]


def _ready_ids(core: Core, queue_id: int) -> Iterator[bytes]:
    ready: InReady | None = None
    while rows := core.store.ready(queue_id, b"", ready, _PAGE):
        yield from (row_id(spot.row) for spot in rows)
        ready = rows[-1]
    yield from (row_id(spot.row) for spot in behind_fronts(core, queue_id))


def _is_dead_queue(core: Core, queue_id: int) -> bool:
    state = core.by_id.get(queue_id)
    return state is not None and state.is_dead_letter_queue


def _queue_ids(queue: QueueState) -> list[int]:
    return [queue.queue_id] if queue.is_dead_letter_queue else [queue.queue_id, queue.record.dlq_id]


def _is_dead(core: Core, spot: Spot) -> bool:
    state = core.by_id.get(spot_queue_id(spot))
    return state is not None and state.is_dead_letter_queue


# The verbs


def retry(core: Core, queue_name: str, ids: Sequence[str] | None, filter: DeadFilter | None, *, dry_run: bool = False) -> OperatorResult:
    """Dead, or waiting after a failure: now, with a count of 0. The pending due time is gone, so it runs once.

    A dead letter goes through the enqueue flow of its queue, hook included.
    """
    lanes = {} if dry_run else _ask_about_dead(core, queue_name, ids, filter)

    def verb(moves: Moves, queue: QueueState, message: Message, state: MessageState | None, spot: Spot) -> str:
        if isinstance(spot, InDone):
            return COMPLETED
        if not _is_dead(core, spot):
            if not isinstance(spot, InWaiting) or state is None or not state.attempts:
                return "neither dead nor waiting after a failure"
            moves.become_due(spot, msgspec.structs.replace(state, attempts=0))
            return ""
        source = core.by_id.get(state.source_queue_id) if state is not None else None
        if source is None or state is None:
            return "its queue no longer exists"
        if not isinstance(spot, InReady):
            return "leased in the dead-letter queue"
        if has_enqueue_hook(source) and message.id not in lanes and not dry_run:
            return "died just now, before its hook could be asked; try again"
        lane, weight = lanes.get(message.id, (b"", 0))
        moves.redrive(spot, state, message, source, clear_progress=False, lane=lane, weight=weight)
        return ""

    return act(core, queue_name, ids, filter, verb, among=WAITING | DEAD, dry_run=dry_run)


def _ask_about_dead(core: Core, queue_name: str, ids: Sequence[str] | None, filter: DeadFilter | None) -> Lanes:
    """Without the lock: what `on_enqueue` says about the dead letters that are to come back."""
    with core.lock:
        queue = core.queue(queue_name)
        source = core.by_id.get(queue.record.source_id) if queue.is_dead_letter_queue else queue
        if source is None or not has_enqueue_hook(source) or (ids is None) == (filter is None):
            return {}
        selected = _by_id(core, queue, ids, []) if ids is not None else _by_filter(core, queue, filter or DeadFilter(), DEAD, _Looked())
        dead = list(islice((message for message, _, spot in selected if _is_dead(core, spot)), STEP_MESSAGES))
        queue_id, name = source.queue_id, source.name
    return ask_on_redrive(core, queue_id, name, dead)


def drop(moves: Moves, queue: QueueState, message: Message, state: MessageState | None, spot: Spot) -> str:
    moves.drop(spot)
    return ""


def done(moves: Moves, queue: QueueState, message: Message, state: MessageState | None, spot: Spot) -> str:
    """Someone did the work by hand."""
    if _is_dead(moves.core, spot):
        return "dead; use drop, or retry first"
    if isinstance(spot, InDone):
        return COMPLETED
    home = moves.core.by_id[spot_queue_id(spot)]
    if home.config.retain_completed_ms:
        moves.retain(spot, state, home)
    else:
        moves.drop(spot, "completed")
    return ""


def bury(error: str, reason: FailureReason) -> Act:
    def verb(moves: Moves, queue: QueueState, message: Message, state: MessageState | None, spot: Spot) -> str:
        if _is_dead(moves.core, spot):
            return "already dead"
        if isinstance(spot, InDone):
            return COMPLETED
        known = state or MessageState(queue.queue_id)
        record = FailureRecord(moves.now_ms, known.attempts, int(reason), error, "", "operator")
        moves.bury(spot, with_failure(known, record), moves.core.by_id[spot_queue_id(spot)])
        return ""

    return verb


def hold(moves: Moves, queue: QueueState, message: Message, state: MessageState | None, spot: Spot) -> str:
    if _is_dead(moves.core, spot):
        return "dead; it is not delivered anyway"
    if isinstance(spot, InDone):
        return COMPLETED
    if isinstance(spot, InWaiting) and spot.due_ms == HELD:
        return "already held"
    moves.hold(spot, state or MessageState(queue.queue_id))
    return ""


def unhold(moves: Moves, queue: QueueState, message: Message, state: MessageState | None, spot: Spot) -> str:
    if not isinstance(spot, InWaiting) or spot.due_ms != HELD:
        return "not held"
    moves.become_due(spot, state)
    return ""


def fail(
    core: Core, queue_name: str, ids: Sequence[str] | None, filter: DeadFilter | None, error: str, reason: FailureReason, *, dry_run: bool = False
) -> OperatorResult:
    """What is leased fails as if its holder had said so: hook and policy decide."""
    answers: Answers = {}
    with core.lock:
        queue = core.queue(queue_name)
        tries = []
        if has_failure_hook(queue) and (ids is None) != (filter is None) and not dry_run:
            selected = _by_id(core, queue, ids, []) if ids is not None else _by_filter(core, queue, filter or DeadFilter(), LEASED, _Looked())
            for message, state, spot in selected:
                if isinstance(spot, InLease) and not _is_dead(core, spot) and not spot.lease.pinned:
                    tries.append(FailedTry(spot.lease, queue, message, state, error, reason, 0))
    if tries:
        answers = ask_on_failure(core, tries)

    def verb(moves: Moves, queue: QueueState, message: Message, state: MessageState | None, spot: Spot) -> str:
        if not isinstance(spot, InLease) or _is_dead(core, spot):
            return "not leased"
        if dry_run:
            # The road of a failure counts for the breaker, commit or not.
            return ""
        hook = answers.get((spot.lease.id, spot.lease.claim_id))
        moves.fail(spot.lease, state, reason=reason, error=error, hook=hook)
        return ""

    return act(core, queue_name, ids, filter, verb, among=LEASED, dry_run=dry_run)


def drain(core: Core, name: str, *, limit: int) -> list[MessageInfo]:
    """Look and remove in one commit: the ready rows first, then what is ready behind the front of each stream."""
    check_count(limit, "limit", most=10_000)
    with core.lock:
        queue = core.queue(name)
        spots: list[InReady | InStream] = list(core.store.ready(queue.queue_id, b"", None, limit))
        spots += islice(behind_fronts(core, queue.queue_id), limit - len(spots))
        spots = within_an_answer(spots)
        found = infos_of(core, spots)
        moves = Moves(core, core.clock.now_ms())
        for spot in spots:
            moves.drop(spot)
        moves.commit()
        commit = core.store.last_commit
    core.confirm(commit)
    return found


def prune(core: Core, name: str, *, older_than: Duration, dry_run: bool, which: str = "all") -> OperatorResult:
    """What is over and only kept to be looked at: done or dead for so long."""
    age_ms = to_ms(older_than, "older_than")
    if which not in ("all", "done", "dead"):
        raise InvalidRequest("which", '"all", "done" or "dead"', which)
    with core.lock:
        queue = core.queue(name)
        dead_letters = queue if queue.is_dead_letter_queue else core.by_id[queue.record.dlq_id]
    done = OperatorResult(()) if which == "dead" else _prune_done(core, name, age_ms, dry_run)
    if which == "done" or done.more:
        return done
    dead = act(core, dead_letters.name, None, DeadFilter(older_than=older_than), drop, dry_run=dry_run, most=STEP_MESSAGES - len(done.changed))
    return OperatorResult(done.changed + dead.changed, dead.skipped, dead.more)


def _prune_done(core: Core, name: str, age_ms: int, dry_run: bool) -> OperatorResult:
    check_bool(dry_run, "dry_run")
    with core.lock:
        queue = core.queue(name)
        spots = core.store.done(queue.queue_id, None, core.clock.now_ms() - age_ms, STEP_MESSAGES + 1)
        moves = Moves(core, core.clock.now_ms())
        for spot in spots[:STEP_MESSAGES]:
            moves.drop(spot)
        if not dry_run:
            moves.commit()
            core.look_ahead(queue)
        commit = core.store.last_commit
    core.confirm(commit)
    return OperatorResult(tuple(show_id(row_id(spot.row)) for spot in spots[:STEP_MESSAGES]), (), len(spots) > STEP_MESSAGES)


def release_stream(core: Core, queue_name: str, stream: str) -> bool:
    stream = check_text(stream, "stream", MAX_KEY_BYTES)
    with core.lock:
        queue = core.queue(queue_name)
        moves = Moves(core, core.clock.now_ms())
        if not moves.streams.get(queue.queue_id, stream).open_up():
            return False
        moves.commit()
        commit = core.store.last_commit
    core.confirm(commit)
    return True
