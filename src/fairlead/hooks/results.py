"""From a row of the hook host to a decision. Pure: the same row gives the same decision.

A row comes from a process that runs other people's code, so types, bounds and lengths are checked again here.
A value that can be corrected is corrected, any other is ignored; both are noted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from fairlead.hooks.calls import EnqueueDecision, FailureDecision, Outcome
from fairlead.hooks.wire import ERROR, MEMORY, OK, TIME
from fairlead.model.lane import DEFAULT_KEY
from fairlead.model.limits import MAX_DURATION_MS, MAX_KEY_BYTES, MAX_THROTTLE_KEYS, MAX_WEIGHT

_MAX_ERROR = 600
#: The number of fields of a row without throttle keys.
_PLAIN_FIELDS = 5
_NONE = type(None)
_SHOWN = 40
#: So many characters fit in a key whatever they are: one takes at most four bytes.
_SURELY_SHORT = MAX_KEY_BYTES // 4


def read_enqueue(row: Sequence[Any]) -> EnqueueDecision:
    """`row` is (OK, fairness key, weight, stream, whether there are throttle keys, each of them)."""
    _, key, weight, stream, has_throttles, *throttles = row
    notes: list[str] = []
    return EnqueueDecision(
        "ran",
        None if key is None else _text(key, "fairness_key", notes),
        None if weight is None else _weight(weight, notes),
        None if has_throttles is None else _throttle_keys(has_throttles, throttles, notes),
        None if stream is None else _text(stream, "stream", notes, may_be_empty=True),
        "",
        tuple(notes),
    )


def find_plain_enqueues(rows: Sequence[Sequence[Any]]) -> list[EnqueueDecision] | None:
    """`read_enqueue` of all rows by column, or None if a row has more than a valid key, a valid weight or
    neither.
    """
    if set(map(len, rows)) != {_PLAIN_FIELDS}:
        return None
    statuses, keys, weights, streams, has_throttles = zip(*rows, strict=True)
    if statuses.count(OK) < len(rows):
        return None
    if streams.count(None) < len(rows) or has_throttles.count(None) < len(rows):
        return None
    if not _are_valid_keys(keys) or not _are_valid_weights(weights):
        return None
    return [EnqueueDecision("ran", key, weight) for key, weight in zip(keys, weights, strict=True)]


def _are_valid_keys(keys: Sequence[Any]) -> bool:
    if not set(map(type, keys)) <= {str, _NONE}:
        return False
    lengths = {len(key) for key in keys if key is not None}
    return not lengths or (min(lengths) >= 1 and max(lengths) <= _SURELY_SHORT)


def _are_valid_weights(weights: Sequence[Any]) -> bool:
    if not set(map(type, weights)) <= {int, _NONE}:
        return False
    given = {weight for weight in weights if weight is not None}
    return not given or (min(given) >= 1 and max(given) <= MAX_WEIGHT)


def read_failure(row: Sequence[Any]) -> FailureDecision:
    """`row` is (OK, action, delay)."""
    _, action, delay = row
    notes: list[str] = []
    return FailureDecision(
        "ran", _action(action, notes), 0 if delay is None else _delay(delay, notes), "", tuple(notes)
    )


def enqueue_defaults(outcome: Outcome, error: str = "") -> EnqueueDecision:
    """The decision without a result. The caller's stream stays: dropping it would break the promised order."""
    return EnqueueDecision(outcome, DEFAULT_KEY, 1, (), None, error)


def failure_defaults(outcome: Outcome, error: str = "") -> FailureDecision:
    return FailureDecision(outcome, "retry", 0, error)


def what_went_wrong(row: Sequence[Any], *, timeout_ms: int, memory_bytes: int) -> str:
    """The error of a row whose status is not OK."""
    if not row:
        return unreadable(row)
    if row[0] == TIME:
        return f"stopped: used more instructions or CPU time than {timeout_ms} ms allow"
    if row[0] == MEMORY:
        return f"stopped: used more than {memory_bytes} bytes of memory"
    if row[0] == ERROR and len(row) > 1 and isinstance(row[1], str):
        return row[1][:_MAX_ERROR]
    return unreadable(row)


def unreadable(row: object) -> str:
    return f"the hook host gave an invalid result: {repr(row)[:100]}"


def is_ok(row: Sequence[Any]) -> bool:
    return bool(row) and row[0] == OK


def _text(value: Any, field: str, notes: list[str], *, may_be_empty: bool = False) -> str | None:
    if type(value) is str and 0 < len(value) <= _SURELY_SHORT:
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        notes.append(f"{field} is not text: ignored")
        return None
    if not value and not may_be_empty:
        notes.append(f"{field} is empty: ignored")
        return None
    if len(value) > _SURELY_SHORT and len(raw := value.encode()) > MAX_KEY_BYTES:
        notes.append(f"{field} of {len(raw)} bytes or more cut to {MAX_KEY_BYTES}")
        return raw[:MAX_KEY_BYTES].decode(errors="ignore")
    return value


def _weight(value: Any, notes: list[str]) -> int | None:
    if type(value) is int and 1 <= value <= MAX_WEIGHT:
        return value
    number = _number(value)
    if number is None or math.isnan(number):
        notes.append(f"weight {_show(value)} is not a number: ignored")
        return None
    bounded = _clamp(number, 1, MAX_WEIGHT)
    if bounded != number:
        notes.append(f"weight {_show(value)} -> {bounded}")
    return bounded


def _throttle_keys(has_throttles: Any, given: list[Any], notes: list[str]) -> tuple[str, ...] | None:
    if has_throttles is not True:
        notes.append("throttle_keys is not a list: ignored")
        return None
    if not given or given[0] is None:
        return ()
    if len(given) == 1:
        only = _text(given[0], "a throttle key", notes)
        return () if only is None else (only,)
    kept = {text for item in given if (text := _text(item, "a throttle key", notes)) is not None}
    if len(kept) > MAX_THROTTLE_KEYS:
        notes.append(f"{len(kept)} throttle keys or more cut to {MAX_THROTTLE_KEYS}")
    return tuple(sorted(kept)[:MAX_THROTTLE_KEYS])


def _action(value: Any, notes: list[str]) -> Literal["retry", "dlq"]:
    if value == "dlq":
        return "dlq"
    if value is None:
        notes.append("no action: retry")
    elif value != "retry":
        notes.append(f"unknown action {_show(value)}: retry")
    return "retry"


def _delay(value: Any, notes: list[str]) -> int:
    number = _number(value)
    if number is None or math.isnan(number):
        notes.append(f"delay_ms {_show(value)} is not a number: 0")
        return 0
    bounded = _clamp(number, 0, MAX_DURATION_MS)
    if bounded != number and not 0 <= number <= MAX_DURATION_MS:
        notes.append(f"delay_ms {_show(value)} -> {bounded}")
    return bounded


def _clamp(number: float, least: int, most: int) -> int:
    """The bound that the number exceeds, or the number rounded towards zero."""
    if number < least:
        return least
    if number > most:
        return most
    return int(number)


def _number(value: Any) -> int | float | None:
    """Like Lua, accept text that reads as a number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and len(value) <= _SHOWN:
        try:
            return float(value)
        except ValueError:
            return None
    return None


def _show(value: Any) -> str:
    if isinstance(value, str):
        return repr(value[:_SHOWN])
    return "of that type" if isinstance(value, bool) else str(value)
