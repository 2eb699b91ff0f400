"""How failure looks right now in one queue: the four questions of a bad night, and which streams are held up."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from fairlead.broker.core import Core
from fairlead.broker.explain import find_blocker
from fairlead.broker.locate import stream_members
from fairlead.broker.queue_state import QueueState
from fairlead.broker.requests import check_count
from fairlead.model.facts import InReady, InWaiting
from fairlead.model.failure import FailureReason
from fairlead.model.ids import show_id
from fairlead.model.lane import Flag, row_flags, row_id
from fairlead.model.limits import SCAN_LIMIT
from fairlead.model.message import HELD
from fairlead.model.views import BlockedStream, FailureMetrics

_PAGE = 1000


def failure_metrics(core: Core, name: str, *, streams: int) -> FailureMetrics:
    """Walks a bounded part of the queue (100,000 messages); `complete` says whether that was all of it."""
    check_count(streams, "streams", most=SCAN_LIMIT)
    with core.lock:
        queue = core.queue(name)
        touched, complete = _touched(core, queue)
        ids = list(touched)
        attempts: Counter[int] = Counter()
        reasons: Counter[str] = Counter()
        poison: list[str] = []
        due: list[int] = []
        for at in range(0, len(ids), _PAGE):
            page = ids[at : at + _PAGE]
            for message_id, state in zip(page, core.store.states(page), strict=True):
                if state is None or not state.attempts:
                    continue
                attempts[state.attempts] += 1
                reasons[FailureReason(state.reason).word] += 1
                if 0 < touched[message_id] < HELD:
                    due.append(touched[message_id])
                if queue.config.poison_after and state.attempts >= queue.config.poison_after:
                    poison.append(show_id(message_id))
        return FailureMetrics(
            queue=name,
            by_attempts=dict(sorted(attempts.items())),
            by_reason=dict(reasons.most_common()),
            scheduled=len(due),
            next_due=min(due, default=None),
            latest_due=max(due, default=None) if complete else core.store.last_due(queue.queue_id),
            poison_candidates=tuple(poison),
            blocked_streams=tuple(_blocked(core, queue, streams)),
            complete=complete,
        )


def _touched(core: Core, queue: QueueState) -> tuple[dict[bytes, int], bool]:
    """Live messages that have a history, leased, waiting or ready again, each with its due time if it waits for one."""
    found = {lease.id: 0 for lease in core.leases.of_queue(queue.queue_id) if row_flags(lease.row) & Flag.STATE}
    looked_at = 0
    waiting: InWaiting | None = None
    while looked_at < SCAN_LIMIT and (late := core.store.waiting(queue.queue_id, waiting, _PAGE)):
        found |= {row_id(spot.row): spot.due_ms for spot in late if row_flags(spot.row) & Flag.STATE}
        waiting, looked_at = late[-1], looked_at + len(late)
    ready: InReady | None = None
    while looked_at < SCAN_LIMIT and (rows := core.store.ready(queue.queue_id, b"", ready, _PAGE)):
        found |= {row_id(spot.row): 0 for spot in rows if row_flags(spot.row) & Flag.STATE}
        ready, looked_at = rows[-1], looked_at + len(rows)
    for member in islice(stream_members(core, queue.queue_id), max(0, SCAN_LIMIT - looked_at)):
        looked_at += 1
        found.setdefault(member.id, 0)
    return found, looked_at < SCAN_LIMIT


def _blocked(core: Core, queue: QueueState, limit: int) -> list[BlockedStream]:
    """Streams whose first message waits while others queue up behind it, longest held up first among those looked at."""
    found: list[BlockedStream] = []
    name, looked_at = "", 0
    while looked_at < SCAN_LIMIT and (page := core.store.streams_after(queue.queue_id, name, _PAGE)):
        for name, record in page:
            looked_at += 1
            if record.live < 2 or record.front or core.leases.find(record.first.id) is not None:
                continue
            blocker = find_blocker(core, queue.queue_id, name)
            state = core.store.states([record.first.id])[0]
            if blocker is None:
                continue
            message = core.message(record.first.id)
            since = state.failures[-1].at_ms if state and state.failures else message.enqueued_ms if message else 0
            until = None if blocker[2] == HELD else blocker[2]
            found.append(BlockedStream(name, show_id(blocker[0]), since, until, record.live - 1))
    return sorted(found, key=lambda stream: stream.since)[:limit]
