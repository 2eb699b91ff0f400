"""How failure looks right now in one queue: the four questions of a bad night, and which streams are held up.

Nothing but pages of rows is read under the lock, so the answer is not that of one moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from fairlead.broker.blocked_streams import blocked_streams
from fairlead.broker.core import Core
from fairlead.broker.walk import HasRow, leases_of, member_pages, ready_pages, waiting_pages
from fairlead.decide.arguments import check_count
from fairlead.model.facts import InWaiting
from fairlead.model.failure import FailureReason
from fairlead.model.ids import id_time_ms, show_id
from fairlead.model.lane import Flag, row_flags, row_id
from fairlead.model.limits import SCAN_LIMIT
from fairlead.model.message import HELD, MessageState
from fairlead.model.stream import StreamRow
from fairlead.model.views import FailureMetrics, PoisonCandidate

#: Messages whose records are read together; those of one may have 300 KB.
_READ_AT_ONCE = 50


def failure_metrics(core: Core, name: str, *, streams: int) -> FailureMetrics:
    """Walks a bounded part of the queue (100,000 messages); `complete` says whether that was all of it."""
    check_count(streams, "streams", most=SCAN_LIMIT)
    with core.lock:
        queue = core.queue(name)
        queue_id, poison_after = queue.queue_id, queue.config.poison_after
    touched, complete = _touched(core, queue_id)
    attempts: Counter[int] = Counter()
    reasons: Counter[str] = Counter()
    poison: list[PoisonCandidate] = []
    due: list[int] = []
    for message_id, state in _failed(core, touched):
        due_ms, reason = touched[message_id], FailureReason(state.reason).word
        attempts[state.attempts] += 1
        reasons[reason] += 1
        if 0 < due_ms < HELD:
            due.append(due_ms)
        if poison_after and state.attempts >= poison_after and due_ms != HELD:
            # The id has the time of the enqueue; the message itself may be large.
            created = id_time_ms(message_id)
            poison.append(
                PoisonCandidate(show_id(message_id), state.attempts, reason, due_ms or None, created)
            )
    blocked = blocked_streams(core, queue_id)
    with core.lock:
        core.check_open()
        latest_due = max(due, default=None) if complete else core.store.last_due(queue_id)
    return FailureMetrics(
        queue=name,
        by_attempts=dict(sorted(attempts.items())),
        by_reason=dict(reasons.most_common()),
        scheduled=len(due),
        next_due=min(due, default=None),
        latest_due=latest_due,
        poison_candidates=tuple(sorted(poison, key=_most_attempts_first)),
        blocked_streams=tuple(blocked[:streams]),
        complete=complete,
        blocked_count=len(blocked),
    )


def _most_attempts_first(candidate: PoisonCandidate) -> tuple[int, str]:
    """Ids of older messages come first."""
    return -candidate.attempts, candidate.id


def _failed(core: Core, touched: Iterable[bytes]) -> Iterator[tuple[bytes, MessageState]]:
    """Those that have failed in this life, by what is stored now."""
    ids = list(touched)
    for start in range(0, len(ids), _READ_AT_ONCE):
        core.check_scan()
        some = ids[start : start + _READ_AT_ONCE]
        for message_id, state in zip(some, core.store.states(some), strict=True):
            if state is not None and state.attempts and not state.source_queue_id:
                yield message_id, state


def _touched(core: Core, queue_id: int) -> tuple[dict[bytes, int], bool]:
    """Live messages that have a history, leased, waiting or ready again, each with its due time if it waits
    for one.
    """
    found: dict[bytes, int] = {}
    _note(found, leases_of(core, queue_id))
    looked_at = 0
    for page in _pages(core, queue_id):
        if looked_at >= SCAN_LIMIT:
            return found, False
        some = page[: SCAN_LIMIT - looked_at]
        looked_at += len(some)
        _note(found, some)
    return found, looked_at < SCAN_LIMIT


def _pages(core: Core, queue_id: int) -> Iterator[Sequence[HasRow]]:
    yield from waiting_pages(core, queue_id)
    yield from ready_pages(core, queue_id)
    yield from member_pages(core, queue_id)


def _note(found: dict[bytes, int], page: Sequence[HasRow]) -> None:
    for one in page:
        # The flag of a stream's row may lag behind.
        if isinstance(one, StreamRow) or row_flags(one.row) & Flag.STATE:
            found.setdefault(row_id(one.row), one.due_ms if isinstance(one, InWaiting) else 0)
