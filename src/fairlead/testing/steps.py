"""What a broker is about to write, in words, so that a test can stop it there.

A step is one commit: all of its changes are made, or none. `"publish" in step` tells whether one of them is a
publication, `step.count("complete")` how many messages it completes. `changes.py` has the words.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fairlead.engine.broker import Broker
from fairlead.engine.engine import Engine
from fairlead.model.timings import Timing
from fairlead.records.facts import StateFact
from fairlead.testing.changes import Change as Change
from fairlead.testing.changes import What as What
from fairlead.testing.changes import changes_of


class CommitStep:
    """One commit. Its changes are read on access, so that watching costs little."""

    def __init__(self, facts: Sequence[Any]) -> None:
        self.facts = facts

    def __contains__(self, what: What) -> bool:
        return any(change.what == what for change in self._changes())

    def __repr__(self) -> str:
        return f"Step({', '.join(self.words)})"

    @property
    def words(self) -> list[What]:
        """The words of its changes, in order."""
        return [change.what for change in self._changes()]

    def changes(self, *what: What) -> list[Change]:
        """The changes with one of these words, in order; without words, all of them."""
        return [change for change in self._changes() if not what or change.what in what]

    def count(self, what: What) -> int:
        """The number of messages changed in this way."""
        return sum(change.count for change in self.changes(what))

    def _changes(self) -> Iterator[Change]:
        for fact in self.facts:
            yield from changes_of(fact)


def ignore(step: CommitStep) -> None:
    """Let the step pass."""


def observe(
    broker: Broker, seen: Callable[[CommitStep], None], timed: Callable[[Timing], None] | None = None
) -> None:
    """Call `seen` after each step. The first call has the existing queues, as one step that saves them."""

    def told(facts: Sequence[Any], memory: object = None) -> None:
        seen(CommitStep(facts))

    broker.observe(told, timed=timed)


@contextmanager
def stop_before(
    broker: Broker, chosen: Callable[[CommitStep], bool], stop: Exception | Callable[[], None]
) -> Iterator[list[CommitStep]]:
    """Fail the commit of every chosen step with an error, or run `stop` first and let it pass.

    Nothing of a failed step is written, and the broker keeps its state in memory. Yields the steps that were
    chosen.
    """
    stopped: list[CommitStep] = []

    engine = broker.engine
    write = engine._write

    def watched(commit: int, facts: Sequence[StateFact]) -> None:
        step = CommitStep(facts)
        if chosen(step):
            stopped.append(step)
            if isinstance(stop, Exception):
                raise stop
            stop()
        write(commit, facts)

    engine._write = watched  # type: ignore[method-assign]
    try:
        yield stopped
    finally:
        engine._write = write  # type: ignore[method-assign]


def kill_process_at(nth: int, *what: What, before: bool) -> None:
    """SIGKILL this process at the n-th step on disk with one of these words, just before it is written or
    just after. 0 means never.

    Call it before a broker is opened, because opening may take steps too.
    """
    numbers = itertools.count(1)

    def dies_at(facts: Sequence[Any]) -> bool:
        step = CommitStep(facts)
        return any(word in step for word in what) and next(numbers) == nth

    write = Engine._write

    def write_and_die(engine: Engine, commit: int, facts: Sequence[StateFact]) -> None:
        is_fatal = dies_at(facts)
        if is_fatal and before:
            os.kill(os.getpid(), signal.SIGKILL)
        write(engine, commit, facts)
        if is_fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    Engine._write = write_and_die  # type: ignore[method-assign, assignment]
