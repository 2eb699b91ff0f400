"""Failure reasons, progress, and the record of each failure."""

from __future__ import annotations

from enum import IntEnum, IntFlag

import msgspec

from fairlead.errors import InvalidRequest
from fairlead.model.limits import KEPT_LAST_FAILURES, MAX_ERROR_BYTES, MAX_SHORT_ERROR_BYTES


class FailureReason(IntEnum):
    TRANSPORT_UNAVAILABLE = 1
    HANDLER_EXCEPTION = 2
    VALIDATION_FAILURE = 3
    TIMEOUT_EXCEEDED = 4
    SERIALIZATION_ERROR = 5
    DEPENDENCY_FAILURE = 6
    POISON_MESSAGE = 7
    UNKNOWN = 99

    @property
    def word(self) -> str:
        return self.name.lower()


class Progress(IntFlag):
    """Completed steps as bits, which are only ever added within a life. Bits without a name here belong to
    pipeline steps.
    """

    NONE = 0
    STORED = 1
    EVENT_STORED = 2
    PUBLISHED = 4
    FAILED = 32768


_BY_WORD = {reason.word: reason for reason in FailureReason}


def read_reason(value: object, field: str = "reason") -> FailureReason:
    if type(value) is FailureReason:
        return value
    if isinstance(value, str) and value in _BY_WORD:
        return _BY_WORD[value]
    if isinstance(value, int) and not isinstance(value, bool) and value in FailureReason._value2member_map_:
        return FailureReason(value)
    raise InvalidRequest(field, "one of " + ", ".join(_BY_WORD), value)


class FailureRecord(msgspec.Struct, frozen=True, array_like=True):
    """One failed try. `rule` names the rule that decided; `due_ms` is 0 unless the message has to wait."""

    at_ms: int
    attempt: int
    reason: int
    error: str
    consumer: str
    rule: str
    due_ms: int = 0


_CUT = " [cut by fairlead: error text is kept to 8 KiB]"


def bounded_error(text: str) -> str:
    """The error text, cut at 8 KiB of UTF-8 with a mark that says so. Characters stay whole."""
    if type(text) is str and text.isascii() and len(text) <= MAX_ERROR_BYTES:
        return text
    raw = text.encode("utf-8", "replace")
    if len(raw) <= MAX_ERROR_BYTES:
        return raw.decode("utf-8")
    return raw[: MAX_ERROR_BYTES - len(_CUT)].decode("utf-8", "ignore") + _CUT


_CUT_SHORT = " [cut by fairlead: the disk is below its reserve]"


def short_error(text: str) -> str:
    """The error text as it is stored while the disk is below its reserve. Characters stay whole."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= MAX_SHORT_ERROR_BYTES:
        return text
    return raw[: MAX_SHORT_ERROR_BYTES - len(_CUT_SHORT)].decode("utf-8", "ignore") + _CUT_SHORT


def remember_failure(
    kept: tuple[FailureRecord, ...], record: FailureRecord
) -> tuple[tuple[FailureRecord, ...], int]:
    """The records to keep, and the number of records dropped: the first and the last 31 are kept in full."""
    grown = (*kept, record)
    if len(grown) <= KEPT_LAST_FAILURES + 1:
        return grown, 0
    return (grown[0], *grown[-KEPT_LAST_FAILURES:]), len(grown) - KEPT_LAST_FAILURES - 1


def show_times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
