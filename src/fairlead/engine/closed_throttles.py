"""Closing and opening throttle keys: facts, with an audit entry when a key closes or is open again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.decide.closing import closed_again
from fairlead.engine.audit_trail import add_entry
from fairlead.model.limits import MAX_CLOSED_THROTTLES
from fairlead.model.throttle import ClosedThrottle, Closure
from fairlead.records.facts import RecordsChanged
from fairlead.store.kv.port import Table

#: Keys that are forgotten at once to make room, so that the next ones have room too.
_FORGOTTEN_AT_ONCE = 100

if TYPE_CHECKING:
    from fairlead.engine.memory import Memory
    from fairlead.engine.transaction import Transaction


def find_closure(memory: Memory, throttle_key: str) -> Closure | None:
    return memory.records[Table.CLOSED].get(throttle_key.encode())


def show_closed(tx: Transaction) -> list[ClosedThrottle]:
    by_wall, found = tx.by_wall, []
    for throttle_key, closed in sorted(tx.memory.buckets.closed.items()):
        closure = find_closure(tx.memory, throttle_key)
        assert closure is not None, f"expected throttle {throttle_key!r} to be closed"
        found.append(
            ClosedThrottle(
                throttle_key,
                by_wall(closure.since_ms),
                by_wall(closure.until_ms),
                closure.by,
                closure.queue,
                closure.error,
                closure.returns,
                closed.at_once if closed.until_ms <= tx.now_ms else 0,
                len(closed.probes),
            )
        )
    return found


def has_room(tx: Transaction, throttle_key: str) -> bool:
    """Whether the key is closed already, or one more key may be closed."""
    closed = tx.memory.buckets.closed
    return throttle_key in closed or len(closed) < MAX_CLOSED_THROTTLES or bool(_forgettable(tx))


def _forgettable(tx: Transaction) -> list[str]:
    """Keys whose closed time has passed: the next message that the provider refuses closes them again."""
    closed = tx.memory.buckets.closed
    return [key for key, one in closed.items() if one.until_ms <= tx.now_ms and not one.probes]


def close_throttle(
    tx: Transaction, throttle_key: str, closure: Closure, *, is_audited: bool = True
) -> Closure:
    """Close the key, and return its closure. `is_audited`: the request itself has no audit entry."""
    before = find_closure(tx.memory, throttle_key)
    if before is None and len(tx.memory.buckets.closed) >= MAX_CLOSED_THROTTLES:
        for forgotten in _forgettable(tx)[:_FORGOTTEN_AT_ONCE]:
            forget_closure(tx, forgotten)
    after = closed_again(before, closure)
    if after != before:
        tx.add(RecordsChanged(Table.CLOSED, {throttle_key.encode(): after}))
    if before is None and is_audited:
        details = {"key": throttle_key, "for_ms": after.until_ms - tx.now_ms, "error": after.error}
        add_entry(tx, "close_throttle", after.queue, details)
    return after


def open_throttle(tx: Transaction, throttle_key: str) -> None:
    """Open the key, because enough probes were answered."""
    closure = find_closure(tx.memory, throttle_key)
    assert closure is not None, f"expected throttle {throttle_key!r} to be closed"
    forget_closure(tx, throttle_key)
    details = {
        "key": throttle_key,
        "closed_for_ms": tx.now_ms - closure.since_ms,
        "returns": closure.returns,
        "why": "its probes were answered",
    }
    add_entry(tx, "open_throttle", closure.queue, details)


def forget_closure(tx: Transaction, throttle_key: str) -> None:
    tx.add(RecordsChanged(Table.CLOSED, {throttle_key.encode(): None}))
