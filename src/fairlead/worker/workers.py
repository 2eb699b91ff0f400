"""Several workers of one runbook in one process: started, changed and stopped together."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from fairlead.errors import EngineNotInstalled, WorkerNotFound
from fairlead.model.limits import MAX_CONSUMER_BYTES
from fairlead.runbook.model import Runbook
from fairlead.surface import Surface
from fairlead.worker.counts import WorkerCounts
from fairlead.worker.external import source_of
from fairlead.worker.job import Job
from fairlead.worker.loop import WorkerLoop

_log = logging.getLogger("fairlead.worker")


class Workers:
    """The named workers of a runbook, or all of them. `base`: the directory of commands and of Python
    modules.

    Raises `WorkerNotFound` or `EngineNotInstalled` before anything is claimed.
    """

    def __init__(
        self,
        target: Surface,
        runbook: Runbook,
        names: Sequence[str] = (),
        *,
        base: str | Path = ".",
        burst: bool = False,
        grace_s: float = 30.0,
        concurrency: int | None = None,
    ) -> None:
        self._target = target
        self._names = tuple(names)
        self._base = str(Path(base).resolve())
        self._burst = burst
        self._grace_s = grace_s
        self._concurrency = concurrency
        self._process_name = f"{socket.gethostname()[:64]}:{os.getpid()}:{secrets.token_hex(3)}"
        self.loops: dict[str, WorkerLoop] = {}
        #: Loops of workers that the runbook no longer has; they finish what they hold.
        self._leaving: list[WorkerLoop] = []
        self._failed_leavers: set[WorkerLoop] = set()
        self._stopping = False
        for job in self._jobs(runbook):
            self._add(job)

    def start(self) -> None:
        for loop in self.loops.values():
            loop.start()

    def stop(self, *, hurry: bool = False) -> None:
        self._stopping = True
        for loop in self._all_loops():
            loop.stop(hurry=hurry)

    def wait(self, timeout_s: float) -> bool:
        """Wait until all workers have ended. Returns False after the timeout.

        When one worker fails, the others are stopped, and `check` raises its error. A leaving worker that
        fails stops no other: its queue may be gone too.
        """
        deadline = time.monotonic() + timeout_s
        for loop in self._all_loops():
            loop.join(max(0.0, deadline - time.monotonic()))
        for loop in {loop for loop in self._leaving if loop.error is not None} - self._failed_leavers:
            self._failed_leavers.add(loop)
            fields = {"worker": loop.job.name, "why": str(loop.error)}
            _log.warning("a worker that leaves ended early", extra={"fields": fields})
        if not self._stopping and self.error is not None:
            self.stop()
        return all(loop.join(0) for loop in self._all_loops())

    @property
    def error(self) -> BaseException | None:
        return next((loop.error for loop in self.loops.values() if loop.error is not None), None)

    @property
    def has_no_worker(self) -> bool:
        """Whether the runbook has no worker to run now; a later one may."""
        return not self.loops and not self._stopping and not self._burst

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def change(self, runbook: Runbook) -> None:
        """Run the workers of another runbook. Workers that it no longer has finish what they hold.

        A runbook with a worker for an engine that is not installed changes nothing and is logged. A signal
        handler may call `stop` while this method runs.
        """
        if self._stopping:
            return
        jobs = self._jobs_after_change(runbook)
        if jobs is None:
            return
        for name, loop in list(self.loops.items()):
            job = jobs.pop(name, None)
            if job is None or (job.queue, job.external) != (loop.job.queue, loop.job.external):
                self._replace(name, job)
            elif job != loop.job:
                loop.change(job)
                size = self._concurrency or job.spec.concurrency
                _log.info("worker changes", extra={"fields": {"worker": name, "concurrency": size}})
        self._join(jobs.values())
        if not self.loops:
            _log.warning("the runbook has no worker to run any longer")
        if self._stopping:
            self.stop()  # also the workers that have joined since

    @property
    def counts(self) -> WorkerCounts:
        return sum((loop.counts for loop in self._all_loops()), WorkerCounts())

    def _all_loops(self) -> list[WorkerLoop]:
        return [*self.loops.values(), *self._leaving]

    def _jobs_after_change(self, runbook: Runbook) -> dict[str, Job] | None:
        """By name; None for a runbook that cannot be run here."""
        try:
            return {job.name: job for job in self._jobs(runbook, may_be_missing=True)}
        except EngineNotInstalled as error:
            _log.error(
                "the changed runbook cannot be run here, going on with the old one",
                extra={"fields": {"error": str(error)}},
            )
            return None

    def _join(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._add(job)
            self.loops[job.name].start()
            _log.info("worker joins", extra={"fields": {"worker": job.name}})

    def _replace(self, name: str, job: Job | None) -> None:
        """Let a worker leave, and start another one of its name for the queue of `job`."""
        leaving = self.loops.pop(name)
        leaving.stop()
        self._leaving.append(leaving)
        _log.info("worker leaves", extra={"fields": {"worker": name}})
        if job is not None:
            self._add(job)
            self.loops[name].start()

    def _add(self, job: Job) -> None:
        consumer = f"{job.name}@{self._process_name}".encode()[-MAX_CONSUMER_BYTES:].decode("utf-8", "ignore")
        self.loops[job.name] = WorkerLoop(
            self._target if job.external is None else source_of(self._target, job),
            job,
            consumer=consumer,
            burst=self._burst,
            grace_s=self._grace_s,
            concurrency=self._concurrency,
        )

    def _jobs(self, runbook: Runbook, *, may_be_missing: bool = False) -> list[Job]:
        """`may_be_missing` leaves out named workers that the runbook does not have."""
        if not runbook.workers and not may_be_missing:
            raise WorkerNotFound(self._names[0] if self._names else "any", [])
        names = list(self._names or runbook.workers)
        if may_be_missing:
            names = [name for name in names if name in runbook.workers]
        return [Job.of(runbook, name, self._base) for name in dict.fromkeys(names)]
