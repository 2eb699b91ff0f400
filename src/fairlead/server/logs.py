"""Structured logs on stderr by the standard `logging`: one event for each line, as text or as JSON.

Logs contain nothing that users send: `event` takes named fields that its caller chose, and the text of an
exception is shown only if it is known to quote no request. Everything that logs through the standard library
has the same form.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from fairlead.config import LogSettings
from fairlead.errors import BrokenInvariant, FairleadError, Unavailable
from fairlead.server.repeats import Repeats


def event(log: logging.Logger, level: int, name: str, /, **fields: object) -> None:
    """`event(log, logging.INFO, "stopping", grace_ms=10000)`. Never a payload, a header or script text."""
    if log.isEnabledFor(level):
        log.log(level, name, extra={"fields": fields})


def set_up(
    settings: LogSettings, stream: TextIO | None = None, *, repeats: Repeats | None = None
) -> logging.Handler:
    """Send all logs of this process through one handler; those of other libraries only from warning on.

    With `repeats`, repeated lines are counted.
    """
    handler = (
        logging.StreamHandler(stream or sys.stderr)
        if repeats is None
        else CountingHandler(stream or sys.stderr, repeats)
    )
    handler.setFormatter(Lines(settings.format))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("fairlead").setLevel(settings.level.upper())
    logging.captureWarnings(True)
    return handler


class CountingHandler(logging.StreamHandler[TextIO]):
    """Writes a repeated line once, and its count after each window or when the process ends."""

    def __init__(self, stream: TextIO, repeats: Repeats) -> None:
        super().__init__(stream)
        self._repeats = repeats
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Called under the lock of the handler."""
        self._write_counts()
        if not self._repeats.is_repeat(record, _now_ms()):
            super().emit(record)
        elif self._timer is None:
            self._set_timer()

    def close(self) -> None:
        with self.lock or nullcontext():
            if self._timer is not None:
                self._timer.cancel()
            for record in self._repeats.rest():
                super().emit(record)
        super().close()

    def _set_timer(self) -> None:
        self._timer = threading.Timer(self._repeats.window_ms / 1000, self._on_timer)
        self._timer.daemon = True
        try:
            self._timer.start()
        except RuntimeError:
            # No more threads can be started. The next line, or the end of the process, writes the count.
            self._timer = None

    def _on_timer(self) -> None:
        with self.lock or nullcontext():
            self._timer = None
            self._write_counts()
            if self._repeats.pending:
                self._set_timer()

    def _write_counts(self) -> None:
        for record in self._repeats.due(_now_ms()):
            super().emit(record)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Lines(logging.Formatter):
    def __init__(self, form: Literal["text", "json"]) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        at = (
            datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
        fields: dict[str, object] = dict(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = safe_text(record.exc_info[1])
            fields["at"] = _frames(record.exc_info[1])
        level, name = record.levelname.lower(), _message(record)
        if self._form == "json":
            line = {"time": at, "level": level, "event": name, "logger": record.name, **fields}
            return json.dumps(line, default=str, ensure_ascii=False)
        return " ".join(
            [
                at,
                f"{level:<7}",
                _one_line(name),
                *(f"{key}={_quoted(value)}" for key, value in fields.items()),
            ]
        )


def safe_text(error: BaseException) -> str:
    """An error without what a user may have sent: the message of a refused request quotes it, and so may any
    library's.
    """
    if isinstance(error, (Unavailable, BrokenInvariant)):
        return f"{error.code}: {error.message}"
    if isinstance(error, FairleadError):
        return error.code
    if isinstance(error, OSError):
        return f"{type(error).__name__}: {error}"
    return type(error).__name__


def _message(record: logging.LogRecord) -> str:
    args = record.args
    if isinstance(args, Mapping):
        args = {key: _safe(value) for key, value in args.items()}
    elif args:
        args = tuple(_safe(value) for value in args)
    return str(record.msg) % args if args else str(record.msg)


def _safe(value: Any) -> Any:
    return safe_text(value) if isinstance(value, BaseException) else value


def _frames(error: BaseException) -> str:
    """Innermost last, as module files and lines: enough to find the place, and no values."""
    frames = traceback.extract_tb(error.__traceback__)
    return " > ".join(
        f"{'/'.join(frame.filename.split('/')[-2:])}:{frame.lineno} {frame.name}" for frame in frames[-12:]
    )


def _quoted(value: object) -> str:
    text = _one_line(str(value))
    return f'"{text}"' if re.search(r'[\s="]', text) or not text else text


def _one_line(text: str) -> str:
    return (
        text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        if "\n" in text or "\r" in text
        else text
    )
