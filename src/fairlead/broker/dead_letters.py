"""Bringing dead letters back: by id, by count, by filter, at a rate, and as a dry run that counts exactly."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from fairlead.broker.core import Core
from fairlead.broker.hooking import Lanes, ask_on_redrive, has_enqueue_hook
from fairlead.broker.intents import begin_intent, run_to_end, take_up
from fairlead.broker.locate import locate_all
from fairlead.broker.moves import Moves
from fairlead.broker.queue_state import QueueState
from fairlead.broker.scan import Candidate, named, select, still_selected, take_in_time
from fairlead.decide.arguments import check_bool, check_count, check_filter, check_ids, check_rate
from fairlead.decide.dead_filter import DeadFilter, DeadLetterTest, filter_to_record
from fairlead.decide.holds import in_holds
from fairlead.engine.room import MESSAGE_BYTES
from fairlead.errors import InvalidRequest, NotADeadLetterQueue, ServerStopping, SourceQueueGone
from fairlead.model.facts import InReady, Intent, IntentSaved
from fairlead.model.lane import DEAD_LETTER_LANE, row_place
from fairlead.model.limits import HOLD_MESSAGES, MAX_REDRIVE_COUNT
from fairlead.model.views import RedriveResult


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
    """`name` is a queue or its `.dlq`. With a `rate` (messages a second) it goes on in the background as an
    intent.
    """
    limit = 0 if count is None else check_count(count, "count", most=MAX_REDRIVE_COUNT)
    per_second = check_rate(rate)
    check_bool(dry_run, "dry_run")
    check_bool(clear_progress, "clear_progress")
    if ids is not None and per_second:
        raise InvalidRequest("rate", "None when ids are given: those go at once", rate)
    test = DeadLetterTest(check_filter(filter), now_ms=core.now_ms())
    if ids is not None:
        return _redrive_ids(core, name, ids, test, limit, dry_run, clear_progress)
    with core.lock:
        if not dry_run:
            core.store.check_room(MESSAGE_BYTES)
        intent = begin_intent(
            core,
            "redrive",
            _dead_letters_of(core, name).queue_id,
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
    if dry_run:
        return RedriveResult(_count_selected(core, intent, test), 0)
    if per_second:
        core.confirm(commit)
        return RedriveResult(_count_selected(core, intent, test), 0, intent.intent_id)
    step = run_to_end(core, intent)
    return RedriveResult(step.intent.done, step.intent.done, None if step.ended else intent.intent_id)


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
    name: str,
    ids: Sequence[str],
    test: DeadLetterTest,
    limit: int,
    dry_run: bool,
    clear_progress: bool,
) -> RedriveResult:
    """The longest dead first, whatever the order of the ids. What is not ready in this queue (leased, gone,
    elsewhere) is passed over.

    In commits of one hold of the lock each.
    """
    given = check_ids(ids, "; use a filter for more")
    with core.lock:
        queue_id, commit = _dead_letters_of(core, name).queue_id, core.store.last_commit
    selected = select(
        core, test, sorted(_spots(core, queue_id, list(given)), key=lambda spot: row_place(spot.row))
    )
    chosen = islice(selected, limit) if limit else selected
    if dry_run:
        return RedriveResult(sum(1 for _ in chosen), 0)
    moved = 0
    try:
        for part in in_holds(chosen):
            lanes = _ask_hook(core, queue_id, part)
            while part:
                with core.step():
                    taken, now_moved = _redrive_part(core, name, part, clear_progress, lanes)
                    commit = core.store.last_commit
                moved += now_moved
                part = part[taken:]
    except ServerStopping:
        # What was moved must be told; who asks again goes on with the rest.
        if not moved:
            raise
    core.confirm(commit)
    return RedriveResult(moved, moved)


def _spots(core: Core, queue_id: int, ids: Sequence[bytes]) -> list[InReady]:
    """Where those of the ids are that are ready in this queue."""
    found: list[InReady] = []
    for part in in_holds(named(core, ids)):
        with core.step():
            core.check_scan()
            located = locate_all(core, [candidate.id for candidate in part])
        spots = [one.spot for one in located if one is not None]
        found += [spot for spot in spots if isinstance(spot, InReady) and spot.queue_id == queue_id]
    return found


def _ask_hook(core: Core, queue_id: int, part: Sequence[Candidate]) -> Lanes | None:
    """Without the lock: a redrive goes through the enqueue flow of the source, hook included. None: it has no
    hook.
    """
    with core.step():
        core.check_open()
        dead_letters = core.by_id.get(queue_id)
        source = core.by_id.get(dead_letters.record.source_id) if dead_letters is not None else None
        if source is None or not has_enqueue_hook(source):
            return None
        messages = [
            message for message in core.messages([candidate.id for candidate in part]) if message is not None
        ]
    return ask_on_redrive(core, source.queue_id, source.name, messages)


def _redrive_part(
    core: Core, name: str, part: Sequence[Candidate], clear_progress: bool, lanes: Lanes | None
) -> tuple[int, int]:
    """Under the lock: those that are still where and what they were when they were chosen. Returns how many
    candidates the hold came to, and how many it moved.
    """
    dead_letters = _dead_letters_of(core, name)
    source = core.by_id[dead_letters.record.source_id]
    moves, taken, moved = Moves(core, core.now_ms(), grows=True), 0, 0
    for candidate, one in take_in_time(core, part):
        taken += 1
        if (
            one is None
            or one.state is None
            or not isinstance(one.spot, InReady)
            or one.spot.queue_id != dead_letters.queue_id
        ):
            continue
        if still_selected(candidate, one.state):
            lane, weight = (lanes or {}).get(candidate.id, (b"", 0))
            moves.redrive(
                one.spot,
                one.state,
                one.message,
                source,
                clear_progress=clear_progress,
                lane=lane,
                weight=weight,
            )
            moved += 1
    moves.commit()
    return taken, moved


def _count_selected(core: Core, intent: Intent, test: DeadLetterTest) -> int:
    """Exact; what is leased just now does not count."""
    count, place = 0, 0
    while True:
        with core.step():
            core.check_scan()
            rows = core.store.rows_after(intent.queue_id, DEAD_LETTER_LANE, place, HOLD_MESSAGES)
        spots = [
            InReady(intent.queue_id, DEAD_LETTER_LANE, row) for row in rows if row_place(row) <= intent.cutoff
        ]
        for _ in select(core, test, spots):
            count += 1
            if count == intent.limit:
                return count
        if len(spots) < HOLD_MESSAGES:
            return count
        place = row_place(rows[-1])
