"""Where steps print: a stream that drops what cannot be written, so that a full disk or a log reader that is gone
fails no message.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any

_STDOUT, _STDERR = 1, 2


class DroppingFile(io.FileIO):
    """Writes what it can, and claims to have written the rest."""

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        try:
            written = super().write(data)
        except OSError:
            return size
        # None: the descriptor does not block, and takes nothing now.
        return size if written is None else written


def print_to_stderr() -> None:
    """Both streams of this process go where the worker's log goes; its stdout is for its own result."""
    try:
        os.fstat(_STDERR)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _STDERR)
    os.dup2(_STDERR, _STDOUT)
    sys.stdout, sys.stderr = open_dropping(_STDOUT), open_dropping(_STDERR)


def open_dropping(fd: int) -> io.TextIOWrapper:
    raw = DroppingFile(fd, "wb", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )
