"""Explanations of why something is not delivered, with evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairlead.engine.blocked_streams import HeldUp, find_blocker, held_up_streams
from fairlead.engine.closed_throttles import find_closure
from fairlead.engine.find_ids import find_raw_id
from fairlead.engine.met import STEP_MESSAGES, Met, bounded, meet_ids, step
from fairlead.engine.operations import is_purged
from fairlead.engine.queue import Queue
from fairlead.engine.transaction import StepsTable, Transaction
from fairlead.engine.walk import is_behind_front, walk
from fairlead.errors import MessageNotFound
from fairlead.model.durations import show_ms, show_time
from fairlead.model.failure import FailureReason, show_times
from fairlead.model.ids import show_id
from fairlead.model.limits import COUNT_LIMIT
from fairlead.model.message import HELD
from fairlead.model.views import Explanation, Reason
from fairlead.model.wording import counted, keys_taking_turns
from fairlead.records.lease import LeaseTerms
from fairlead.request import Caller
from fairlead.verbs.inspect import Explain, ExplainQueue

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

#: Throttle keys and streams that the explanation of a queue lists.
_LISTED_THROTTLES = 5
_LISTED_STREAMS = 5
#: These reasons say only that others come first.
_TURNS = ("behind_in_lane", "behind_in_ring")


def explain(engine: Engine, request: Explain, caller: Caller) -> Explanation:
    raw_id = find_raw_id(engine, request.message_id, request.queue)
    ahead = _count_ahead(engine, raw_id)
    with step(engine) as tx:
        met = meet_ids(tx, [raw_id]).get(raw_id)
        if met is None:
            raise MessageNotFound(request.message_id)
        subject, queue = f"message {show_id(raw_id)}", tx.memory.by_id[met.state.queue_id]
        if met.terms is not None:
            return _leased(engine, tx, subject, met, met.terms)
        if met.where == "waiting":
            return _waiting(engine, tx, subject, met)
        if met.where == "done":
            return _done(engine, subject, met, queue)
        if queue.is_dead_letter_queue:
            return _dead(engine, subject, met, queue)
        return _ready(engine, tx, subject, met, ahead)


def _count_ahead(engine: Engine, raw_id: bytes) -> int:
    """How many ready messages of its lane are ahead of it, counted in steps to just past COUNT_LIMIT."""
    with step(engine) as tx:
        met = meet_ids(tx, [raw_id]).get(raw_id)
        is_in_lane = met is not None and met.where == "ready" and not is_behind_front(tx, met)
    if met is None or not is_in_lane or met.state.source_queue_id:
        return 0
    place, count = 0, 0
    while count <= COUNT_LIMIT:
        with step(engine) as tx:
            queue = tx.memory.by_id.get(met.state.queue_id)
            if queue is None:
                break
            found = tx.lane_after(queue, met.lane, place, STEP_MESSAGES)
            places = [tx.memory.place_of(number) for number in found]
        count += sum(place < met.state.place for place in places)
        if len(places) < STEP_MESSAGES or places[-1] >= met.state.place:
            break
        place = places[-1]
    return count


def _leased(engine: Engine, tx: Transaction, subject: str, met: Met, terms: LeaseTerms) -> Explanation:
    consumers = tx.memory.consumers
    expires_ms = engine.time.by_wall(consumers.lease_until(terms))
    in_claim = consumers.why_in_claim(terms)
    if in_claim:
        text = f"{in_claim}, and so does its consumer when it is not seen until {show_time(expires_ms)}"
        text += f"; delivery {met.state.deliveries + 1}"
        pinned = Reason("pinned", text, expires_ms)
        return Explanation(subject, "in a numbered claim, until that is closed", (pinned,))
    text = f"leased to {terms.consumer!r} until {show_time(expires_ms)}, delivery {met.state.deliveries + 1}"
    text += "" if terms.started else ", not started"
    return Explanation(subject, "in the hands of a consumer", (Reason("leased", text, expires_ms),))


def _waiting(engine: Engine, tx: Transaction, subject: str, met: Met) -> Explanation:
    state = met.state
    if state.due_ms == HELD:
        given = f" as {FailureReason(state.reason).word}" if state.rule == "operator" else ""
        why = f"held by an operator{given}: it waits until it is let go"
        return Explanation(subject, "held", (Reason("held", why),))
    why = "its producer delayed it"
    if state.rule:
        reason = FailureReason(state.reason).word
        why = f"it failed {show_times(state.attempts)}, last with {reason}; decided by {state.rule}"
    left_ms, due_ms = max(0, state.due_ms - tx.now_ms), engine.time.by_wall(state.due_ms)
    text = f"waiting until {show_time(due_ms)} ({show_ms(left_ms)} from now): {why}"
    reasons = Reason("waiting", text, due_ms), *_queue_reasons(engine, tx, tx.memory.by_id[state.queue_id])
    return Explanation(subject, "waiting for its time", reasons)


def _done(engine: Engine, subject: str, met: Met, queue: Queue) -> Explanation:
    done_ms = engine.time.by_wall(met.state.done_ms)
    until_ms = done_ms + queue.record.config.retain_completed_ms
    text = f"completed at {show_time(done_ms)}; kept to be looked at until {show_time(until_ms)}"
    return Explanation(subject, "completed", (Reason("completed", text, until_ms),))


def _dead(engine: Engine, subject: str, met: Met, queue: Queue) -> Explanation:
    state = met.state
    error = state.failures[-1].error if state.failures else ""
    since, reason = show_time(engine.time.by_wall(state.dead_since_ms)), FailureReason(state.reason).word
    failures = f"{state.attempts} failure{'' if state.attempts == 1 else 's'}"
    text = f"dead since {since} after {failures}, reason {reason}, decided by {state.rule}"
    reasons = Reason("dead", text), Reason("last_error", f"last error: {error}")
    return Explanation(subject, f"a dead letter in {queue.name}; redrive brings it back", reasons)


def _ready(engine: Engine, tx: Transaction, subject: str, met: Met, ahead: int) -> Explanation:
    queue = tx.memory.by_id[met.state.queue_id]
    reasons = _queue_reasons(engine, tx, queue)
    if is_behind_front(tx, met):
        behind = _behind(engine, tx, queue, met.chunk.stream_of(met.number))
        return Explanation(subject, "ready, but not at the front of its stream", (behind, *reasons))
    reasons += _throttle_reasons(engine, tx, queue, met)
    reasons += _turn_reasons(queue, met.lane[0], ahead)
    summary = "ready: it goes out with one of the next claims"
    if any(reason.code not in _TURNS for reason in reasons):
        summary = "ready, but it cannot go out"
    elif reasons:
        summary = "ready: it waits for its turn"
    return Explanation(subject, summary, tuple(reasons))


def _behind(engine: Engine, tx: Transaction, queue: Queue, stream: str) -> Reason:
    """The message that blocks it: the first of its stream, or the one at the front."""
    blocker = find_blocker(engine, tx, queue, stream)
    if blocker is None:
        return Reason("behind_in_stream", f"earlier messages of stream {stream!r} go before it")
    text = f"stream {stream!r} is held up by {show_id(blocker.met.raw_id)}, which is {blocker.why}"
    until_ms = None if blocker.until_ms is None else engine.time.by_wall(blocker.until_ms)
    return Reason("behind_in_stream", text, until_ms)


def _turn_reasons(queue: Queue, key: str, ahead: int) -> list[Reason]:
    reasons = []
    if ahead:
        text = f"ahead of it in its lane (key {key!r}): {counted(ahead, 'message', 'messages')}"
        reasons.append(Reason("behind_in_lane", text))
    keys_ahead = queue.schedule.keys_ahead(key, COUNT_LIMIT + 1)
    if keys_ahead:
        text = f"{counted(keys_ahead, 'key has its', 'keys have their')} turn before {key!r}"
        reasons.append(Reason("behind_in_ring", text))
    limit, unsettled = queue.record.config.max_unsettled_per_key, queue.schedule.unsettled(key)
    if limit and unsettled >= limit:
        held = counted(unsettled, "unsettled message", "unsettled messages")
        reasons.append(Reason("key_limit", f"key {key!r} has {held}, its limit is {limit}"))
    return reasons


def _throttle_reasons(engine: Engine, tx: Transaction, queue: Queue, met: Met) -> list[Reason]:
    """Closed keys, and buckets without a token now; for a parked lane also buckets that are empty only
    because others wait first.
    """
    reasons, parked_on = [], queue.schedule.parked_on(met.lane)
    for throttle_key in met.lane[1:]:
        closed = tx.memory.buckets.closed.get(throttle_key)
        if closed is not None and (not closed.room(tx.now_ms) or parked_on == throttle_key):
            returned = f"; it came back {show_times(met.state.returns)}" if met.state.returns else ""
            reasons.append(_closed(engine, tx, queue, throttle_key, f"throttle {throttle_key!r} ", returned))
        bucket = tx.memory.buckets.get(throttle_key)
        if bucket is None or (bucket.tokens_at(tx.now_ms) >= 1 and parked_on != throttle_key):
            continue
        text = f"throttled on {throttle_key!r} ({bucket.rate:g}/s): "
        reasons.append(_throttled(engine, text, bucket.ready_at(1, tx.now_ms)))
    return reasons


def _closed(
    engine: Engine, tx: Transaction, queue: Queue, throttle_key: str, text: str, more: str = ""
) -> Reason:
    """The reason for a closed key. Other queues may belong to other tenants, so it does not mention them."""
    closure, closed = find_closure(tx.memory, throttle_key), tx.memory.buckets.closed[throttle_key]
    assert closure is not None, f"expected throttle {throttle_key!r} to be closed"
    until_ms = engine.time.by_wall(closure.until_ms)
    error = f": {closure.error}" if closure.error else ""
    if not closure.queue:
        source = f"an operator{error}"
    elif closure.queue.removesuffix(".dlq") == queue.name.removesuffix(".dlq"):
        source = f"consumer {closure.by!r}{error}"
    else:
        source = "a consumer of another queue"
    why = f"closed until {show_time(until_ms)} by {source}"
    if tx.now_ms < closure.until_ms:
        left = show_ms(closure.until_ms - tx.now_ms)
        return Reason("closed", f"{text}is {why} ({left} from now); then one probe goes out{more}", until_ms)
    probes = f"{len(closed.probes)} of {closed.at_once} probes {'is' if closed.at_once == 1 else 'are'} out"
    return Reason("closed", f"{text}opens step by step: {probes}; it was {why}{more}", until_ms)


def _throttled(engine: Engine, text: str, ready_ms: int | None) -> Reason:
    if ready_ms is None:
        return Reason("throttled", text + "its rate is 0")
    when = engine.time.by_wall(ready_ms)
    return Reason("throttled", text + f"next token at {show_time(when)}", when)


def _queue_reasons(engine: Engine, tx: Transaction, queue: Queue) -> list[Reason]:
    reasons = []
    if queue.record.paused:
        reasons.append(Reason("paused", f"queue {queue.name!r} is paused"))
    if is_purged(tx, queue.record.queue_id):
        reasons.append(Reason("purging", f"queue {queue.name!r} is being purged"))
    if not queue.leases and not engine.waiters.of(queue.record.queue_id):
        text = f"no consumer is waiting on queue {queue.name!r} or holds one of its messages"
        reasons.append(Reason("no_consumer", text))
    return reasons


def _hook_reasons(engine: Engine, queue: Queue) -> list[Reason]:
    return [
        Reason(
            "hook_bypassed",
            f"the {hook.function} hook is switched off by its breaker until"
            f" {show_time(hook.breaker_open_until_ms)}: {hook.last_error}",
            hook.breaker_open_until_ms,
        )
        for hook in engine.hooking.hooks.stats(queue.record.queue_id)
        if hook.breaker_open_until_ms is not None
    ]


def _breaker_reasons(engine: Engine, tx: Transaction, queue: Queue) -> list[Reason]:
    """Failures of one reason have accumulated: their retries wait at least this long."""
    breakers = {reason: tx.breakers.get((queue.record.queue_id, reason)) for reason in FailureReason}
    open_until = {
        reason: engine.time.by_wall(breaker.open_until_ms(tx.now_ms))
        for reason, breaker in breakers.items()
        if breaker is not None and breaker.open_until_ms(tx.now_ms)
    }
    return [
        Reason(
            "failure_breaker",
            f"the failure breaker for {reason.word} is open until {show_time(until_ms)}: retries wait for it",
            until_ms,
        )
        for reason, until_ms in open_until.items()
    ]


def explain_queue(engine: Engine, request: ExplainQueue, caller: Caller) -> Explanation:
    with step(engine) as tx:
        queue_id = tx.queue(request.name).record.queue_id
    held_up = held_up_streams(engine, queue_id, leased=True)
    next_due = next(bounded(walk(engine, queue_id, "waiting"), 1), None)
    with step(engine) as tx:
        queue = tx.queue(request.name)
        counts, active_keys = queue.counts, queue.schedule.active_keys
        reasons = _queue_reasons(engine, tx, queue)
        if not counts.ready:
            text = f"no message is ready: {counts.leased} leased, {counts.waiting} waiting"
            reasons.append(Reason("no_ready_messages", text))
        reasons += [*_hook_reasons(engine, queue), *_breaker_reasons(engine, tx, queue)]
        if next_due is not None and next_due.state.due_ms < HELD:
            due_ms = engine.time.by_wall(next_due.state.due_ms)
            text = f"the next waiting message is due at {show_time(due_ms)}"
            reasons.append(Reason("next_due", text, due_ms))
        if counts.ready and not active_keys and not queue.record.paused:
            reasons += _parked_reasons(engine, tx, queue)
        reasons += _stream_reasons(engine, held_up)
        summary = f"{counts.ready} ready, {keys_taking_turns(active_keys)}"
        if queue.record.paused or not counts.ready or not active_keys:
            summary = "nothing can be handed out now"
        return Explanation(f"queue {request.name}", summary, tuple(reasons))


def _stream_reasons(engine: Engine, held_up: Sequence[HeldUp]) -> list[Reason]:
    """The streams that have been blocked longest, those behind a leased message last; `failure_metrics` lists
    all that wait for a message that is not leased.
    """
    reasons = []
    for stream, why, is_leased in held_up[:_LISTED_STREAMS]:
        text = f"stream {stream.stream!r} is held up by {stream.blocker}, which is {why}; {stream.behind} behind it"
        until_ms = None if stream.until is None else engine.time.by_wall(stream.until)
        reasons.append(Reason("leased_stream" if is_leased else "blocked_stream", text, until_ms))
    unlisted = held_up[_LISTED_STREAMS:]
    leased_count = sum(one.leased for one in unlisted)
    if blocked_count := len(unlisted) - leased_count:
        text = f"{counted(blocked_count, 'more stream is', 'more streams are')} held up"
        reasons.append(Reason("blocked_streams", text))
    if leased_count:
        text = f"{counted(leased_count, 'more stream is', 'more streams are')} behind a leased message"
        reasons.append(Reason("leased_streams", text))
    return reasons


def _parked_reasons(engine: Engine, tx: Transaction, queue: Queue) -> list[Reason]:
    reasons = []
    for throttle_key, lanes in queue.schedule.parked(_LISTED_THROTTLES):
        if throttle_key in tx.memory.buckets.closed:
            text = f"{counted(lanes, 'lane waits', 'lanes wait')} for throttle {throttle_key!r}, which "
            reasons.append(_closed(engine, tx, queue, throttle_key, text))
            continue
        bucket = tx.memory.buckets.get(throttle_key)
        ready_ms = tx.now_ms if bucket is None else bucket.ready_at(1, tx.now_ms)
        text = f"{counted(lanes, 'lane is', 'lanes are')} throttled on {throttle_key!r}, "
        reasons.append(_throttled(engine, text, ready_ms))
    return reasons


WORK_IN_STEPS: StepsTable = {
    Explain: explain,
    ExplainQueue: explain_queue,
}
