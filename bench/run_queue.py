"""Processor time of a thread, and how long it was ready to run and had no core: on a busy machine most of a
wait is the latter. Linux counts both; elsewhere both are 0.
"""

from __future__ import annotations

import os
from typing import NamedTuple


class Spent(NamedTuple):
    cpu_s: float
    #: In the run queue of the kernel.
    queued_s: float


class ThreadTimes:
    """Of one thread of this process, which may have ended: then as it was when last read."""

    def __init__(self, native_id: int | None) -> None:
        self._last = Spent(0.0, 0.0)
        try:
            self._file: int | None = os.open(f"/proc/self/task/{native_id}/schedstat", os.O_RDONLY)
        except OSError:
            self._file = None

    def read(self) -> Spent:
        if self._file is not None:
            try:
                cpu_ns, queued_ns, _ = os.pread(self._file, 100, 0).split()
                self._last = Spent(int(cpu_ns) / 1e9, int(queued_ns) / 1e9)
            except (OSError, ValueError):
                self.close()
        return self._last

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
