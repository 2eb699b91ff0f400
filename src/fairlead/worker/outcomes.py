"""What a step returned or raised, as a value that can be told."""

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

#: Strict, so that the next step gets what this one returned: no NaN, no dates that come back as text.
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode


class InvalidResult(Exception):
    """Something that is no JSON, or has not the form that it must have."""


def dump_value(returned: object) -> bytes:
    """As JSON; empty for nothing. Raises `Refused`."""
    if returned is None:
        return b""
    try:
        return _encode(returned).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidResult(
            f"expected a step to return something JSON can hold, or nothing, got {type(returned).__name__} ({error})"
        ) from None


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
    """`ours` are the files whose frames do not count as the step's."""
    if isinstance(error, CommandFailed):
        return CallFailed(ticket, took_us, error.reason, bounded(f"step {step!r}: {error.text}"))
    if isinstance(error, (InvalidResult, CarryUnreadable)):
        return CallFailed(
            ticket, took_us, FailureReason.SERIALIZATION_ERROR, bounded(f"step {step!r}: {error}")
        )
    if isinstance(error, StepFailed):
        return _step_failed(ticket, took_us, step, error)
    if isinstance(error, Throttled):
        return _throttled(ticket, took_us, step, error)
    text = describe(step, error, ours=ours)
    return CallFailed(
        ticket, took_us, reason_of(type(error), reasons), text, spent=isinstance(error, MemoryError)
    )


def _throttled(ticket: int, took_us: int, step: str, told: Throttled) -> CallFailed:
    """Where it makes no sense, the text says so, and it is a failure like others."""
    said = f"step {step!r}: {told.message or 'throttled'}"
    failed = CallFailed(ticket, took_us, FailureReason.DEPENDENCY_FAILURE, bounded(said))
    try:
        key, retry_after_ms = check_closing(told.key, told.retry_after)
    except InvalidRequest as wrong:
        return msgspec.structs.replace(failed, error=bounded(f"{said}\n{wrong}"))
    return msgspec.structs.replace(failed, close=key, retry_after_ms=retry_after_ms)


def _step_failed(ticket: int, took_us: int, step: str, failure: StepFailed) -> CallFailed:
    """What a step says about its failure counts where it makes sense; where not, the text says so, and the
    policy decides.
    """
    notes, retry_in_ms = [], None
    try:
        reason = read_reason(failure.reason)
    except InvalidRequest as wrong:
        reason = FailureReason.HANDLER_EXCEPTION
        notes.append(str(wrong))
    if failure.retry_in is not None and not failure.dead:
        try:
            retry_in_ms = to_ms(failure.retry_in, "retry_in")
        except InvalidRequest as wrong:
            notes.append(str(wrong))
    elif failure.retry_in is not None:
        notes.append("retry_in was given with dead=True, which won")
    said = f"step {step!r}: {failure.message or 'failed'}"
    return CallFailed(
        ticket, took_us, reason, bounded("\n".join([said, *notes])), retry_in_ms, bool(failure.dead)
    )
