"""`python -m bench.doors.held`: `fairlead serve` with a heartbeat on the event loop, which tells how long the loop was held.

A beat is due every millisecond. Where it is late, only so much of the delay counts as the threads of Python have used the
processor meanwhile: on a machine that others use too, a beat is late without any fault of the server's. To ask, put a file `ask`
into the directory named by `BENCH_HELD`; `told` is there when it was answered, with the beats since the last answer.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from time import clock_gettime, monotonic, perf_counter, pthread_getcpuclockid, sleep
from typing import Any

import msgspec

DIRECTORY = "BENCH_HELD"
COMMAND = (sys.executable, "-m", "bench.doors.held", "serve", "-o", "json")
_BEAT_S = 0.001
_POLL_S = 0.02
_PATIENCE_S = 30.0


def ask(directory: Path) -> list[float]:
    """For each beat, in milliseconds: how late it was, as far as this process was at work."""
    told = directory / "told"
    told.unlink(missing_ok=True)
    (directory / "ask").touch()
    deadline = monotonic() + _PATIENCE_S
    while not told.exists():
        if monotonic() > deadline:
            raise TimeoutError("the watched server does not answer")
        sleep(_POLL_S)
    return msgspec.json.decode(told.read_bytes(), type=list[float])


class _Heartbeat:
    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._held_ms: list[float] = []
        loop.call_soon_threadsafe(self._beat_later)

    def take(self) -> list[float]:
        held, self._held_ms = self._held_ms, []
        return held

    def _beat_later(self) -> None:
        self._due_s, self._cpu_s = perf_counter() + _BEAT_S, _cpu_s()
        self._loop.call_later(_BEAT_S, self._beat)

    def _beat(self) -> None:
        late_s, cpu_s = perf_counter() - self._due_s, _cpu_s() - self._cpu_s
        self._held_ms.append(round(1000 * max(0.0, min(late_s, cpu_s)), 3))
        self._beat_later()


def _cpu_s() -> float:
    """Of the threads of Python, without those of RocksDB, which hold no interpreter lock."""
    used_s = 0.0
    for thread in threading.enumerate():
        if thread.ident is not None:
            used_s += clock_gettime(pthread_getcpuclockid(thread.ident))
    return used_s


def _answer(heartbeats: list[_Heartbeat], directory: Path) -> None:
    question = directory / "ask"
    while True:
        if question.exists() and heartbeats:
            question.unlink()
            draft = directory / "draft"
            draft.write_bytes(msgspec.json.encode(heartbeats[0].take()))
            draft.rename(directory / "told")
        sleep(_POLL_S)


def main() -> None:
    from fairlead.cli import main as run
    from fairlead.server.event_loop import EventLoop

    heartbeats: list[_Heartbeat] = []
    start = EventLoop.start

    def start_and_watch(loop: EventLoop) -> None:
        start(loop)
        if not heartbeats:
            heartbeats.append(_Heartbeat(loop.loop))

    EventLoop.start = start_and_watch  # type: ignore[method-assign]
    threading.Thread(target=_answer, args=(heartbeats, Path(os.environ[DIRECTORY])), daemon=True).start()
    run()


if __name__ == "__main__":
    main()
