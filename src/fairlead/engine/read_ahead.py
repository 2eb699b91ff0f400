"""Reading what a claim lacks in memory, in short steps before the claim, so that other threads get the lock
in between.

Concurrent changes only make the claim read again: reading changes nothing that is stored, and the order of
delivery does not depend on what is in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fairlead.engine import cold
from fairlead.request import Request
from fairlead.verbs.claim import Claim
from fairlead.verbs.exchange import Exchange

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine
    from fairlead.records.chunk import LaneName

#: Messages that are read for one claim at most. A larger claim takes them in parts, or is rare.
_MAX_MESSAGES = 1000


def read_for(engine: Engine, request: Request[Any]) -> bool:
    """Whether something was read, for a request that claims messages and is in no transaction."""
    if not engine.memory.cold_count or engine.lock.is_owned:
        return False
    claim = _claim_of(request)
    # A malformed request is refused later.
    if claim is None or type(claim.limit) is not int or claim.limit < 1:
        return False
    return read_ahead(engine, claim.queues(), min(claim.limit, _MAX_MESSAGES))


def _claim_of(request: Request[Any]) -> Claim | None:
    if type(request) is Claim:
        return request
    requests = request.requests if type(request) is Exchange else ()
    claims = [one for one in requests if type(one) is Claim] if type(requests) in (list, tuple) else []
    return claims[0] if claims else None


def read_ahead(engine: Engine, names: Iterable[str], limit: int) -> bool:
    """Read what claims of this many messages lack. Returns whether anything was read."""
    if not engine.memory.cold_count:
        return False
    # For all queues: a claim may take from each of them.
    has_read = [_read_queue(engine, name, limit) for name in dict.fromkeys(names)]
    return any(has_read)


def _read_queue(engine: Engine, name: str, limit: int) -> bool:
    has_read = False
    # Usually two or three times.
    for _ in range(limit):
        with engine.transaction() as tx:
            queue = tx.memory.by_name.get(name)
            if queue is None or queue.record.paused:
                return has_read
            plan = queue.schedule.plan(limit, tx.now_ms)
            starts = {lane: queue.schedule.cold_from(lane) for lane in plan.needs}
            blocks = [] if plan.needs else cold.unknown_blocks(tx.memory, plan.numbers)
            queue_id, most = queue.record.queue_id, cold.most_chunks(tx.memory, queue)
        if not plan.needs:
            _read_chunks(engine, blocks, most)
            return has_read or bool(blocks)
        has_read = True
        for needs in _in_steps(plan.needs, most):
            _read_lanes(engine, queue_id, needs, starts)
    return has_read


def _in_steps(needs: Mapping[LaneName, int], most: int) -> Iterator[dict[LaneName, int]]:
    """Lanes that are read together: not too many, nor too many messages, each of which may be in another
    chunk.
    """
    step: dict[LaneName, int] = {}
    room = most
    for lane, count in needs.items():
        wanted = min(count, most)
        if step and (len(step) == cold.STEP_LANES or wanted > room):
            yield step
            step, room = {}, most
        step[lane] = wanted
        room -= wanted
    yield step


def _read_lanes(
    engine: Engine, queue_id: int, needs: Mapping[LaneName, int], starts: Mapping[LaneName, int]
) -> None:
    with engine.transaction() as tx:
        queue = tx.memory.by_id.get(queue_id)
        if queue is None:
            return
        # Another claim may have read some of them meanwhile.
        still = {
            lane: count for lane, count in needs.items() if queue.schedule.cold_from(lane) == starts[lane]
        }
        if still:
            tx.read_on(queue, still)


def _read_chunks(engine: Engine, blocks: list[int], most: int) -> None:
    for start in range(0, len(blocks), most):
        with engine.transaction() as tx:
            cold.bring_blocks(tx.memory, tx.store, blocks[start : start + most])
