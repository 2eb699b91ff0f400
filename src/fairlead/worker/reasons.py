"""From an exception of a step to a failure reason and a bounded text.

Classes are matched by name along the method resolution order: `ValidationError` means pydantic's,
jsonschema's and the user's own, and none of them has to be imported. The nearest class wins; the worker's own
`reasons` come first.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Mapping

from fairlead.model.failure import FailureReason, read_reason
from fairlead.model.limits import MAX_ERROR_BYTES

REASONS: dict[str, str] = {
    "ConnectionError": "transport_unavailable",
    "gaierror": "transport_unavailable",
    "SSLError": "transport_unavailable",
    "ConnectError": "transport_unavailable",
    "ServerUnreachable": "transport_unavailable",
    "ServerStopping": "transport_unavailable",
    "TimeoutError": "timeout_exceeded",
    "Timeout": "timeout_exceeded",
    "TimeoutException": "timeout_exceeded",
    "TimeoutExpired": "timeout_exceeded",
    "ValidationError": "validation_failure",
    "SchemaError": "validation_failure",
    "JSONDecodeError": "serialization_error",
    "UnicodeDecodeError": "serialization_error",
    "UnicodeEncodeError": "serialization_error",
    "DecodeError": "serialization_error",
    "EncodeError": "serialization_error",
    "PicklingError": "serialization_error",
    "UnpicklingError": "serialization_error",
    "OperationalError": "dependency_failure",
    "HTTPError": "dependency_failure",
    "HTTPStatusError": "dependency_failure",
    "CalledProcessError": "dependency_failure",
    "Unavailable": "dependency_failure",
    "MemoryError": "poison_message",
}

#: Leaves room for text that the broker or another layer adds.
_MAX_TEXT_BYTES = MAX_ERROR_BYTES - 192


def reason_of(kind: type[BaseException], reasons: Mapping[str, str] = {}) -> FailureReason:
    """`reasons` names classes as `Name` or `module.Name`. Without a match, `handler_exception`."""
    for base in kind.__mro__:
        found = (
            reasons.get(f"{base.__module__}.{base.__qualname__}")
            or reasons.get(base.__name__)
            or REASONS.get(base.__name__)
        )
        if found is not None:
            return read_reason(found)
    return FailureReason.HANDLER_EXCEPTION


def describe(step: str, error: BaseException, *, ours: Collection[str] = ()) -> str:
    """The error in one line, then its traceback from the step's own code on. Contains no values but the
    exception's own.

    `ours` are source files whose frames are left out at the top of the traceback.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    summary = "".join(traceback.format_exception_only(error)).strip()
    lines = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
    return bounded(f"step {step!r}: {cut_middle(summary, 1000)}\n\n{lines}")


def bounded(text: str) -> str:
    return cut_middle(text, _MAX_TEXT_BYTES)


def cut_middle(text: str, max_bytes: int) -> str:
    """At most `max_bytes` of UTF-8: the beginning and the end, which matter most in a traceback."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= max_bytes:
        return raw.decode()
    half = (max_bytes - 64) // 2
    head, tail = raw[:half].decode("utf-8", "ignore"), raw[-half:].decode("utf-8", "ignore")
    return f"{head}\n[... {len(raw) - 2 * half} bytes left out ...]\n{tail}"
