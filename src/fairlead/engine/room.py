"""How much a request may store once free space is below the disk reserve.

Each verb names its rule in `room`. The sizes are upper bounds of what rows take.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fairlead.model.limits import MAX_RUNBOOK_BYTES
from fairlead.model.message import record_bytes
from fairlead.records.facts import MessageMoved, StateFact

if TYPE_CHECKING:
    from fairlead.engine.transaction import Transaction
    from fairlead.store.kv.port import KeyValueStore

#: Rows of a message beside its body: in its queue, its stream, its time to live.
MESSAGE_BYTES = 256
#: The growth of a lease: its own rows and, when it ends, the state of its message with one more failure.
LEASE_BYTES = 1024
#: A state without its texts and its carry.
STATE_BYTES = 256
#: Messages that a step moves below the reserve, each with a state of up to 320 KiB.
SHORT_STEP = 16


def check_growth(store: KeyValueStore) -> None:
    """Below the disk reserve, refuse a request that grows the store before anything happens."""
    store.check_room(MAX_RUNBOOK_BYTES)


def check_moves(tx: Transaction, facts: Iterable[StateFact]) -> None:
    """Below the disk reserve, refuse moves that store more than before, such as the return of dead letters."""
    states = [fact.state for fact in facts if isinstance(fact, MessageMoved)]
    if states:
        tx.store.check_room(sum([MESSAGE_BYTES + STATE_BYTES + record_bytes(state) for state in states]))


def is_low(tx: Transaction) -> bool:
    """Whether the disk is below its reserve, so that nothing may grow."""
    return tx.store.room() <= 0


def step_of(tx: Transaction, most: int) -> int:
    """How many messages one transaction moves: few of them where a large write may not fit."""
    return min(most, SHORT_STEP) if is_low(tx) else most


def leases_that_fit(tx: Transaction, wanted: int) -> int:
    """How many more leases fit, with what the end of each may store. Raises `StoreFull` if none fits."""
    held = len(tx.memory.held)
    room = tx.store.room(in_reserve=True)
    if room >= (held + wanted) * LEASE_BYTES:
        return wanted
    tx.store.check_room((held + 1) * LEASE_BYTES, in_reserve=True)
    return max(1, room // LEASE_BYTES - held)
