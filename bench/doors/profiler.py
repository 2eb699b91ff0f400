"""CPU time by function over all Python threads of a process, and by thread over all others.

One cProfile for each thread, told the CPU clock of that thread, so that waiting for a socket or for the
interpreter counts nothing. Reading that clock costs a microsecond, which makes small functions look dearer
than they are: compare shares, not sums. What is not written in Python counts as part of its caller, because a
clock read around each `len` would drown the rest.
"""

from __future__ import annotations

import cProfile
import os
import sys
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec


class Function(msgspec.Struct, frozen=True):
    """`own` and `total` are CPU seconds without and with what it called."""

    calls: int
    own: float
    total: float


class Snapshot(msgspec.Struct, frozen=True):
    """Since the process began: `threads` has the CPU seconds by thread name, for those that run no Python
    too.
    """

    functions: dict[str, Function]
    threads: dict[str, float]


class Profiler(AbstractContextManager["Profiler"]):
    """Profiles the thread that enters it until it leaves, every thread started meanwhile, and calls wrapped
    by `wrap`.
    """

    def __init__(self) -> None:
        if sys.version_info >= (3, 12):
            raise SystemExit(
                "expected Python 3.11: from 3.12 on, cProfile looks at one thread of a process only"
            )
        self._profiles: list[cProfile.Profile] = []
        self._own = self._make()

    def __enter__(self) -> Profiler:
        threading.setprofile(self._begin)
        self._own.enable()
        return self

    def __exit__(self, *_: object) -> None:
        self._own.disable()
        threading.setprofile(None)  # type: ignore[arg-type]

    def snapshot(self) -> Snapshot:
        functions: dict[str, Function] = {}
        for profile in list(self._profiles):
            for entry in profile.getstats():
                label = _label(entry.code)
                seen = functions.get(label, Function(0, 0.0, 0.0))
                functions[label] = Function(
                    seen.calls + entry.callcount, seen.own + entry.inlinetime, seen.total + entry.totaltime
                )
        return Snapshot(functions, cpu_by_thread(os.getpid()))

    def _make(self) -> cProfile.Profile:
        profile = cProfile.Profile(time.thread_time, builtins=False)
        self._profiles.append(profile)
        return profile

    def _begin(self, _frame: FrameType, _event: str, _argument: object) -> None:
        """The first call of a new thread comes here; its own profile takes over."""
        self._make().enable()


def between(before: Snapshot, after: Snapshot) -> Snapshot:
    nothing = Function(0, 0.0, 0.0)
    functions = {}
    for name, late in after.functions.items():
        early = before.functions.get(name, nothing)
        functions[name] = Function(late.calls - early.calls, late.own - early.own, late.total - early.total)
    return Snapshot(
        functions, {name: cpu - before.threads.get(name, 0.0) for name, cpu in after.threads.items()}
    )


def cpu_by_thread(pid: int) -> dict[str, float]:
    """Threads of the same name together."""
    found: dict[str, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
        except FileNotFoundError:
            continue
        fields = rest.split()
        found[name] = found.get(name, 0.0) + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def _label(code: Any) -> str:
    if isinstance(code, str):
        return code
    where = "/".join(Path(code.co_filename).parts[-2:])
    return f"{where}:{code.co_firstlineno} {code.co_qualname}"
