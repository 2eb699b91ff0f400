"""What a broker is about to write, in words, so that a test can stop it there.

A step is one commit: all of its changes are made, or none. `"publish" in step` says whether one of them is a
publication, `step.count("complete")` how many messages it completes. `changes.py` has the words.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fairlead.broker.broker import Broker
from fairlead.engine.broker import Broker as NewBroker
from fairlead.engine.engine import Engine
from fairlead.engine.transaction import Transaction
from fairlead.model.timings import Timing
from fairlead.store.rocks.store import RocksStore
from fairlead.testing.changes import Change as Change
from fairlead.testing.changes import What as What
from fairlead.testing.changes import changes_of
from fairlead.testing.old_changes import WORDS, change_of


class Step:
    """One commit. Its changes are read when asked for, so that watching costs little."""

    def __init__(self, facts: Sequence[Any]) -> None:
        self.facts = facts

    def __contains__(self, what: What) -> bool:
        return any(change.what == what for change in self._changes())

    def __repr__(self) -> str:
        return f"Step({', '.join(self.words)})"

    @property
    def words(self) -> list[What]:
        """What is changed, in order."""
        return [change.what for change in self._changes()]

    def changes(self, *what: What) -> list[Change]:
        """Those of one of these words, in order; without words all of them."""
        return [change for change in self._changes() if not what or change.what in what]

    def count(self, what: What) -> int:
        """How many messages are changed in this way."""
        return sum(change.count for change in self.changes(what))

    def _changes(self) -> Iterator[Change]:
        for fact in self.facts:
            if type(fact) in WORDS:
                yield change_of(fact)
            else:
                yield from changes_of(fact)


def ignore(step: Step) -> None:
    """Let the step pass."""


def observe(
    broker: Broker | NewBroker, seen: Callable[[Step], None], timed: Callable[[Timing], None] | None = None
) -> None:
    """Call `seen` after each step. It is first told of the queues that there are, as one step that saves
    them.
    """

    def told(facts: Sequence[Any], memory: object = None) -> None:
        seen(Step(facts))

    broker.observe(told, timed=timed)


@contextmanager
def stop_before(
    broker: Broker | NewBroker, chosen: Callable[[Step], bool], stop: Exception | Callable[[], None]
) -> Iterator[list[Step]]:
    """Fail the commit of every chosen step with an error, or run `stop` first and let it pass.

    Nothing of a failed step is written, and the broker keeps the state in memory that it had. Gives the steps
    that were chosen.
    """
    stopped: list[Step] = []

    def look(facts: Sequence[Any]) -> None:
        step = Step(facts)
        if chosen(step):
            stopped.append(step)
            if isinstance(stop, Exception):
                raise stop
            stop()

    core: Any = broker.engine if isinstance(broker, NewBroker) else broker._core
    name = "_write" if isinstance(broker, NewBroker) else "commit"
    commit = getattr(core, name)

    def watched(written: Any) -> Any:
        look(written.facts if isinstance(written, Transaction) else written)
        return commit(written)

    setattr(core, name, watched)
    try:
        yield stopped
    finally:
        setattr(core, name, commit)


def kill_process_at(nth: int, *what: What, before: bool) -> None:
    """SIGKILL this process at the n-th step on disk that has one of these words: just before it is written,
    or just after. Call it before a broker is opened, which may take steps itself. 0: never.
    """
    numbers = itertools.count(1)

    def dies_at(facts: Sequence[Any]) -> bool:
        step = Step(facts)
        return any(word in step for word in what) and next(numbers) == nth

    def kill_around(
        write: Callable[..., Any], facts_of: Callable[[Any], Sequence[Any]]
    ) -> Callable[..., Any]:
        def write_and_die(self: object, written: Any, *rest: Any, **named: Any) -> Any:
            is_fatal = dies_at(facts_of(written))
            if is_fatal and before:
                os.kill(os.getpid(), signal.SIGKILL)
            answer = write(self, written, *rest, **named)
            if is_fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return write_and_die

    RocksStore.commit = kill_around(RocksStore.commit, lambda facts: facts)  # type: ignore[method-assign]
    Engine._write = kill_around(Engine._write, lambda tx: tx.facts)  # type: ignore[method-assign]
