"""Run code between two steps of a verb, while the lock is free, as another caller might; and measure steps.

A step is one transaction. It holds the lock from beginning to end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from fairlead.engine.broker import Broker
from fairlead.engine.transaction import Transaction
from fairlead.testing.steps import CommitStep

#: Methods that read messages, and how many messages one call reads, from its arguments and its answer.
_READS: dict[str, Callable[[Any, Any], int]] = {
    "bring": lambda numbers, _: len(numbers),
    "bring_chunks": lambda numbers, _: len(numbers),
    "lane_after": lambda _, found: len(found),
    "due": lambda _, found: len(found),
    "done": lambda _, found: len(found),
    "lives": lambda _, found: len(found),
    "scan_records": lambda _, found: len(found),
}


@contextmanager
def between_steps(broker: Broker, run: Callable[[], object]) -> Iterator[None]:
    """Call `run` after each step, once this thread has released the lock. Steps of `run` itself are not
    interrupted.
    """
    engine, is_running = broker.engine, False
    transaction = engine.transaction

    @contextmanager
    def watched(*given: Any) -> Iterator[Transaction]:
        nonlocal is_running
        with transaction(*given) as tx:
            yield tx
        if is_running or engine.lock.is_owned:
            return
        is_running = True
        try:
            run()
        finally:
            is_running = False

    with patch.object(engine, "transaction", watched):
        yield


@contextmanager
def after_the_first_look(broker: Broker, run: Callable[[], object]) -> Iterator[None]:
    """Call `run` once, between two steps, after a step has read messages."""
    waiting, meter = [run], StepMeter()

    def interrupt() -> None:
        if waiting and meter.most.total():
            waiting.pop()()

    with meter.measuring(), between_steps(broker, interrupt):
        yield


class StepMeter:
    """`most` has the maximum of one step: messages that each kind of read returned, and `moved` ones."""

    def __init__(self) -> None:
        self.most: Counter[str] = Counter()
        self._of_step: Counter[str] = Counter()
        self._step: Transaction | None = None

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Inside the `with` block, the steps of every broker are measured."""
        with ExitStack() as stack:
            for name, count in _READS.items():
                stack.enter_context(patch.object(Transaction, name, self._counted(name, count)))
            stack.enter_context(patch.object(Transaction, "add", self._counted_facts()))
            yield

    def _counted(self, name: str, count: Callable[[Any, Any], int]) -> Callable[..., Any]:
        read = getattr(Transaction, name)

        def counted(tx: Transaction, first: Any, *given: Any, **named: Any) -> Any:
            found = read(tx, first, *given, **named)
            self._note(tx, name, count(first, found))
            return found

        return counted

    def _counted_facts(self) -> Callable[..., None]:
        add = Transaction.add

        def counted(tx: Transaction, fact: Any) -> None:
            self._note(tx, "moved", CommitStep([fact]).count("move"))
            add(tx, fact)

        return counted

    def _note(self, tx: Transaction, name: str, count: int) -> None:
        if tx is not self._step:
            self._step, self._of_step = tx, Counter()
        self._of_step[name] += count
        self.most[name] = max(self.most[name], self._of_step[name])
