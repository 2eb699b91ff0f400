"""A runbook with one worker, run in this process or by the command line in a process that can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fairlead
from fairlead.runbook.model import PipelineSpec, QueueSpec, Runbook, StepSpec, WorkerSpec
from fairlead.worker.workers import Workers
from tests.docs.pages import ROOT

#: Generous: a condition that comes true ends the wait at once.
PATIENCE_S = 60.0
QUEUE = "work"

_FAIRLEAD = (sys.executable, "-c", "from fairlead.cli import main; main()")


def until(condition: Callable[[], Any], what: str = "the condition") -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true")
        time.sleep(0.005)
    return found


def step(name: str, function: str = "", **options: Any) -> StepSpec:
    return StepSpec(name, run=f"tests.worker.steps:{function or name}", **options)


def command(name: str, *argv: str, **options: Any) -> StepSpec:
    return StepSpec(name, command=argv, **options)


def runbook(*steps: StepSpec, **worker: Any) -> Runbook:
    spec = WorkerSpec("worker", QUEUE, "pipeline", **worker)
    return Runbook(
        None, {QUEUE: QueueSpec(QUEUE)}, {"pipeline": PipelineSpec("pipeline", steps)}, {"worker": spec}
    )


def push(target: Any, *items: dict[str, Any], **fields: Any) -> list[str]:
    return target.enqueue_many(
        QUEUE,
        [
            fairlead.NewMessage(json.dumps(item).encode(), stream=item.get("stream"), **fields)
            for item in items
        ],
    )


@contextmanager
def working(target: Any, book: Runbook, **options: Any) -> Iterator[Workers]:
    """Run workers, and stop them in a hurry at the end."""
    workers = Workers(target, book, base=ROOT, **options)
    workers.start()
    try:
        yield workers
    finally:
        workers.stop(hurry=True)
        assert workers.wait(PATIENCE_S)


def burst(target: Any, book: Runbook, **options: Any) -> Workers:
    """Work until nothing is ready."""
    workers = Workers(target, book, base=ROOT, burst=True, **options)
    workers.start()
    assert workers.wait(PATIENCE_S), "the burst did not end"
    workers.check()
    return workers


class WorkerProcess:
    """`fairlead worker run` at a server, with a runbook file that is not in force there."""

    def __init__(self, address: str, file: Path, *options: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
        self.process = subprocess.Popen(
            [*_FAIRLEAD, "-o", "json", "worker", "run", "--addr", address, "--file", str(file), *options],
            env={**environment, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=PATIENCE_S)

    def stop(self) -> tuple[int, dict[str, Any]]:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> tuple[int, dict[str, Any]]:
        out, err = self.process.communicate(timeout=PATIENCE_S)
        assert out, err
        return self.process.returncode, json.loads(out)


@contextmanager
def worker_process(address: str, file: Path, *options: str) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(address, file, *options)
    try:
        yield worker
    finally:
        if worker.process.poll() is None:
            worker.kill()


def toml(*steps: str, worker: str = "") -> str:
    """A runbook file as a user would write it. `steps` are inline tables."""
    return f"""
[queue.work]
type = "persisted"
vars = ["n"]
visibility_timeout = "1s"
retry = {{ policy = "immediate", attempts = 20 }}

[pipeline.pipeline]
steps = [{", ".join(steps)}]

[worker.worker]
queue = "work"
pipeline = "pipeline"
{worker}
"""
