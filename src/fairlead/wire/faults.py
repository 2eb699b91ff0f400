"""Errors as plain values for the network, and back as the same class with the same fields."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead import errors
from fairlead.errors import FairleadError

_MAX_TEXT = 2000


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    code: str
    message: str
    fields: dict[str, Any] = {}


def fault_of(error: BaseException) -> Fault:
    """The parts of an error that a client may see. For an exception that is not a `FairleadError`, only that
    it happened.
    """
    if not isinstance(error, FairleadError):
        return Fault("broken_invariant", "the server met an error it did not expect; its log has the details")
    return Fault(error.code, error.message, {name: _plain(value) for name, value in error.fields.items()})


def error_of(fault: Fault) -> FairleadError:
    """The error with that code. An unknown code, from a newer server, becomes `Unavailable`."""
    kind = _BY_CODE.get(fault.code, errors.Unavailable)
    error = kind.__new__(kind)
    # Bypass the class's own __init__: it would build the message from its arguments, and the message exists
    # already.
    FairleadError.__init__(error, fault.message, **fault.fields)
    return error


def _plain(value: object) -> object:
    """A field as a small value. Other types become text, and long text is cut."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return value[:_MAX_TEXT]
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return [item[:_MAX_TEXT] for item in value[:100]]
    return repr(value)[:_MAX_TEXT]


def _all_errors(kind: type[FairleadError] = FairleadError) -> dict[str, type[FairleadError]]:
    return {kind.code: kind} | {
        code: found for below in kind.__subclasses__() for code, found in _all_errors(below).items()
    }


_BY_CODE = _all_errors()
