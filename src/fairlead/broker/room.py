"""How much a request may store once free space is below the disk reserve (store/rocks/reserve.py).

Each verb says in `room` which rule applies to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fairlead.engine.room import LEASE_BYTES, MESSAGE_BYTES, SHORT_STEP, STATE_BYTES
from fairlead.model.facts import Fact, Moved
from fairlead.model.limits import MAX_RUNBOOK_BYTES
from fairlead.model.message import MessageState, record_bytes

if TYPE_CHECKING:
    from fairlead.broker.core import Core


def check_growth(core: Core) -> None:
    """Refuse a request that grows the store, below the disk reserve, before anything happens."""
    with core.lock:
        core.check_open()
        core.store.check_room(MAX_RUNBOOK_BYTES)


def is_low(core: Core) -> bool:
    """Whether the disk is below its reserve, so that nothing may grow."""
    return core.store.room() <= 0


def step_of(core: Core, most: int) -> int:
    """How many messages one commit of a long operation moves: few of them where a large commit may not fit."""
    return min(most, SHORT_STEP) if is_low(core) else most


def leases_that_fit(core: Core, wanted: int) -> int:
    """How many more leases there is room for, with what the end of each lease may store. Raises `StoreFull`
    when none fits.
    """
    held = len(core.leases)
    room = core.store.room(in_reserve=True)
    if room < (held + wanted) * LEASE_BYTES:
        core.store.check_room((held + 1) * LEASE_BYTES, in_reserve=True)
    return max(1, min(wanted, room // LEASE_BYTES - held))


def state_bytes(state: MessageState) -> int:
    return STATE_BYTES + record_bytes(state)


def moved_bytes(facts: Iterable[Fact]) -> int:
    """What moves store anew."""
    moved = [fact for fact in facts if type(fact) is Moved and fact.target is not None]
    return sum([MESSAGE_BYTES + (state_bytes(fact.state) if fact.state is not None else 0) for fact in moved])
