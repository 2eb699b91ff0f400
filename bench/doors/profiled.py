"""`python -m bench.doors.profiled`: `fairlead serve` under a profiler that tells what it saw when asked.

To ask, put a file `ask` into the directory named by `BENCH_PROFILE`; `told` is there when it was answered.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from time import monotonic, sleep

import msgspec

from bench.doors.profiler import Profiler, Snapshot

DIRECTORY = "BENCH_PROFILE"
COMMAND = (sys.executable, "-m", "bench.doors.profiled", "serve", "-o", "json")
_POLL_S = 0.05
_PATIENCE_S = 30.0


def ask(directory: Path) -> Snapshot:
    told = directory / "told"
    told.unlink(missing_ok=True)
    (directory / "ask").touch()
    deadline = monotonic() + _PATIENCE_S
    while not told.exists():
        if monotonic() > deadline:
            raise TimeoutError("the profiled server does not answer")
        sleep(_POLL_S)
    return msgspec.json.decode(told.read_bytes(), type=Snapshot)


def _answer(profiler: Profiler, directory: Path) -> None:
    question = directory / "ask"
    while True:
        if question.exists():
            question.unlink()
            draft = directory / "draft"
            draft.write_bytes(msgspec.json.encode(profiler.snapshot()))
            draft.rename(directory / "told")
        sleep(_POLL_S)


def main() -> None:
    from fairlead.cli import main as run

    profiler = Profiler()
    threading.Thread(target=_answer, args=(profiler, Path(os.environ[DIRECTORY])), daemon=True).start()
    with profiler:
        run()


if __name__ == "__main__":
    main()
