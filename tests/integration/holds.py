"""Counts what happens under the engine's lock: per hold, the rows each question of the store gave and the
messages that moved.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fairlead import Broker
from fairlead.testing import Step
from fairlead.testing.inside import core_of

#: Questions that are asked about a list of ids; of the others the rows of the answer count.
_BY_IDS = ("messages", "states")


class _MeteredLock:
    def __init__(self, inner: Any, meter: HoldMeter) -> None:
        self._inner = inner
        self._meter = meter

    def __enter__(self) -> None:
        self._inner.acquire()
        self._meter.begin()

    def __exit__(self, *_: object) -> None:
        self._meter.end()
        self._inner.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _MeteredStore:
    def __init__(self, inner: Any, meter: HoldMeter) -> None:
        self._inner = inner
        self._meter = meter

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self._inner, name)
        if not callable(asked):
            return asked

        def ask(*args: Any, **named: Any) -> Any:
            answer = asked(*args, **named)
            if name in _BY_IDS:
                self._meter.note(name, len(args[0]))
            elif isinstance(answer, list):
                self._meter.note(name, len(answer))
            return answer

        return ask

    def commit(self, facts: Sequence[Any], epochs: Any) -> int:
        self._meter.note("moved", Step(facts).count("move"))
        number: int = self._inner.commit(facts, epochs)
        return number


class HoldMeter:
    """`most` has, per question, the most rows that one hold of the lock has read; `moved` are messages
    changed in one hold.
    """

    def __init__(self) -> None:
        self.most: Counter[str] = Counter()
        self.holds = 0
        self._owner: int | None = None
        self._now: Counter[str] = Counter()

    def begin(self) -> None:
        self._owner, self._now = threading.get_ident(), Counter()
        self.holds += 1

    def end(self) -> None:
        for name, count in self._now.items():
            self.most[name] = max(self.most[name], count)
        self._owner = None

    def note(self, name: str, count: int) -> None:
        if self._owner == threading.get_ident():
            self._now[name] += count


@contextmanager
def metered(broker: Broker) -> Iterator[HoldMeter]:
    core, meter = core_of(broker), HoldMeter()
    lock, store = core.lock, core.store
    core.lock, core.store = _MeteredLock(lock, meter), _MeteredStore(store, meter)
    try:
        yield meter
    finally:
        core.lock, core.store = lock, store
