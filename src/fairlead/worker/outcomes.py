"""From what a step returned or raised to the value that its worker receives."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

import msgspec

from fairlead.errors import InvalidRequest
from fairlead.model.durations import to_ms
from fairlead.model.failure import FailureReason, read_reason
from fairlead.model.handles import check_closing
from fairlead.worker.command import CommandFailed
from fairlead.worker.plan import CarryUnreadable
from fairlead.worker.protocol import CallFailed
from fairlead.worker.reasons import bounded, describe, reason_of
from fairlead.worker.step import StepFailed, Throttled

#: Strict, so that the next step gets exactly what this one returned: no NaN, and no date that comes back as
#: text.
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode


class InvalidResult(Exception):
    """A payload or a returned value is not JSON, or has not the required form."""


def dump_value(returned: object) -> bytes:
    """The value as JSON, empty for None. Raises `InvalidResult`."""
    if returned is None:
        return b""
    try:
        return _encode(returned).encode()
    except (TypeError, ValueError, RecursionError) as error:
        got = f"{type(returned).__name__} ({error})"
        raise InvalidResult(f"expected a step to return nothing or a JSON value, got {got}") from None


def not_json(error: Exception) -> InvalidResult:
    return InvalidResult(f"expected the payload to be JSON ({type(error).__name__}: {error})")


def failure_of(
    error: BaseException,
    step: str,
    reasons: Mapping[str, str],
    *,
    ticket: int,
    took_us: int = 0,
    ours: Collection[str] = (),
) -> CallFailed:
    """`ours` are source files whose frames are left out at the top of the traceback."""
    if isinstance(error, CommandFailed):
        return CallFailed(ticket, took_us, error.reason, bounded(f"step {step!r}: {error.text}"))
    if isinstance(error, (InvalidResult, CarryUnreadable)):
        reason, text = FailureReason.SERIALIZATION_ERROR, bounded(f"step {step!r}: {error}")
        return CallFailed(ticket, took_us, reason, text)
    if isinstance(error, StepFailed):
        return _of_step_failed(ticket, took_us, step, error)
    if isinstance(error, Throttled):
        return _of_throttled(ticket, took_us, step, error)
    text = describe(step, error, ours=ours)
    return CallFailed(
        ticket, took_us, reason_of(type(error), reasons), text, spent=isinstance(error, MemoryError)
    )


def _of_throttled(ticket: int, took_us: int, step: str, raised: Throttled) -> CallFailed:
    """With an invalid key or time, an ordinary failure whose text names the mistake."""
    text = f"step {step!r}: {raised.message or 'throttled'}"
    failed = CallFailed(ticket, took_us, FailureReason.DEPENDENCY_FAILURE, bounded(text))
    try:
        key, retry_after_ms = check_closing(raised.key, raised.retry_after)
    except InvalidRequest as wrong:
        return msgspec.structs.replace(failed, error=bounded(f"{text}\n{wrong}"))
    return msgspec.structs.replace(failed, close=key, retry_after_ms=retry_after_ms)


def _of_step_failed(ticket: int, took_us: int, step: str, raised: StepFailed) -> CallFailed:
    """An invalid reason or time is left out and named in the text; then the queue's policy decides."""
    notes, retry_in_ms = [], None
    try:
        reason = read_reason(raised.reason)
    except InvalidRequest as wrong:
        reason = FailureReason.HANDLER_EXCEPTION
        notes.append(str(wrong))
    if raised.retry_in is not None and not raised.dead:
        try:
            retry_in_ms = to_ms(raised.retry_in, "retry_in")
        except InvalidRequest as wrong:
            notes.append(str(wrong))
    elif raised.retry_in is not None:
        notes.append("retry_in is ignored because dead=True")
    text = bounded("\n".join([f"step {step!r}: {raised.message or 'failed'}", *notes]))
    return CallFailed(ticket, took_us, reason, text, retry_in_ms, bool(raised.dead))
