"""Durations as callers write them ("30s", "2m", timedelta), read as whole milliseconds, and durations as
text.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from fairlead.errors import InvalidRequest
from fairlead.model.limits import MAX_DURATION_MS

Duration = str | timedelta

_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TOKEN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_WHOLE = re.compile(rf"(?:{_TOKEN.pattern})+")


def to_ms(value: object, field: str) -> int:
    """Read a duration. A bare number is refused, because its unit is unknown."""
    if isinstance(value, timedelta):
        ms = round(value.total_seconds() * 1000)
    else:
        found = None
        if isinstance(value, str):
            found = _read_short(value) if len(value) <= _SHORT else _read_text(value)
        if found is None:
            raise InvalidRequest(field, 'a duration such as "30s" or "1h30m"', value)
        ms = found
    if not 0 <= ms <= MAX_DURATION_MS:
        raise InvalidRequest(field, "a duration between 0 and 10 years", value)
    return ms


def _read_text(text: str) -> int | None:
    if not _WHOLE.fullmatch(text.strip()):
        return None
    # A number of four hundred digits becomes an infinite float, which cannot be rounded.
    return round(
        min(sum(float(n) * _UNIT_MS[unit] for n, unit in _TOKEN.findall(text)), MAX_DURATION_MS + 1.0)
    )


#: Many messages bring the same few texts.
_read_short = lru_cache(maxsize=256)(_read_text)
_SHORT = 16


def show_ms(ms: int) -> str:
    """The shortest exact form that `to_ms` reads back: 90000 -> "1m30s"."""
    if ms == 0:
        return "0s"
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, ms = divmod(ms, _UNIT_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def show_time(at_ms: int) -> str:
    try:
        return (
            datetime.fromtimestamp(at_ms / 1000, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
