"""Which of the processes of a pipeline is what: told by their command lines, among those that carry its mark
in their environment.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from .switch import command_line, marked, parent_of

#: What a command line must contain, by kind. `worker` runs tasks; `sink` commits what they have staged;
#: `step` runs the steps of a runbook.
_SIGNS = {
    "jvm": ("org.apache.spark.deploy.SparkSubmit",),
    "executor": ("CoarseGrainedExecutorBackend",),
    "source": ("python_streaming_source_runner",),
    "worker": ("pyspark.daemon", "pyspark.worker"),
    "sink": ("pyspark.daemon", "python_streaming_sink_runner"),
    "step": ("fairlead.worker.child",),
}


def find(home: Path, kind: str) -> list[int]:
    """Of a daemon's processes those that work: its children, not the daemon itself."""
    found = [pid for pid in marked(home) if all(sign in command_line(pid) for sign in _SIGNS[kind])]
    if kind in ("worker", "sink"):
        return [pid for pid in found if _parent(pid) in found]
    return found


def kill_one(pids: list[int], chosen: int) -> bool:
    """SIGKILL to one of them; False when there is none, or it was gone already."""
    for pid in sorted(pids)[chosen % len(pids) :] if pids else []:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def _parent(pid: int) -> int:
    with suppress(OSError):
        return parent_of(pid)
    return 0
