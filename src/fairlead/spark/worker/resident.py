"""The Crew of a Python worker of Spark, kept from one task to the next: step processes are dear to start, and
claims come every few seconds.

It dies with its process, and its step processes with it. Spark gives a process one task at a time.
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
from fairlead.spark.worker.slice_target import Consumers, Slice, SliceTally, SliceTarget
from fairlead.worker.crew import Crew
from fairlead.worker.job import Job
from fairlead.worker.tally import Tally

_LOOK_S = 1.0
#: How long one that is told to go may take: it says nothing any more, and kills its steps.
_GOING_S = 10.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0

T = TypeVar("T")


class SliceDone(NamedTuple):
    """How it went with a slice, and what the Crew did for it."""

    said: SliceTally
    worked: Tally


class Resident:
    """A Crew and what it talks to. `key` says for which work it is there, and whom it talks to."""

    def __init__(self, key: object, job: Job, consumers: Consumers) -> None:
        self.key = key
        self._base = job.base
        self._modules_before = frozenset(sys.modules)
        in_hand = 3 * job.spec.concurrency * job.plan.most_rows
        self._target = SliceTarget(
            consumers, lets_by=job.spec.on_stream_failure == "continue", in_hand=in_hand
        )
        self._crew = Crew(self._target, job, consumer=f"{job.name}@slice", grace_s=0.0)
        self._crew.start()

    def work(self, part: Slice, most_s: float = math.inf) -> SliceDone:
        """Returns when every message of the slice is settled, or behind one in its stream that is not done,
        or `most_s` are over.

        Waits as long as the broker is away. Raises what ended the slice, or the Crew; it is of no use then.
        """
        before = Tally() + self._crew.tally
        patiently(lambda: self._target.begin(part, most_s))
        while not self._target.wait(_LOOK_S):
            if self._crew.join(0):
                raise self._crew.error or RuntimeError("the crew of this process has ended")
        said = self._target.end()
        return SliceDone(said, _since(before, self._crew.tally))

    def stop(self) -> None:
        """What it has in hand is lost to it: whoever takes the slice up again finds what had begun."""
        self._target.end()
        self._crew.stop(hurry=True)
        self._crew.join(_GOING_S)
        self._forget_modules()

    def _forget_modules(self) -> None:
        """Those of steps that ran in threads of this process: the next work may have others of the same name,
        or the same with other code.
        """
        for name in set(sys.modules) - self._modules_before:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file.startswith(self._base + os.sep) and "site-packages" not in file:
                del sys.modules[name]
        if self._base in sys.path:
            sys.path.remove(self._base)
        importlib.invalidate_caches()


_here: Resident | None = None


def work_here(
    part: Slice, key: object, job: Job, connect: Callable[[], Consumers], most_s: float = math.inf
) -> SliceDone:
    """With the Crew of this process, if it is there for this work; one that is there for another is stopped."""
    global _here
    if _here is not None and _here.key != key:
        dismiss()
    if _here is None:
        _here = Resident(key, job, connect())
    try:
        return _here.work(part, most_s)
    except BaseException:
        dismiss()
        raise


def dismiss() -> None:
    global _here
    if _here is not None:
        leaving, _here = _here, None
        leaving.stop()


def patiently(
    call: Callable[[], T],
    goes_on: Callable[[], bool] = lambda: True,
    say: Callable[[Unavailable], object] = lambda _: None,
) -> T:
    """What cannot be reached now may be there later. Raises `Unavailable` when `goes_on` no longer says so."""
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return call()
        except Unavailable as error:
            if not goes_on():
                raise
            say(error)
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def _since(before: Tally, now: Tally) -> Tally:
    return Tally(**{name: count - vars(before)[name] for name, count in vars(now).items()})
