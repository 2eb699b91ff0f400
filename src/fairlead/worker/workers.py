"""Several workers of one runbook in one process: started, changed and stopped together."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Sequence
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
    """Those named, or all that the runbook has. `base` is where commands run and where modules are looked for
    first.

    Raises, before anything is claimed, what is wrong with a worker: `WorkerNotFound`, `EngineNotInstalled`.
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
        self._who = f"{socket.gethostname()[:64]}:{os.getpid()}:{secrets.token_hex(3)}"
        self.loops: dict[str, WorkerLoop] = {}
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
        for loop in (*self.loops.values(), *self._leaving):
            loop.stop(hurry=hurry)

    def wait(self, timeout_s: float) -> bool:
        """Until all have ended, or the time is over. When one fails the others are stopped; `check` says what
        it was.

        One that leaves is no concern of the others: its queue may be gone as well.
        """
        deadline = time.monotonic() + timeout_s
        for loop in (*self.loops.values(), *self._leaving):
            loop.join(max(0.0, deadline - time.monotonic()))
        for loop in {loop for loop in self._leaving if loop.error is not None} - self._failed_leavers:
            self._failed_leavers.add(loop)
            _log.warning(
                "a worker that leaves ended early",
                extra={"fields": {"worker": loop.job.name, "why": str(loop.error)}},
            )
        if not self._stopping and self.error is not None:
            self.stop()
        return all(loop.join(0) for loop in (*self.loops.values(), *self._leaving))

    @property
    def error(self) -> BaseException | None:
        return next((loop.error for loop in self.loops.values() if loop.error is not None), None)

    @property
    def has_no_worker(self) -> bool:
        """Nobody works, because the runbook has no worker now; the next one may."""
        return not self.loops and not self._stopping and not self._burst

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def change(self, runbook: Runbook) -> None:
        """Be what another runbook says. Workers that are no longer in it finish what they have; nothing is
        dropped.

        One that asks for an engine that is not here changes nothing, and is said in the log. A `stop` may
        come in between, from the handler of a signal.
        """
        if self._stopping:
            return
        try:
            jobs = {job.name: job for job in self._jobs(runbook, gone=True)}
        except EngineNotInstalled as error:
            _log.error(
                "the changed runbook cannot be run here, going on with the old one",
                extra={"fields": {"error": str(error)}},
            )
            return
        for name, loop in list(self.loops.items()):
            job = jobs.pop(name, None)
            if job is None or (job.queue, job.external) != (loop.job.queue, loop.job.external):
                loop.stop()
                self._leaving.append(self.loops.pop(name))
                _log.info("worker leaves", extra={"fields": {"worker": name}})
                if job is None:
                    continue
                self._add(job)
                self.loops[name].start()
            elif job != loop.job:
                loop.change(job)
                _log.info(
                    "worker changes",
                    extra={
                        "fields": {"worker": name, "concurrency": self._concurrency or job.spec.concurrency}
                    },
                )
        for job in jobs.values():
            self._add(job)
            self.loops[job.name].start()
            _log.info("worker joins", extra={"fields": {"worker": job.name}})
        if not self.loops:
            _log.warning("the runbook has no worker to run any longer")
        if self._stopping:
            self.stop()  # those too that have joined since

    @property
    def counts(self) -> WorkerCounts:
        return sum((loop.counts for loop in (*self.loops.values(), *self._leaving)), WorkerCounts())

    def _add(self, job: Job) -> None:
        consumer = f"{job.name}@{self._who}".encode()[-MAX_CONSUMER_BYTES:].decode("utf-8", "ignore")
        target = self._target if job.external is None else source_of(self._target, job)
        self.loops[job.name] = WorkerLoop(
            target,
            job,
            consumer=consumer,
            burst=self._burst,
            grace_s=self._grace_s,
            concurrency=self._concurrency,
        )

    def _jobs(self, runbook: Runbook, *, gone: bool = False) -> list[Job]:
        """`gone` allows that a worker that was named is in the runbook no longer."""
        if not runbook.workers and not gone:
            raise WorkerNotFound(self._names[0] if self._names else "any", [])
        names = [name for name in self._names if not gone or name in runbook.workers] or (
            [] if self._names else list(runbook.workers)
        )
        return [Job.of(runbook, name, self._base) for name in dict.fromkeys(names)]
