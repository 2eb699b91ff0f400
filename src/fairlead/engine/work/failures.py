"""The current failures of one queue. Read in steps, so the answer is not that of one moment."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fairlead.decide.arguments import check_count
from fairlead.engine.blocked_streams import held_up_streams
from fairlead.engine.met import bounded, step
from fairlead.engine.transaction import StepsTable
from fairlead.engine.walk import find_latest_due
from fairlead.engine.walk_ids import walk_ids
from fairlead.model.failure import FailureReason
from fairlead.model.ids import id_time_ms, show_id
from fairlead.model.limits import SCAN_LIMIT
from fairlead.model.message import HELD
from fairlead.model.views import FailureMetrics, PoisonCandidate
from fairlead.request import Caller
from fairlead.verbs.inspect import GetFailureMetrics

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine


def failure_metrics(engine: Engine, request: GetFailureMetrics, caller: Caller) -> FailureMetrics:
    """Compute the metrics. A message that failed has a row of its own, so no other message is read."""
    check_count(request.streams, "streams", most=SCAN_LIMIT)
    with step(engine) as tx:
        queue = tx.queue(request.queue)
        queue_id, poison_after = queue.record.queue_id, queue.record.config.poison_after
    attempts: Counter[int] = Counter()
    reasons: Counter[str] = Counter()
    poison: list[PoisonCandidate] = []
    due: list[int] = []
    looked_at = 0
    for met in bounded(walk_ids(engine, queue_id, only_own=True), SCAN_LIMIT):
        looked_at += 1
        state, raw_id = met.state, met.raw_id
        if not state.attempts or state.source_queue_id or state.done_ms:
            continue
        due_ms, reason = state.due_ms, FailureReason(state.reason).word
        attempts[state.attempts] += 1
        reasons[reason] += 1
        if 0 < due_ms < HELD:
            due.append(due_ms)
        if poison_after and state.attempts >= poison_after and due_ms != HELD:
            poison.append(
                PoisonCandidate(show_id(raw_id), state.attempts, reason, due_ms or None, id_time_ms(raw_id))
            )
    blocked = [one.stream for one in held_up_streams(engine, queue_id, leased=False)]
    is_complete = looked_at < SCAN_LIMIT
    return FailureMetrics(
        queue=request.queue,
        by_attempts=dict(sorted(attempts.items())),
        by_reason=dict(reasons.most_common()),
        scheduled=len(due),
        next_due=min(due, default=None),
        latest_due=max(due, default=None) if is_complete else find_latest_due(engine, queue_id),
        poison_candidates=tuple(sorted(poison, key=_most_attempts_first)),
        blocked_streams=tuple(blocked[: request.streams]),
        complete=is_complete,
        blocked_count=len(blocked),
    )


def _most_attempts_first(candidate: PoisonCandidate) -> tuple[int, str]:
    """A sort key. Ids of older messages come first."""
    return -candidate.attempts, candidate.id


WORK_IN_STEPS: StepsTable = {
    GetFailureMetrics: failure_metrics,
}
