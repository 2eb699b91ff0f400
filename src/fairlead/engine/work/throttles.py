"""Operators' verbs for closed throttle keys."""

from __future__ import annotations

from fairlead.engine.closed_throttles import close_throttle, forget_closure, has_room, show_closed
from fairlead.engine.transaction import Transaction, WorkTable
from fairlead.errors import InvalidRequest, LimitReached
from fairlead.model.checks import check_text
from fairlead.model.durations import to_ms
from fairlead.model.limits import MAX_CLOSED_THROTTLES, MAX_ERROR_BYTES, MAX_KEY_BYTES
from fairlead.model.throttle import MAX_CLOSURE_ERROR, ClosedThrottle, Closure
from fairlead.store.kv.port import Table
from fairlead.verbs.throttles import CloseThrottle, OpenThrottle, Throttles


def list_closed(tx: Transaction, request: Throttles) -> list[ClosedThrottle]:
    return show_closed(tx)


def close(tx: Transaction, request: CloseThrottle) -> ClosedThrottle:
    key = check_text(request.key, "key", MAX_KEY_BYTES)
    error = check_text(request.error, "error", MAX_ERROR_BYTES, may_be_empty=True)
    lasts_ms = to_ms(request.duration, "duration")
    if lasts_ms <= 0:
        raise InvalidRequest("duration", "longer than 0", request.duration)
    if not has_room(tx, key):
        raise LimitReached("closed throttle keys", MAX_CLOSED_THROTTLES)
    closure = Closure(tx.now_ms, tx.now_ms + lasts_ms, tx.caller.name, "", error[:MAX_CLOSURE_ERROR], 0)
    close_throttle(tx, key, closure, is_audited=False)
    return next(closed for closed in show_closed(tx) if closed.key == key)


def open_now(tx: Transaction, request: OpenThrottle) -> bool:
    key = check_text(request.key, "key", MAX_KEY_BYTES)
    if key.encode() not in tx.memory.records[Table.CLOSED]:
        return False
    forget_closure(tx, key)
    return True


WORK: WorkTable = {
    Throttles: list_closed,
    CloseThrottle: close,
    OpenThrottle: open_now,
}
