"""Detects log lines that repeat an earlier one, so that the log has one line and a count instead of
thousands.

Two lines are the same if they have the same logger, level and text, the same fields except `peer`, and, for
errors, an error of the same kind from the same line of code. So a flood from many ports, or the same fault
many times, becomes one line a minute; the same event for another limit, door, file or verb, or another error,
keeps a line of its own. Numbers among the arguments of a text are counts and not part of the key. Critical
lines always pass, and so do debug lines.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Mapping

#: How often a repeated line is written, with the count since the last time.
WINDOW_MS = 60_000
#: Distinct lines that are remembered. A flood with varying lines ends the oldest early, so that it is counted
#: less exactly.
MAX_REMEMBERED = 1000
#: Fields that identify the client and not the event.
_WHO = frozenset({"peer"})


class Repeats:
    """Pure counting: the caller provides the time and writes the lines. Used under the lock of a handler."""

    def __init__(self, window_ms: int = WINDOW_MS, max_remembered: int = MAX_REMEMBERED) -> None:
        self.window_ms = window_ms
        self._max_remembered = max_remembered
        #: In the order in which their windows end.
        self._seen: dict[Hashable, _Seen] = {}

    def is_repeat(self, record: logging.LogRecord, now_ms: int) -> bool:
        """True if the line is only counted. Call `due` first and write what it returns."""
        if not logging.INFO <= record.levelno < logging.CRITICAL:
            return False
        key = key_of(record)
        seen = self._seen.get(key)
        if seen is None:
            self._seen[key] = _Seen(now_ms + self.window_ms)
            return False
        seen.count += 1
        seen.last = record
        return True

    def due(self, now_ms: int) -> Iterator[logging.LogRecord]:
        """The counts whose windows have ended, each as its last record. A line without repeats is forgotten."""
        while self._seen:
            key, seen = next(iter(self._seen.items()))
            if seen.ends_ms > now_ms and len(self._seen) < self._max_remembered:
                return
            del self._seen[key]
            if seen.last is not None:
                yield _counted(seen.last, seen.count)
                if seen.ends_ms <= now_ms:
                    self._seen[key] = _Seen(now_ms + self.window_ms)

    @property
    def pending(self) -> bool:
        """Whether a count waits for the end of its window."""
        return any(seen.count for seen in self._seen.values())

    def rest(self) -> Iterator[logging.LogRecord]:
        """All counts, at the end of the process."""
        seen, self._seen = self._seen, {}
        return (_counted(one.last, one.count) for one in seen.values() if one.last is not None)


def key_of(record: logging.LogRecord) -> Hashable:
    fields: Mapping[str, object] = getattr(record, "fields", {})
    told = tuple((name, str(value)) for name, value in fields.items() if name not in _WHO)
    return record.name, record.levelno, str(record.msg), told, _arguments(record.args), _error(record)


class _Seen:
    __slots__ = ("count", "ends_ms", "last")

    def __init__(self, ends_ms: int) -> None:
        self.ends_ms = ends_ms
        self.count = 0
        self.last: logging.LogRecord | None = None


def _counted(record: logging.LogRecord, count: int) -> logging.LogRecord:
    fields = {**getattr(record, "fields", {}), "repeats": count}
    return logging.makeLogRecord({**record.__dict__, "fields": fields})


def _arguments(args: object) -> Hashable:
    values = args if isinstance(args, tuple) else ()
    if isinstance(args, Mapping):
        values = tuple(args.values())
    return tuple(_kind(value) for value in values if not isinstance(value, (int, float)))


def _kind(value: object) -> Hashable:
    return (type(value), getattr(value, "code", None)) if isinstance(value, BaseException) else str(value)


def _error(record: logging.LogRecord) -> Hashable:
    error = record.exc_info[1] if record.exc_info else None
    if error is None:
        return None
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = None if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    return _kind(error), place
