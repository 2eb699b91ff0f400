"""What a broker was asked by a query: a line before each call takes effect, and a line after it did.

The server writes it, outside of everything that is killed with the driver; it outlives the server too,
because each line is one `os.write`. The order of lines is an order in which things can have happened.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.crash.journal import Line, make_payload, read_journal, read_tag

SOURCE, SINK, CONSUMER = "source", "sink", "etl"
#: What the transform puts before a payload on its way from the source to the sink.
DONE = b"done:"


class Ledger:
    """Numbers are unique among servers that follow each other, because each brings its own process id."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def begin(self, do: str, **fields: Any) -> str:
        with self._lock:
            op = f"{os.getpid()}-{next(self._numbers)}"
        self.write(ev="begin", op=op, do=do, **fields)
        return op

    def done(self, op: str, do: str, **fields: Any) -> None:
        self.write(ev="done", op=op, do=do, **fields)

    def refused(self, op: str, do: str, error: BaseException) -> None:
        self.write(
            ev="refused", op=op, do=do, error=f"{getattr(error, 'code', type(error).__name__)}: {error}"
        )

    def write(self, **line: Any) -> None:
        line["at"] = time.time_ns() // 1_000_000
        # A line end on both sides: what a killed server wrote last may be torn, and must not spoil the next
        # line.
        os.write(self._fd, b"\n" + json.dumps(line, separators=(",", ":")).encode() + b"\n")


def read_ledger(path: Path) -> list[Line]:
    return list(read_journal(path))


def count_lines(path: Path) -> int:
    """Much cheaper than to read them."""
    return path.read_bytes().count(b"\n{")


def name_message(index: int) -> str:
    """Names sort as they were sent."""
    return f"m{index:06}"


def body_of(tag: str) -> bytes:
    return make_payload(tag, 40)


def tags_of(payloads: Iterable[bytes]) -> list[str]:
    """Of messages in the source."""
    return [read_tag(payload) for payload in payloads]


def sink_tag(payload: bytes) -> str:
    """Of a message in the sink: one that was not transformed, or twice, gives a tag that nobody ever sent."""
    return (
        read_tag(payload.removeprefix(DONE))
        if payload.startswith(DONE)
        else "untransformed:" + read_tag(payload)
    )
