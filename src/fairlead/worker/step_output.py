"""Where steps print: a stream that drops what cannot be written.

So a full disk or a log reader that is gone fails no message.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_STDOUT, _STDERR = 1, 2


class DroppingFile(io.FileIO):
    """Writes what it can and reports everything as written."""

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        try:
            written = super().write(data)
        except OSError:
            return size
        # None: a non-blocking descriptor that accepts nothing now.
        return size if written is None else written


def print_to_stderr() -> None:
    """Send both output streams of this process to stderr, like the worker's log. The worker's stdout is for
    its result.
    """
    try:
        os.fstat(_STDERR)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _STDERR)
    os.dup2(_STDERR, _STDOUT)
    # Neither stream uses descriptor 1: `printing_to_stderr` restores it while a thread may still print.
    sys.stdout, sys.stderr = open_dropping(_STDERR), open_dropping(_STDERR)


@contextmanager
def printing_to_stderr() -> Iterator[None]:
    """The same until the end of the block, for a process whose own threads run steps."""
    sys.stdout.flush()
    stdout, stderr, result_fd = sys.stdout, sys.stderr, os.dup(_STDOUT)
    print_to_stderr()
    try:
        yield
    finally:
        os.dup2(result_fd, _STDOUT)
        os.close(result_fd)
        sys.stdout, sys.stderr = stdout, stderr


def open_dropping(fd: int) -> io.TextIOWrapper:
    raw = DroppingFile(fd, "wb", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )
