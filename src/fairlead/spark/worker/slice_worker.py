"""The worker loop of a Spark Python worker, kept from one task to the next: step processes are slow to start,
and a claim comes every few seconds.

The loop ends with its process, and so do its step processes. Spark gives a process one task at a time.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from fairlead.errors import Unavailable
from fairlead.spark.worker.slice_handler import SliceHandler
from fairlead.spark.worker.slice_queue import ClaimSlice, SliceTally
from fairlead.surface import ConsumersGroup
from fairlead.worker.counts import WorkerCounts
from fairlead.worker.job import Job
from fairlead.worker.loop import WorkerLoop

_POLL_S = 1.0
#: How long a stopped loop may take to end. By then its outcomes are lost, and its step processes are killed.
_STOP_S = 10.0
_MIN_PAUSE_S = 0.1
_MAX_PAUSE_S = 5.0

T = TypeVar("T")


class SliceResult(NamedTuple):
    """The outcomes recorded for a slice, and what the worker loop did for it."""

    recorded: SliceTally
    worked: WorkerCounts


class SliceWorker:
    """A worker loop and the handler of its requests. `key` identifies the job and the connection it is for."""

    def __init__(self, key: object, job: Job, consumers: ConsumersGroup) -> None:
        self.key = key
        self._base = job.base
        self._modules_before = frozenset(sys.modules)
        self._handler = SliceHandler(
            consumers,
            releases_streams=job.spec.on_stream_failure == "continue",
            max_in_flight=3 * job.spec.concurrency * job.plan.max_rows,
        )
        self._loop = WorkerLoop(self._handler, job, consumer=f"{job.name}@slice", grace_s=0.0)
        self._loop.start()

    def work(self, name: ClaimSlice, max_s: float = math.inf) -> SliceResult:
        """Return when every message of the slice has an outcome or is behind one in its stream that did not
        complete, or after `max_s`, when the messages in flight have outcomes.

        Waits while the broker cannot be reached. Raises the error that ended the slice or the loop; then the
        worker must be stopped.
        """
        before = WorkerCounts() + self._loop.counts
        retry_unavailable(lambda: self._handler.begin(name, max_s))
        while not self._handler.wait(_POLL_S):
            if self._loop.join(0):
                raise self._loop.error or RuntimeError("the worker loop of this process ended")
        return SliceResult(self._handler.end(), _difference(before, self._loop.counts))

    def stop(self) -> None:
        """Lose the messages in flight. The next task of this slice counts those that had begun as failed."""
        self._handler.end()
        self._loop.stop(hurry=True)
        self._loop.join(_STOP_S)
        self._unload_modules()

    def _unload_modules(self) -> None:
        """Forget modules of steps that ran in threads of this process: the next job may have other modules
        under their names, or other code in the same files.
        """
        for name in set(sys.modules) - self._modules_before:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file.startswith(self._base + os.sep) and "site-packages" not in file:
                del sys.modules[name]
        if self._base in sys.path:
            sys.path.remove(self._base)
        importlib.invalidate_caches()


_current: SliceWorker | None = None


def work_in_process(
    name: ClaimSlice, key: object, job: Job, connect: Callable[[], ConsumersGroup], max_s: float = math.inf
) -> SliceResult:
    """Work on a slice with the worker of this process. A worker with another key is stopped and replaced."""
    global _current
    if _current is not None and _current.key != key:
        stop_worker()
    if _current is None:
        _current = SliceWorker(key, job, connect())
    try:
        return _current.work(name, max_s)
    except BaseException:
        stop_worker()
        raise


def stop_worker() -> None:
    """Stop the worker of this process, if it has one."""
    global _current
    if _current is not None:
        stopping, _current = _current, None
        stopping.stop()


def retry_unavailable(
    call: Callable[[], T],
    may_retry: Callable[[], bool] = lambda: True,
    on_error: Callable[[Unavailable], object] = lambda _: None,
) -> T:
    """Repeat a call that raises `Unavailable`, with growing pauses. Raises it once `may_retry` returns False."""
    pause_s = _MIN_PAUSE_S
    while True:
        try:
            return call()
        except Unavailable as error:
            if not may_retry():
                raise
            on_error(error)
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _MAX_PAUSE_S)


def _difference(before: WorkerCounts, now: WorkerCounts) -> WorkerCounts:
    return WorkerCounts(**{name: count - vars(before)[name] for name, count in vars(now).items()})
