"""The keys of the runtime configuration that the engine interprets. All other keys belong to users."""

from __future__ import annotations

import math

from fairlead.errors import InvalidRequest
from fairlead.model.durations import to_ms
from fairlead.model.limits import MAX_WEIGHT
from fairlead.model.names import check_queue_name

THROTTLE = "throttle:"
WEIGHT = "weight:"
#: Fila's spelling of a throttle: `throttle.<key>` = `<rate>,<burst>`. Every door accepts it and stores our
#: two keys.
FILA_THROTTLE = "throttle."

_MOST = 1e9
_MAX_RETURNS = 1_000_000


def throttle_entries(throttle_key: str) -> tuple[str, str]:
    """The configuration keys of the throttle's rate and burst."""
    return f"{THROTTLE}{throttle_key}:rate", f"{THROTTLE}{throttle_key}:burst"


def closing_entries(throttle_key: str) -> tuple[str, str]:
    """The configuration keys of the longest time that a message may close the throttle, and of how often a
    message may return.
    """
    return f"{THROTTLE}{throttle_key}:max_closed", f"{THROTTLE}{throttle_key}:max_returns"


def stored_keys(key: str) -> tuple[str, ...]:
    """The keys under which a value is stored. A throttle in Fila's spelling has two: its rate and its burst."""
    if not key.startswith(FILA_THROTTLE):
        return (key,)
    name = key.removeprefix(FILA_THROTTLE)
    if not name:
        raise InvalidRequest("key", "throttle.<key>", key)
    return throttle_entries(name)


def stored_entries(key: str, value: str) -> dict[str, str]:
    """The checked entries to store for a key and its value.

    The burst comes before the rate: a new throttle starts with `rate` tokens, and then has its burst.
    """
    if not key.startswith(FILA_THROTTLE):
        check_meaning(key, value)
        return {key: value}
    rate_key, burst_key = stored_keys(key)
    rate, _, burst = [part.strip() for part in value.partition(",")]
    try:
        check_meaning(rate_key, rate)
        check_meaning(burst_key, burst)
    except InvalidRequest as wrong:
        field = wrong.field.rpartition(":")[2]
        raise InvalidRequest(key, f"'<rate>,<burst>', with {wrong.expected} as {field}", value) from None
    return {burst_key: burst, rate_key: rate}


def check_meaning(key: str, value: str) -> None:
    """Refuse an invalid throttle or weight. Values of other keys are not checked."""
    if key.startswith(THROTTLE):
        name, _, field = key.removeprefix(THROTTLE).rpartition(":")
        if not name or field not in ("rate", "burst", "max_closed", "max_returns"):
            expected = "throttle:<key>:rate, throttle:<key>:burst, throttle:<key>:max_closed or throttle:<key>:max_returns"
            raise InvalidRequest("key", expected, key)
        if field == "max_closed":
            to_ms(value, key)
        elif field == "max_returns":
            _check_whole(key, value, 0, _MAX_RETURNS)
        else:
            lowest = 0 if field == "rate" else 1
            if not lowest <= _number(value) <= _MOST:
                raise InvalidRequest(key, f"a number from {lowest} to 1e9", value)
    elif key.startswith(WEIGHT):
        queue_name, colon, fairness_key = key.removeprefix(WEIGHT).partition(":")
        if not colon or not fairness_key:
            raise InvalidRequest("key", "weight:<queue>:<fairness key>", key)
        check_queue_name(queue_name)
        _check_whole(key, value, 1, MAX_WEIGHT)


def _check_whole(key: str, value: str, lowest: int, highest: int) -> None:
    # Python refuses to convert texts of more than four thousand digits.
    if not value.isascii() or not value.isdigit() or len(value) > 10 or not lowest <= int(value) <= highest:
        raise InvalidRequest(key, f"a whole number from {lowest} to {highest}", value)


def _number(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        return -1
    return number if math.isfinite(number) else -1
