"""Long operations: one durable intent, bounded steps, each step one commit that also says how far it has
come.

A purge, a delete or a redrive of millions of messages holds the lock for a step at a time. Which dead letters
a redrive moves is worked out without the lock, before each step. The selection is frozen when it begins
(`cutoff`, `marker`). A crash between two steps leaves the intent, and the next open goes on with it; an
operation that is done in its first step never needs to be stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Literal, NamedTuple

import msgspec

from fairlead.broker.core import Core
from fairlead.broker.hooking import Lanes, ask_on_redrive, has_enqueue_hook
from fairlead.broker.locate import locate
from fairlead.broker.moves import Moves
from fairlead.broker.queue_state import QueueState
from fairlead.broker.room import step_of
from fairlead.broker.scan import TAKE_AT_ONCE, Candidate, HoldTime, still_selected, tested
from fairlead.decide.dead_filter import DeadLetterTest, filter_from_record
from fairlead.errors import InvalidRequest, ServerStopping, SourceQueueGone
from fairlead.model.facts import (
    InDone,
    InLease,
    InReady,
    Intent,
    IntentEnded,
    IntentSaved,
    InWaiting,
    QueueCleared,
)
from fairlead.model.lane import DEAD_LETTER_LANE, ROW_BYTES, first_place, row_id, row_place
from fairlead.model.limits import HOLD_BYTES, HOLD_MESSAGES, MAX_ERROR_BYTES
from fairlead.model.message import HELD
from fairlead.model.stream import StreamRow

#: What one turn of the timer may spend on regular expressions, in instructions of RE2: about 10 ms, at most
#: 200 ms.
_BACKGROUND_WORK = 2_000_000


def begin_intent(
    core: Core, kind: Literal["purge", "delete", "redrive"], queue_id: int, **fields: object
) -> Intent:
    """Freeze the selection. Nothing is stored yet."""
    now_ms = core.now_ms()
    commit = core.store.last_commit
    # Two may begin before either is stored, so an id is used up when it is given out.
    core.last_intent_id = max(core.last_intent_id, commit, *core.intents) + 1
    intent = Intent(
        intent_id=core.last_intent_id,
        kind=kind,
        queue_id=queue_id,
        created_ms=now_ms,
        cutoff=first_place(commit + 1) - 1,
        marker=core.ids.next(now_ms, 1)[0],
    )
    return msgspec.structs.replace(intent, **fields)


def run_to_end(core: Core, intent: Intent) -> Step:
    """Without the lock: all steps, one after the other.

    Should a step fail (a full disk), the error goes to the caller and the timer goes on with what was begun.
    A server that stops ends a redrive between two steps: it goes on when the broker is opened again.
    """
    cursor, commit = Cursor(), core.store.last_commit
    core.foreground.add(intent.intent_id)
    try:
        while True:
            try:
                chosen = choose(core, intent)
            except ServerStopping:
                if not intent.done:
                    raise
                core.confirm(commit)
                return Step(intent, ended=False)
            with core.step():
                core.check_open()
                after = run_intent_step(core, intent, cursor, chosen)
                commit = core.store.last_commit
            intent = after.intent
            if after.ended:
                core.confirm(commit)
                return after
    finally:
        core.foreground.discard(intent.intent_id)


class Chosen(NamedTuple):
    """What was decided about the next dead letters of a redrive without the lock.

    `tested` has each that was looked at, with None for those that the filter passes over. The step ends at
    the first dead letter that is not among them. `lanes` is what the source's `on_enqueue` hook said about
    the others; None: it has no hook.
    """

    tested: dict[bytes, Candidate | None]
    lanes: Lanes | None


def choose(core: Core, intent: Intent, most: int = HOLD_MESSAGES, work: int | None = None) -> Chosen | None:
    """Without the lock: which dead letters the next step of a redrive moves; None for other intents.

    `work` bounds the search by regular expressions, in instructions of RE2; at least one message is looked
    at.
    """
    if intent.kind != "redrive":
        return None
    with core.step():
        core.check_scan()
        # It was let in when it began, and goes on below the reserve too: its messages only change places.
        most = step_of(core, most)
        rows = core.store.rows_after(intent.queue_id, DEAD_LETTER_LANE, intent.cursor, HOLD_MESSAGES)
    test = DeadLetterTest(filter_from_record(intent.filter), now_ms=intent.created_ms)
    left = min(most, intent.limit - intent.done) if intent.limit else most
    spots = [
        InReady(intent.queue_id, DEAD_LETTER_LANE, row) for row in rows if row_place(row) <= intent.cutoff
    ]
    found: dict[bytes, Candidate | None] = {}
    size = done = 0
    for spot, candidate in tested(core, test, spots):
        found[row_id(spot.row)] = candidate
        if candidate is not None:
            left, size = left - 1, size + candidate.size
        done += test.cost * MAX_ERROR_BYTES
        if left <= 0 or size >= HOLD_BYTES or (work is not None and done >= work):
            break
    return Chosen(
        found,
        _ask_hook(core, intent, [candidate.id for candidate in found.values() if candidate is not None]),
    )


def _ask_hook(core: Core, intent: Intent, ids: Sequence[bytes]) -> Lanes | None:
    with core.step():
        source = _source(core, intent)
        if source is None or not has_enqueue_hook(source):
            return None
        messages = [message for message in core.messages(ids) if message is not None]
    return ask_on_redrive(core, source.queue_id, source.name, messages)


def _source(core: Core, intent: Intent) -> QueueState | None:
    """The queue that a redrive brings dead letters back to."""
    dead_letters = core.by_id.get(intent.queue_id)
    return core.by_id.get(dead_letters.record.source_id) if dead_letters else None


def choose_for_background_steps(core: Core) -> dict[int, Chosen]:
    """For every redrive that may go on now, as far as it may. The timer has other work too, so a turn of it
    is bounded.
    """
    with core.lock:
        if core.waits_over:
            return {}
        now_ms = core.clock.monotonic_ms()
        waiting = [
            intent
            for intent in core.intents.values()
            if intent.kind == "redrive" and intent.intent_id not in core.foreground
        ]
        allowed = [(intent, take_up(core, intent).allowed(intent, now_ms)) for intent in waiting]
    found = [
        (intent.intent_id, choose(core, intent, most, _BACKGROUND_WORK))
        for intent, most in allowed
        if most > 0
    ]
    return {intent_id: chosen for intent_id, chosen in found if chosen is not None}


def run_background_step(core: Core, chosen: dict[int, Chosen]) -> bool:
    """A step of an operation that nobody waits for: it was found at open, or goes at a rate. False when none
    can go on.
    """
    for intent in list(core.intents.values()):
        if intent.intent_id in core.foreground:
            continue
        pace = take_up(core, intent)
        if pace.allowed(intent, core.clock.monotonic_ms()) > 0:
            if intent.kind == "redrive" and intent.intent_id not in chosen:
                # It came up since the others were chosen for: its turn is the next one, unless the server
                # stops.
                return not core.waits_over
            run_intent_step(core, intent, pace.cursor, chosen.get(intent.intent_id))
            return True
    return False


def take_up(core: Core, intent: Intent) -> Pace:
    """An intent without a caller: from now on the timer runs its steps."""
    pace = core.paces.get(intent.intent_id)
    if pace is None:
        pace = core.paces[intent.intent_id] = Pace(core.clock.monotonic_ms(), intent.done)
    return pace


def next_background_ms(core: Core) -> int | None:
    """When the next step in the background may go, in steady time. No redrive goes on while the server stops."""
    under_way = [
        (intent, pace)
        for intent_id, pace in core.paces.items()
        if (intent := core.intents.get(intent_id)) is not None
    ]
    times = [
        pace.next_ms(intent) for intent, pace in under_way if intent.kind != "redrive" or not core.waits_over
    ]
    return min(times, default=None)


def cancel_intent(core: Core, intent_id: int) -> bool:
    """Stop a redrive where it is; what was moved stays moved. A purge or delete cannot be stopped halfway."""
    if isinstance(intent_id, bool) or not isinstance(intent_id, int):
        raise InvalidRequest("intent_id", "the number of an intent", intent_id)
    with core.lock:
        core.check_open()
        intent = core.intents.get(intent_id)
        if intent is None or intent.kind != "redrive":
            return False
        _end(core, intent, Moves(core, core.now_ms()))
        commit = core.store.last_commit
    core.confirm(commit)
    return True


class Cursor:
    """Where the next step of this process goes on, so that it does not walk over what the last one removed.

    Not stored: after a crash the first step begins at the beginning, and finds only what is left.
    """

    def __init__(self) -> None:
        self.ready: dict[int, InReady] = {}
        self.waiting: dict[int, InWaiting] = {}
        self.done: dict[int, InDone] = {}
        self.stream: dict[int, str] = {}
        #: How far the last step came within a stream, which may have ended with it.
        self.seq: dict[tuple[int, str], int] = {}


class Pace:
    """How fast an operation may go, counted from when this process took it up: no burst after a long stop."""

    def __init__(self, since_ms: int, done: int) -> None:
        self.cursor = Cursor()
        self._since_ms = since_ms
        self._done = done

    def allowed(self, intent: Intent, now_ms: int) -> int:
        if not intent.rate:
            return HOLD_MESSAGES
        return int(intent.rate * (now_ms - self._since_ms) / 1000) + 1 - (intent.done - self._done)

    def next_ms(self, intent: Intent) -> int:
        if not intent.rate:
            return self._since_ms
        return self._since_ms + ceil((intent.done - self._done) * 1000 / intent.rate)


class Step(msgspec.Struct, frozen=True):
    intent: Intent
    ended: bool


def run_intent_step(core: Core, intent: Intent, cursor: Cursor, chosen: Chosen | None) -> Step:
    """One commit, under the lock: looks at HOLD_MESSAGES messages at most. A redrive moves those that were
    chosen for it.
    """
    limit = HOLD_MESSAGES
    moves = Moves(core, core.now_ms(), intent.kind)
    if intent.kind == "redrive":
        intent, ended = _redrive_step(core, intent, moves, chosen)
    elif intent.kind == "purge":
        state = core.by_id.get(intent.queue_id)
        if state is None:
            return Step(intent, ended=_end(core, intent, moves))
        state.purging = True
        intent, ended = _drop_step(core, intent, moves, [intent.queue_id], cursor, limit)
    else:
        intent, ended = _delete_step(core, intent, moves, cursor, limit)
    if ended:
        _end(core, intent, moves)
    elif moves.facts or intent.intent_id in core.intents:
        moves.facts.append(IntentSaved(intent))
        moves.commit()
        core.intents[intent.intent_id] = intent
    # An intent that has changed nothing yet need not survive: its caller is told that nothing was done.
    return Step(intent, ended)


def _end(core: Core, intent: Intent, moves: Moves) -> bool:
    if intent.intent_id in core.intents:
        moves.facts.append(IntentEnded(intent.intent_id))
    moves.commit()
    core.intents.pop(intent.intent_id, None)
    core.paces.pop(intent.intent_id, None)
    state = core.by_id.get(intent.queue_id)
    if intent.kind == "purge" and state is not None:
        state.purging = False
        core.reload_queue(state)
        state.wake_all()
    return True


def _drop_step(
    core: Core, intent: Intent, moves: Moves, queue_ids: Sequence[int], cursor: Cursor, limit: int
) -> tuple[Intent, bool]:
    """Ready and waiting messages of these queues, as many as the step allows. Streams go whole, one after the
    other.

    What is done goes with its queue only: a purge is about work that is not.
    """
    looked_at = dropped = 0
    for queue_id in queue_ids:
        while looked_at < limit and (
            streams := core.store.streams_after(queue_id, cursor.stream.get(queue_id, ""), 100)
        ):
            for name, record in streams:
                if looked_at >= limit:
                    break
                after = cursor.seq.get((queue_id, name), record.first.seq)
                members = [record.first, *core.store.stream_rows(queue_id, name, after, limit - looked_at)]
                looked_at += len(members)
                dropped += _drop_members(core, intent, moves, members)
                if looked_at >= limit:
                    cursor.seq = {(queue_id, name): members[-1].seq}
                else:
                    cursor.stream[queue_id] = name
        if looked_at < limit:
            ready = core.store.ready(queue_id, b"", cursor.ready.get(queue_id), limit - looked_at)
            looked_at += len(ready)
            if ready:
                cursor.ready[queue_id] = ready[-1]
            for spot in ready:
                if len(spot.row) > ROW_BYTES:
                    continue
                if intent.kind == "delete" or row_place(spot.row) <= intent.cutoff:
                    moves.drop(spot)
                    dropped += 1
        if looked_at < limit:
            waiting = core.store.waiting(queue_id, cursor.waiting.get(queue_id), limit - looked_at)
            looked_at += len(waiting)
            if waiting:
                cursor.waiting[queue_id] = waiting[-1]
            for late in waiting:
                if len(late.row) > ROW_BYTES:
                    continue
                if intent.kind == "delete" or row_id(late.row) < intent.marker:
                    moves.drop(late)
                    dropped += 1
        if looked_at < limit and intent.kind == "delete":
            done = core.store.done(queue_id, cursor.done.get(queue_id), HELD, limit - looked_at)
            looked_at += len(done)
            if done:
                cursor.done[queue_id] = done[-1]
            for finished in done:
                moves.drop(finished)
                dropped += 1
    return msgspec.structs.replace(intent, done=intent.done + dropped), looked_at < limit


def _drop_members(core: Core, intent: Intent, moves: Moves, members: list[StreamRow]) -> int:
    dropped = 0
    for member in members:
        if core.leases.find(member.id) is None and (intent.kind == "delete" or member.id < intent.marker):
            spot = locate(core, member.id)
            if spot is not None:
                moves.drop(spot)
                dropped += 1
    return dropped


def _delete_step(core: Core, intent: Intent, moves: Moves, cursor: Cursor, limit: int) -> tuple[Intent, bool]:
    # The dead-letter queue was made in the same commit, with the next id.
    queue_ids = [intent.queue_id, intent.queue_id + 1]
    intent, emptied = _drop_step(core, intent, moves, queue_ids, cursor, limit)
    if not emptied:
        return intent, False
    leases = [lease for queue_id in queue_ids for lease in core.leases.of_queue(queue_id)]
    for lease in leases[:limit]:
        moves.drop(InLease(lease))
    intent = msgspec.structs.replace(intent, done=intent.done + min(len(leases), limit))
    if len(leases) > limit:
        return intent, False
    moves.facts.extend(QueueCleared(queue_id) for queue_id in queue_ids)
    return intent, True


def _redrive_step(core: Core, intent: Intent, moves: Moves, chosen: Chosen | None) -> tuple[Intent, bool]:
    """The longest dead first. Leased dead letters are passed over, and those that changed since they were
    chosen.
    """
    dead_letters = core.by_id.get(intent.queue_id)
    if dead_letters is None:
        return intent, True
    source = core.by_id.get(dead_letters.record.source_id)
    if source is None:
        raise SourceQueueGone(dead_letters.name)
    if chosen is None or (chosen.lanes is None and has_enqueue_hook(source)):
        return intent, False
    time = HoldTime(core)
    rows, reached_end = _tested_rows(core, intent, chosen)
    done, taken = intent.done, 0
    while taken < len(rows) and not (taken and time.is_over):
        some = rows[taken : taken + TAKE_AT_ONCE]
        done += _redrive_rows(core, intent, moves, chosen, some, source)
        taken += len(some)
    cursor = row_place(rows[taken - 1]) if taken else intent.cursor
    all_taken = reached_end and taken == len(rows)
    reached = intent.limit != 0 and done >= intent.limit
    return msgspec.structs.replace(intent, done=done, cursor=cursor), all_taken or reached


def _redrive_rows(
    core: Core, intent: Intent, moves: Moves, chosen: Chosen, rows: Sequence[bytes], source: QueueState
) -> int:
    """Move those that were selected and are unchanged. Returns how many."""
    selected = [(row, candidate) for row in rows if (candidate := chosen.tested[row_id(row)]) is not None]
    ids = [candidate.id for _, candidate in selected]
    moved = 0
    for (row, candidate), message, state in zip(
        selected, core.messages(ids), core.store.states(ids), strict=True
    ):
        if message is None or state is None or not still_selected(candidate, state):
            continue
        lane, weight = (chosen.lanes or {}).get(message.id, (b"", 0))
        spot = InReady(intent.queue_id, DEAD_LETTER_LANE, row)
        moves.redrive(
            spot, state, message, source, clear_progress=intent.clear_progress, lane=lane, weight=weight
        )
        moved += 1
    return moved


def _tested_rows(core: Core, intent: Intent, chosen: Chosen) -> tuple[list[bytes], bool]:
    """The next rows as they are now, up to the first that was not tested, and whether there are no others."""
    rows: list[bytes] = []
    stored = core.store.rows_after(intent.queue_id, DEAD_LETTER_LANE, intent.cursor, HOLD_MESSAGES)
    for row in stored:
        if row_place(row) > intent.cutoff:
            return rows, True
        if row_id(row) not in chosen.tested:
            return rows, False
        rows.append(row)
    return rows, len(stored) < HOLD_MESSAGES
