"""Long operations: one durable intent, bounded steps, each step one commit that also says how far it has come.

A purge, a delete or a redrive of millions of messages holds the lock for a step at a time. The selection is frozen when
it begins (`cutoff`, `marker`). A crash between two steps leaves the intent, and the next open goes on with it; an
operation that is done in its first step never needs to be stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Literal

import msgspec

from fairlead.broker.core import Core
from fairlead.broker.hooking import Lanes, ask_on_redrive, has_enqueue_hook
from fairlead.broker.locate import locate
from fairlead.broker.moves import Moves
from fairlead.broker.queue_state import QueueState
from fairlead.decide.dead_filter import DeadLetterTest, filter_from_record
from fairlead.errors import InvalidRequest, SourceQueueGone
from fairlead.model.facts import InDone, InLease, InReady, Intent, IntentEnded, IntentSaved, InWaiting, QueueCleared
from fairlead.model.lane import DEAD_LETTER_LANE, ROW_BYTES, first_place, row_id, row_place
from fairlead.model.limits import STEP_MESSAGES
from fairlead.model.message import HELD, Message
from fairlead.model.stream import StreamRow

_HOOKED_STEP = 1000


def begin_intent(core: Core, kind: Literal["purge", "delete", "redrive"], queue_id: int, **fields: object) -> Intent:
    """Freeze the selection. Nothing is stored yet."""
    now_ms = core.clock.now_ms()
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


def run_to_end(core: Core, intent: Intent) -> int:
    """Without the lock: all steps, one after the other; returns how many messages were touched in all.

    Should a step fail (a full disk), the error goes to the caller and the timer goes on with what was begun.
    """
    cursor = Cursor()
    core.foreground.add(intent.intent_id)
    try:
        while True:
            lanes = ask_before_step(core, intent)
            with core.lock:
                core.check_open()
                after = run_intent_step(core, intent, cursor, STEP_MESSAGES, lanes=lanes)
                commit = core.store.last_commit
            if after.ended:
                core.confirm(commit)
                return after.intent.done
            intent = after.intent
    finally:
        core.foreground.discard(intent.intent_id)


def ask_before_step(core: Core, intent: Intent, most: int = STEP_MESSAGES) -> Lanes | None:
    """Without the lock: what the source's `on_enqueue` hook says about the dead letters of the next step; None: not asked.

    Those that the redrive passes over are there without an answer; the step ends at the first that is not there.
    """
    with core.lock:
        source = _hooked_source(core, intent)
        if source is None:
            return None
        rows = core.store.rows_after(intent.queue_id, DEAD_LETTER_LANE, intent.cursor, _HOOKED_STEP)
        ids = [row_id(row) for row in rows if row_place(row) <= intent.cutoff]
        test = DeadLetterTest(filter_from_record(intent.filter), now_ms=intent.created_ms)
        left = min(most, intent.limit - intent.done) if intent.limit else most
        lanes: Lanes = {}
        asked: list[Message] = []
        for message_id, message, state in zip(ids, core.messages(ids), core.store.states(ids), strict=True):
            if len(asked) >= left:
                break
            lanes[message_id] = b"", 0
            if message is not None and state is not None and test.selects(message, state):
                asked.append(message)
    return lanes | ask_on_redrive(core, source.queue_id, source.name, asked)


def _hooked_source(core: Core, intent: Intent) -> QueueState | None:
    """The queue whose `on_enqueue` hook a redrive has to ask, if it has one."""
    dead_letters = core.by_id.get(intent.queue_id) if intent.kind == "redrive" else None
    source = core.by_id.get(dead_letters.record.source_id) if dead_letters else None
    return source if source is not None and has_enqueue_hook(source) else None


def ask_before_background_steps(core: Core) -> dict[int, Lanes]:
    """For every redrive that may go on now, as far as it may."""
    with core.lock:
        now_ms = core.clock.monotonic_ms()
        waiting = [intent for intent in core.intents.values() if intent.kind == "redrive" and intent.intent_id not in core.foreground]
        allowed = [(intent, take_up(core, intent).allowed(intent, now_ms)) for intent in waiting]
    return {intent.intent_id: lanes for intent, most in allowed if most > 0 and (lanes := ask_before_step(core, intent, most)) is not None}


def run_background_step(core: Core, lanes: dict[int, Lanes]) -> bool:
    """A step of an operation that nobody waits for: it was found at open, or goes at a rate. False when none can go on."""
    for intent in list(core.intents.values()):
        if intent.intent_id in core.foreground:
            continue
        pace = take_up(core, intent)
        allowed = pace.allowed(intent, core.clock.monotonic_ms())
        if allowed > 0:
            if intent.intent_id not in lanes and _hooked_source(core, intent) is not None:
                # It came up since the hooks were asked: they are asked about it in the next round.
                return True
            run_intent_step(core, intent, pace.cursor, STEP_MESSAGES, allowed, lanes.get(intent.intent_id))
            return True
    return False


def take_up(core: Core, intent: Intent) -> Pace:
    """An intent without a caller: from now on the timer runs its steps."""
    pace = core.paces.get(intent.intent_id)
    if pace is None:
        pace = core.paces[intent.intent_id] = Pace(core.clock.monotonic_ms(), intent.done)
    return pace


def next_background_ms(core: Core) -> int | None:
    """When the next rated step may go (monotonic)."""
    times = [pace.next_ms(core.intents[intent_id]) for intent_id, pace in core.paces.items() if intent_id in core.intents]
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
        _end(core, intent, Moves(core, core.clock.now_ms()))
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
            return STEP_MESSAGES
        return int(intent.rate * (now_ms - self._since_ms) / 1000) + 1 - (intent.done - self._done)

    def next_ms(self, intent: Intent) -> int:
        if not intent.rate:
            return self._since_ms
        return self._since_ms + ceil((intent.done - self._done) * 1000 / intent.rate)


class Step(msgspec.Struct, frozen=True):
    intent: Intent
    ended: bool


def run_intent_step(core: Core, intent: Intent, cursor: Cursor, limit: int, most: int = STEP_MESSAGES, lanes: Lanes | None = None) -> Step:
    """One commit, under the lock: looks at up to `limit` messages and moves at most `most` of them."""
    moves = Moves(core, core.clock.now_ms(), intent.kind)
    if intent.kind == "redrive":
        intent, ended = _redrive_step(core, intent, moves, limit, most, lanes)
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
    else:
        moves.facts.append(IntentSaved(intent))
        moves.commit()
        core.intents[intent.intent_id] = intent
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


def _drop_step(core: Core, intent: Intent, moves: Moves, queue_ids: Sequence[int], cursor: Cursor, limit: int) -> tuple[Intent, bool]:
    """Ready and waiting messages of these queues, as many as the step allows. Streams go whole, one after the other.

    What is done goes with its queue only: a purge is about work that is not.
    """
    looked_at = dropped = 0
    for queue_id in queue_ids:
        while looked_at < limit and (streams := core.store.streams_after(queue_id, cursor.stream.get(queue_id, ""), 100)):
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


def _redrive_step(core: Core, intent: Intent, moves: Moves, limit: int, most: int, lanes: Lanes | None) -> tuple[Intent, bool]:
    """The longest dead first. Leased dead letters are passed over."""
    dead_letters = core.by_id.get(intent.queue_id)
    if dead_letters is None:
        return intent, True
    source = core.by_id.get(dead_letters.record.source_id)
    if source is None:
        raise SourceQueueGone(dead_letters.name)
    test = DeadLetterTest(filter_from_record(intent.filter), now_ms=intent.created_ms)
    left = min(most, intent.limit - intent.done) if intent.limit else most
    rows = core.store.rows_after(dead_letters.queue_id, DEAD_LETTER_LANE, intent.cursor, limit)
    ids = [row_id(row) for row in rows]
    done, cursor, ended = intent.done, intent.cursor, len(rows) < limit
    for row, message, state in zip(rows, core.messages(ids), core.store.states(ids), strict=True):
        if row_place(row) > intent.cutoff:
            ended = True
            break
        if left <= 0 or (lanes is not None and row_id(row) not in lanes):
            ended = False
            break
        cursor = row_place(row)
        if message is not None and state is not None and test.selects(message, state):
            lane, weight = lanes[message.id] if lanes is not None else (b"", 0)
            spot = InReady(dead_letters.queue_id, DEAD_LETTER_LANE, row)
            moves.redrive(spot, state, message, source, clear_progress=intent.clear_progress, lane=lane, weight=weight)
            done, left = done + 1, left - 1
    reached = intent.limit != 0 and done >= intent.limit
    return msgspec.structs.replace(intent, done=done, cursor=cursor), ended or reached
