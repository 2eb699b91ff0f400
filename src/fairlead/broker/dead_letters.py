"""Bringing dead letters back: by id, by count, by filter, at a rate, and as a dry run that counts exactly."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.broker.core import Core
from fairlead.broker.hooking import Lanes, ask_on_redrive, has_enqueue_hook
from fairlead.broker.intents import begin_intent, run_to_end, take_up
from fairlead.broker.locate import locate
from fairlead.broker.moves import Moves
from fairlead.broker.queue_state import QueueState
from fairlead.broker.requests import check_bool, check_count, check_filter, check_ids
from fairlead.decide.dead_filter import DeadFilter, DeadLetterTest, filter_to_record
from fairlead.errors import InvalidRequest, NotADeadLetterQueue, SourceQueueGone
from fairlead.model.facts import InReady, IntentSaved
from fairlead.model.ids import find_id
from fairlead.model.lane import DEAD_LETTER_LANE, row_id, row_place
from fairlead.model.limits import STEP_MESSAGES
from fairlead.model.views import RedriveResult

_MAX_RATE = 1_000_000


def redrive(
    core: Core,
    name: str,
    *,
    ids: Sequence[str] | None,
    filter: DeadFilter | None,
    count: int | None,
    dry_run: bool,
    rate: float | None,
    clear_progress: bool,
) -> RedriveResult:
    """`name` is a queue or its `.dlq`. With a `rate` (messages a second) it goes on in the background as an intent."""
    limit = 0 if count is None else check_count(count, "count", most=1 << 40)
    per_second = _check_rate(rate)
    check_bool(dry_run, "dry_run")
    check_bool(clear_progress, "clear_progress")
    if ids is not None and per_second:
        raise InvalidRequest("rate", "None when ids are given: those go at once", rate)
    test = DeadLetterTest(check_filter(filter), now_ms=core.clock.now_ms())
    lanes = _ask_hook(core, name, ids, test) if ids is not None and not dry_run else None
    with core.lock:
        dead_letters = _dead_letters_of(core, name)
        if ids is not None:
            result = _redrive_ids(core, dead_letters, ids, test, limit, dry_run, clear_progress, lanes)
            commit = core.store.last_commit
        else:
            intent = begin_intent(
                core,
                "redrive",
                dead_letters.queue_id,
                limit=limit,
                rate=per_second,
                clear_progress=clear_progress,
                filter=filter_to_record(filter or DeadFilter()),
            )
            if per_second and not dry_run:
                core.commit([IntentSaved(intent)])
                core.intents[intent.intent_id] = intent
                take_up(core, intent)
                core.wake_timer(0)
            commit = core.store.last_commit
    if ids is not None:
        core.confirm(commit)
        return result
    if dry_run:
        return RedriveResult(_count_selected(core, name, test, intent.cutoff, limit), 0)
    if per_second:
        core.confirm(commit)
        return RedriveResult(_count_selected(core, name, test, intent.cutoff, limit), 0, intent.intent_id)
    moved = run_to_end(core, intent)
    return RedriveResult(moved, moved)


def _ask_hook(core: Core, name: str, ids: Sequence[str], test: DeadLetterTest) -> Lanes | None:
    """Without the lock: a redrive goes through the enqueue flow of the source, hook included."""
    with core.lock:
        dead_letters = _dead_letters_of(core, name)
        source = core.by_id[dead_letters.record.source_id]
        if not has_enqueue_hook(source) or isinstance(ids, str) or not isinstance(ids, Sequence):
            return None
        raw_ids = list(dict.fromkeys(raw_id for text in ids[:STEP_MESSAGES] if (raw_id := find_id(text)) is not None))
        messages = [
            message
            for message, state in zip(core.messages(raw_ids), core.store.states(raw_ids), strict=True)
            if message is not None and state is not None and state.queue_id == dead_letters.queue_id and test.selects(message, state)
        ]
    return ask_on_redrive(core, source.queue_id, source.name, messages)


def _dead_letters_of(core: Core, name: str) -> QueueState:
    queue = core.queue(name)
    dead_letters = queue if queue.is_dead_letter_queue else core.by_id.get(queue.record.dlq_id)
    if dead_letters is None:
        raise NotADeadLetterQueue(name)
    if dead_letters.record.source_id not in core.by_id:
        raise SourceQueueGone(dead_letters.name)
    return dead_letters


def _redrive_ids(
    core: Core,
    dead_letters: QueueState,
    ids: Sequence[str],
    test: DeadLetterTest,
    limit: int,
    dry_run: bool,
    clear_progress: bool,
    lanes: Lanes | None,
) -> RedriveResult:
    """The longest dead first, whatever the order of the ids. What is not ready in this queue (leased, gone, elsewhere) is passed over."""
    given = check_ids(ids, "; use a filter for more")
    source = core.by_id[dead_letters.record.source_id]
    moves = Moves(core, core.clock.now_ms())
    spots = []
    for raw_id in given:
        spot = None if core.leases.find(raw_id) else locate(core, raw_id)
        if isinstance(spot, InReady) and spot.queue_id == dead_letters.queue_id:
            spots.append(spot)
    matched = 0
    for spot in sorted(spots, key=lambda found: row_place(found.row)):
        raw_id = row_id(spot.row)
        message, state = core.message(raw_id), core.store.states([raw_id])[0]
        if message is not None and state is not None and test.selects(message, state) and not 0 < limit <= matched:
            matched += 1
            if not dry_run:
                lane, weight = lanes.get(raw_id, (b"", 0)) if lanes is not None else (b"", 0)
                moves.redrive(spot, state, message, source, clear_progress=clear_progress, lane=lane, weight=weight)
    moves.commit()
    return RedriveResult(matched, 0 if dry_run else matched)


def _count_selected(core: Core, name: str, test: DeadLetterTest, cutoff: int, limit: int) -> int:
    """Exact, in bounded reads; what is leased just now does not count."""
    selected, place = 0, 0
    while True:
        with core.lock:
            dead_letters = _dead_letters_of(core, name)
            rows = core.store.rows_after(dead_letters.queue_id, DEAD_LETTER_LANE, place, 1000)
            ids = [row_id(row) for row in rows]
            for row, message, state in zip(rows, core.messages(ids), core.store.states(ids), strict=True):
                place = row_place(row)
                if place <= cutoff and message is not None and state is not None and test.selects(message, state):
                    selected += 1
        if limit and selected >= limit:
            return limit
        if len(rows) < 1000:
            return selected


def _check_rate(rate: float | None) -> float:
    if rate is None:
        return 0.0
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate <= _MAX_RATE:
        raise InvalidRequest("rate", f"messages a second, above 0 and at most {_MAX_RATE}", rate)
    return float(rate)
