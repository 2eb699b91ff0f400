"""Why is this not being delivered? One answer, with evidence."""

from __future__ import annotations

from fairlead.broker.blocked_streams import HeldUp, find_blocker, held_up_streams
from fairlead.broker.core import Core
from fairlead.broker.locate import locate
from fairlead.broker.looking import find_raw_id
from fairlead.broker.queue_state import QueueState
from fairlead.decide.lanes import Lane
from fairlead.errors import MessageNotFound
from fairlead.model.durations import show_ms, show_time
from fairlead.model.facts import InDone, InReady, InStream, InWaiting
from fairlead.model.failure import FailureReason, show_times
from fairlead.model.ids import show_id
from fairlead.model.lane import lane_key, lane_throttle_keys, row_place, row_stream
from fairlead.model.lease import Lease
from fairlead.model.limits import COUNT_LIMIT, HOLD_MESSAGES
from fairlead.model.message import HELD
from fairlead.model.views import Explanation, Reason
from fairlead.model.wording import counted, keys_taking_turns

_LISTED_STREAMS = 5


def explain_message(core: Core, text: str, queue_name: str | None = None) -> Explanation:
    raw_id = find_raw_id(core, text, queue_name)
    ahead = _count_ahead(core, raw_id)
    with core.lock:
        core.check_open()
        subject = f"message {show_id(raw_id)}"
        lease = core.leases.find(raw_id)
        if lease is not None:
            return _leased(core, subject, lease)
        spot = locate(core, raw_id)
        queue = core.by_id.get(spot.queue_id) if spot is not None else None
        if spot is None or queue is None:
            raise MessageNotFound(text)
        if isinstance(spot, InWaiting):
            return _waiting(core, subject, queue, spot, raw_id)
        if isinstance(spot, InDone):
            return _done(core, subject, queue, spot)
        if queue.is_dead_letter_queue:
            return _dead(core, subject, queue, raw_id)
        return _ready(core, subject, queue, spot, ahead)


def _count_ahead(core: Core, raw_id: bytes) -> int:
    """Without the lock: how many ready messages of its lane are ahead of it, counted to just past
    COUNT_LIMIT.
    """
    with core.lock:
        core.check_open()
        spot = None if core.leases.find(raw_id) is not None else locate(core, raw_id)
        queue = core.by_id.get(spot.queue_id) if isinstance(spot, InReady) else None
    if not isinstance(spot, InReady) or queue is None or queue.is_dead_letter_queue:
        return 0
    own_place, place, count = row_place(spot.row), 0, 0
    while count <= COUNT_LIMIT:
        with core.step():
            core.check_scan()
            rows = core.store.rows_after(spot.queue_id, spot.lane, place, HOLD_MESSAGES)
        ahead = [row for row in rows if row_place(row) < own_place]
        count += len(ahead)
        if len(ahead) < HOLD_MESSAGES:
            break
        place = row_place(ahead[-1])
    return count


def explain_queue(core: Core, name: str) -> Explanation:
    with core.lock:
        queue_id = core.queue(name).queue_id
    held_up = held_up_streams(core, queue_id, leased=True)
    with core.lock:
        queue = core.queue(name)
        counters = core.store.counters(queue.queue_id)
        reasons = _queue_reasons(core, queue)
        if counters.ready == 0:
            reasons.append(
                Reason(
                    "no_ready_messages",
                    f"no message is ready: {counters.leased} leased, {counters.waiting} waiting",
                )
            )
        reasons.extend(_hook_reasons(core, queue))
        reasons.extend(_breaker_reasons(core, queue))
        if queue.next_due_ms < HELD and counters.waiting and core.store.next_due(queue.queue_id) is not None:
            due_ms = core.by_wall(queue.next_due_ms)
            reasons.append(
                Reason("next_due", f"the next waiting message is due at {show_time(due_ms)}", due_ms)
            )
        if counters.ready and not queue.scheduler.active_keys and not queue.closed_to_claims:
            reasons.extend(_parked_reasons(core, queue))
        reasons.extend(_blocked_reasons(core, held_up))
        stopped = bool(queue.closed_to_claims or not counters.ready or not queue.scheduler.active_keys)
        summary = (
            "nothing can be handed out now"
            if stopped
            else f"{counters.ready} ready, {keys_taking_turns(queue.scheduler.active_keys)}"
        )
        return Explanation(f"queue {name}", summary, tuple(reasons))


def _blocked_reasons(core: Core, held_up: list[HeldUp]) -> list[Reason]:
    """The streams that are held up longest, those behind a leased message last; `failure_metrics` lists all
    that wait for a message that is not leased.
    """
    reasons = []
    for stream, why, leased in held_up[:_LISTED_STREAMS]:
        until_ms = None if stream.until is None else core.by_wall(stream.until)
        text = f"stream {stream.stream!r} is held up by {stream.blocker}, which is {why}; {stream.behind} behind it"
        reasons.append(Reason("leased_stream" if leased else "blocked_stream", text, until_ms))
    unlisted = held_up[_LISTED_STREAMS:]
    leased_count = sum(one.leased for one in unlisted)
    if blocked_count := len(unlisted) - leased_count:
        text = f"{counted(blocked_count, 'more stream is', 'more streams are')} held up"
        reasons.append(Reason("blocked_streams", text))
    if leased_count:
        text = f"{counted(leased_count, 'more stream is', 'more streams are')} behind a leased message"
        reasons.append(Reason("leased_streams", text))
    return reasons


def _leased(core: Core, subject: str, lease: Lease) -> Explanation:
    pinned = core.consumer_book.why_pinned(lease)
    if pinned:
        until_ms = core.by_wall(core.consumer_book.lease_until(lease))
        text = f"{pinned}, and so does its consumer when it is not seen until {show_time(until_ms)}; delivery {lease.deliveries}"
        return Explanation(
            subject, "in a numbered claim, until that is closed", (Reason("pinned", text, until_ms),)
        )
    expires_ms = core.by_wall(lease.expires_ms)
    text = f"leased to {lease.consumer!r} until {show_time(expires_ms)}, delivery {lease.deliveries}"
    text += "" if lease.started else ", not started"
    return Explanation(subject, "in the hands of a consumer", (Reason("leased", text, expires_ms),))


def _waiting(core: Core, subject: str, queue: QueueState, spot: InWaiting, raw_id: bytes) -> Explanation:
    state = core.store.states([raw_id])[0]
    if spot.due_ms == HELD:
        given = (
            f" as {FailureReason(state.reason).word}"
            if state is not None and state.rule == "operator"
            else ""
        )
        why = f"held by an operator{given}: it waits until it is let go"
        return Explanation(subject, "held", (Reason("held", why),))
    if state is None or not state.rule:
        why = "its producer delayed it"
    else:
        why = f"it failed {show_times(state.attempts)}, last with {FailureReason(state.reason).word}; decided by {state.rule}"
    left_ms, due_ms = max(0, spot.due_ms - core.now_ms()), core.by_wall(spot.due_ms)
    text = f"waiting until {show_time(due_ms)} ({show_ms(left_ms)} from now): {why}"
    return Explanation(
        subject, "waiting for its time", (Reason("waiting", text, due_ms), *_queue_reasons(core, queue))
    )


def _done(core: Core, subject: str, queue: QueueState, spot: InDone) -> Explanation:
    done_ms = core.by_wall(spot.done_ms)
    until_ms = done_ms + queue.config.retain_completed_ms
    text = f"completed at {show_time(done_ms)}; kept to be looked at until {show_time(until_ms)}"
    return Explanation(subject, "completed", (Reason("completed", text, until_ms),))


def _dead(core: Core, subject: str, queue: QueueState, raw_id: bytes) -> Explanation:
    state = core.store.states([raw_id])[0]
    if state is None:
        return Explanation(subject, "a dead letter")
    error = state.failures[-1].error if state.failures else ""
    since, reason = show_time(core.by_wall(state.dead_since_ms)), FailureReason(state.reason).word
    text = f"dead since {since} after {state.attempts} failure{'' if state.attempts == 1 else 's'}, reason {reason}, decided by {state.rule}"
    return Explanation(
        subject,
        f"a dead letter in {queue.name}; redrive brings it back",
        (Reason("dead", text), Reason("last_error", f"last error: {error}")),
    )


def _ready(core: Core, subject: str, queue: QueueState, spot: InReady | InStream, ahead: int) -> Explanation:
    reasons = _queue_reasons(core, queue)
    if isinstance(spot, InStream):
        return Explanation(
            subject, "ready, but not at the front of its stream", (_behind(core, queue, spot), *reasons)
        )
    lane = queue.scheduler.find_lane(spot.lane)
    reasons.extend(_throttle_reasons(core, spot.lane, lane))
    if ahead:
        reasons.append(
            Reason(
                "behind_in_lane",
                f"ahead of it in its lane (key {lane_key(spot.lane)!r}): {counted(ahead, 'message', 'messages')}",
            )
        )
    if lane is not None:
        keys_ahead = queue.scheduler.keys_ahead(lane.key, COUNT_LIMIT + 1)
        if keys_ahead:
            reasons.append(
                Reason(
                    "behind_in_ring",
                    f"{counted(keys_ahead, 'key has its', 'keys have their')} turn before {lane.key.name!r}",
                )
            )
        limit = queue.config.max_unsettled_per_key
        if limit and lane.key.unsettled >= limit:
            reasons.append(
                Reason(
                    "key_limit",
                    f"key {lane.key.name!r} has {counted(lane.key.unsettled, 'unsettled message', 'unsettled messages')}, its limit is {limit}",
                )
            )
    blocking = [reason for reason in reasons if reason.code not in ("behind_in_lane", "behind_in_ring")]
    if blocking:
        return Explanation(subject, "ready, but it cannot go out", tuple(reasons))
    return Explanation(
        subject,
        "ready: it goes out with one of the next claims" if not reasons else "ready: it waits for its turn",
        tuple(reasons),
    )


def _behind(core: Core, queue: QueueState, spot: InStream) -> Reason:
    """Who holds it up: the first message of its stream, or the one at the front."""
    name = row_stream(spot.row)
    blocker = find_blocker(core, queue.queue_id, name)
    if blocker is None:
        return Reason("behind_in_stream", f"earlier messages of stream {name!r} go before it")
    message_id, why, until_ms = blocker
    text = f"stream {name!r} is held up by {show_id(message_id)}, which is {why}"
    return Reason("behind_in_stream", text, None if until_ms is None else core.by_wall(until_ms))


def _queue_reasons(core: Core, queue: QueueState) -> list[Reason]:
    reasons = []
    if queue.record.paused:
        reasons.append(Reason("paused", f"queue {queue.name!r} is paused"))
    if queue.purging:
        reasons.append(Reason("purging", f"queue {queue.name!r} is being purged"))
    if not queue.waiters and not core.leases.consumers(queue.queue_id):
        reasons.append(
            Reason(
                "no_consumer", f"no consumer is waiting on queue {queue.name!r} or holds one of its messages"
            )
        )
    return reasons


def _hook_reasons(core: Core, queue: QueueState) -> list[Reason]:
    """Hooks that are switched off for now: messages go by the defaults and the policies, which may look like
    a wrong order.
    """
    return [
        Reason(
            "hook_bypassed",
            f"the {hook.function} hook is switched off by its breaker until {show_time(hook.breaker_open_until_ms)}: {hook.last_error}",
            hook.breaker_open_until_ms,
        )
        for hook in core.hooks.stats(queue.queue_id)
        if hook.breaker_open_until_ms is not None
    ]


def _breaker_reasons(core: Core, queue: QueueState) -> list[Reason]:
    """Failures of one reason have piled up: their retries wait at least so long."""
    now_ms = core.now_ms()
    open_until = [
        (reason, core.by_wall(core.breaker(queue.queue_id, reason).open_until_ms(now_ms)))
        for reason in FailureReason
    ]
    return [
        Reason(
            "failure_breaker",
            f"the failure breaker for {reason.word} is open until {show_time(until_ms)}: retries wait for it",
            until_ms,
        )
        for reason, until_ms in open_until
        if until_ms
    ]


def _throttle_reasons(core: Core, lane_id: bytes, lane: Lane | None) -> list[Reason]:
    """The buckets that lack a token now; for a parked lane also those that are empty only because others wait
    first.
    """
    now_ms, wall_ms = core.clock.monotonic_ms(), core.by_wall(core.now_ms())
    reasons = []
    for throttle_key in lane_throttle_keys(lane_id):
        bucket = core.buckets.find(throttle_key, now_ms)
        if bucket is None or (bucket.tokens >= 1 and (lane is None or lane.parked != throttle_key)):
            continue
        at_ms = core.buckets.ready_at(throttle_key, 1, now_ms)
        when = None if at_ms is None else wall_ms + at_ms - now_ms
        text = f"throttled on {throttle_key!r} ({bucket.rate:g}/s): " + (
            "its rate is 0" if when is None else f"next token at {show_time(when)}"
        )
        reasons.append(Reason("throttled", text, when))
    return reasons


def _parked_reasons(core: Core, queue: QueueState) -> list[Reason]:
    now_ms, wall_ms = core.clock.monotonic_ms(), core.by_wall(core.now_ms())
    reasons = []
    for throttle_key, lanes in queue.scheduler.parked():
        at_ms = core.buckets.ready_at(throttle_key, 1, now_ms)
        when = None if at_ms is None else wall_ms + at_ms - now_ms
        text = f"{counted(lanes, 'lane is', 'lanes are')} throttled on {throttle_key!r}, " + (
            "its rate is 0" if when is None else f"next token at {show_time(when)}"
        )
        reasons.append(Reason("throttled", text, when))
    return reasons
