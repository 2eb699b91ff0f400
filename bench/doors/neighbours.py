"""Other work on the machine, and how to keep out of its way.

Beside other work two processes that take turns lose less than one that never sleeps, so a disturbed piece of
work is not merely slower, it is wrong: it is done again while there is time, and counted when there is none
left.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, process_time, sleep
from typing import TypeVar

from bench.doors.contender import Contender

_T = TypeVar("_T")

#: Cores that others may use; the kernel's own threads, which write our files back, need some of that.
_MOST = 0.25
_LOOK_S = 0.5


class Neighbours:
    """`patience_s` is for all pieces together: waiting for quiet, and what was done in vain."""

    def __init__(self, present: Sequence[Contender], patience_s: float) -> None:
        self._present = present
        self._left_s = patience_s
        self.pieces = 0
        #: Pieces that were kept although somebody else was at work.
        self.disturbed = 0
        #: In the minute before each piece.
        self.loads: list[float] = []

    def undisturbed(self, work: Callable[[], _T]) -> _T:
        self.pieces += 1
        self.loads.append(os.getloadavg()[0])
        while True:
            self._wait_for_quiet()
            began, others = monotonic(), self._others_cpu_s()
            done = work()
            took_s = monotonic() - began
            if self._others_cpu_s() - others <= _MOST * took_s:
                return done
            self._left_s -= took_s
            if self._left_s <= 0:
                self.disturbed += 1
                return done

    def _wait_for_quiet(self) -> None:
        while self._left_s > 0:
            others = self._others_cpu_s()
            sleep(_LOOK_S)
            if self._others_cpu_s() - others <= _MOST * _LOOK_S:
                return
            self._left_s -= _LOOK_S

    def _others_cpu_s(self) -> float:
        """CPU time that neither this process nor the servers it measures have used, nor were given by the
        host.
        """
        user, nice, system, _idle, _waiting, irq, softirq, steal = map(
            int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
        )
        busy_s = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        return busy_s - process_time() - sum(one.server_cpu_s() for one in self._present)
