"""Reading and checking settlements and the handles of their deliveries, alike on both sides of the network."""

from __future__ import annotations

from typing import NamedTuple

from fairlead.errors import InvalidRequest
from fairlead.model.checks import check_text
from fairlead.model.delivery import Delivery
from fairlead.model.durations import Duration, to_ms
from fairlead.model.failure import FailureReason, bounded_error, read_reason
from fairlead.model.ids import find_id
from fairlead.model.limits import MAX_CARRY_BYTES, MAX_KEY_BYTES
from fairlead.model.settle import Fail, LeaseRef

_MAX_PROGRESS = (1 << 63) - 1


def read_handle(handle: object) -> tuple[bytes, int]:
    """The raw id and the claim number that a `Delivery`, `DeliveryRef` or `LeaseRef` stands for."""
    if isinstance(handle, Delivery):
        return handle.raw_id, handle.claim_id
    if isinstance(handle, LeaseRef):
        if type(handle.raw_id) is not bytes or len(handle.raw_id) != 16 or type(handle.claim_id) is not int:
            raise InvalidRequest("delivery", "a LeaseRef of 16 bytes and a whole number", handle)
        return handle.raw_id, handle.claim_id
    raw_id = find_id(getattr(handle, "id", None))
    if raw_id is None:
        raise InvalidRequest("delivery", "a Delivery, or a DeliveryRef with a message id", handle)
    try:
        return raw_id, int(getattr(handle, "lease", ""), 16)
    except (TypeError, ValueError):
        # A token in an unknown form is fenced like a stale one.
        return raw_id, -1


def check_progress(progress: object) -> int:
    if type(progress) is int and 0 <= progress <= _MAX_PROGRESS:
        return progress
    if isinstance(progress, bool) or not isinstance(progress, int) or not 0 <= progress <= _MAX_PROGRESS:
        raise InvalidRequest("progress", "64 bit flags, 0 or greater", progress)
    return int(progress)


def check_carry(carry: object) -> bytes | None:
    if carry is not None and (not isinstance(carry, bytes) or len(carry) > MAX_CARRY_BYTES):
        raise InvalidRequest("carry", f"at most {MAX_CARRY_BYTES} bytes", type(carry).__name__)
    return carry


class CheckedFail(NamedTuple):
    reason: FailureReason
    error: str
    progress: int
    retry_in_ms: int | None
    dead: bool
    #: The throttle key to close, and for how long.
    close: str = ""
    retry_after_ms: int = 0


def check_fail(item: Fail) -> CheckedFail:
    reason, progress = read_reason(item.reason), check_progress(item.progress)
    if not isinstance(item.error, str):
        raise InvalidRequest("error", "text", type(item.error))
    if not isinstance(item.dead, bool):
        raise InvalidRequest("dead", "True or False", item.dead)
    if item.dead and item.retry_in is not None:
        raise InvalidRequest("retry_in", "None when dead=True", item.retry_in)
    retry_in_ms = None if item.retry_in is None else to_ms(item.retry_in, "retry_in")
    if item.close is None and item.retry_after is None:
        return CheckedFail(reason, bounded_error(item.error), progress, retry_in_ms, item.dead)
    close, retry_after_ms = _check_close(item)
    return CheckedFail(
        reason, bounded_error(item.error), progress, retry_in_ms, item.dead, close, retry_after_ms
    )


def _check_close(item: Fail) -> tuple[str, int]:
    """The throttle key to close, and for how long."""
    if item.close is None:
        expected = "a throttle key to close, given with retry_after; retry_in delays this message alone"
        raise InvalidRequest("close", expected, None)
    if item.retry_after is None:
        raise InvalidRequest("retry_after", "how long the throttle key is closed, given with close", None)
    if item.dead or item.retry_in is not None:
        raise InvalidRequest("close", "given without retry_in and dead", item.close)
    return check_closing(item.close, item.retry_after)


def check_closing(close: object, retry_after: Duration) -> tuple[str, int]:
    """The throttle key, and for how many milliseconds to close it."""
    throttle_key, retry_after_ms = (
        check_text(close, "close", MAX_KEY_BYTES),
        to_ms(retry_after, "retry_after"),
    )
    if retry_after_ms <= 0:
        raise InvalidRequest("retry_after", "longer than 0", retry_after)
    return throttle_key, retry_after_ms
