"""A turn of ten requests meets a fault at every step of the store, on both backends: all of it is stored, or nothing.

The messages are in memory, or only on disk, where the turn must read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from random import Random
from threading import Thread
from unittest.mock import patch

import pytest

from fairlead import Complete, Extend, Fail, NewMessage, Release
from fairlead.engine import cold
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.errors import StoreFull, Unavailable
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.store.kv.port import KeyValueStore, Row, Table
from fairlead.testing import ManualClock
from fairlead.testing.faulty import READS, Fault, FaultyStore, Killed
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.inspect import Stats
from fairlead.verbs.queues import CreateQueue
from fairlead.verbs.settle import Settle
from tests.conformance.kv.backends import Backend, everything, make_backend

Rows = dict[Table, list[Row]]
STEPS = ("write", "sync", *READS)


#: A new place for the data of each life.
Places = Iterator[Backend]


@pytest.fixture(params=["dictionary", "rocks"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Places:
    return (make_backend(request.param, tmp_path / str(nth)) for nth in count())


@contextmanager
def hot_messages(most: int) -> Iterator[None]:
    with patch.multiple(cold, HOT_MESSAGES=most, CACHED_MESSAGES=0, WINDOW_MESSAGES=3):
        yield


def rows(store: KeyValueStore) -> Rows:
    """Without the marks of clocks, which name the life that wrote them."""
    return {table: found for table, found in everything(store).items() if table is not Table.META}


def begin(store: FaultyStore) -> Engine:
    engine = Engine(store, clock=ManualClock(), rng=Random(0))
    engine.do(CreateQueue("q", {"retry": {"policy": "fixed", "cooldown": "1m"}}))
    engine.do(messages(8))
    (dead,) = engine.do(Claim("q"))
    engine.do(Settle([Fail(dead, dead=True)]))
    return engine


def messages(number: int) -> EnqueueMany:
    return EnqueueMany("q", [NewMessage(b"%d" % n, fairness_key=f"k{n % 3}") for n in range(number)])


def turn(engine: Engine) -> None:
    with engine.transaction():
        engine.do(messages(5))
        engine.do(Enqueue("q", b"single", stream="s"))
        held = engine.do(Claim("q", 4, consumer="c"))
        engine.do(Settle([Complete(held[0])]))
        engine.do(Settle([Fail(held[1])]))
        engine.do(Settle([Fail(held[2], dead=True)]))
        engine.do(Settle([Extend(held[3], "1h")]))
        (dead,) = engine.do(Claim("q.dlq"))
        engine.do(Settle([Release(dead)]))
        engine.do(Enqueue("q", b"last"))
    engine.confirm()


def before_and_after() -> tuple[Rows, Rows]:
    store = FaultyStore(DictionaryStore())
    engine = begin(store)
    before = rows(store.inner)
    turn(engine)
    return before, rows(store.inner)


class Life:
    """An engine with some messages, and a turn whose n-th step meets a fault."""

    def __init__(self, backend: Backend, nth: int, fault: Fault, error: Exception | None = None) -> None:
        self.backend = backend
        self.store = FaultyStore(backend.open(), forgets=True)
        self.engine = begin(self.store)
        self.store.arm(nth, fault, only=STEPS, error=error)
        self.confirmed = self.stopped_at_write = False

    def take_turn(self) -> bool:
        """Returns whether the fault came."""
        calls = self.store.calls.copy()
        with suppress(StoreFull, Unavailable, OSError, Killed):
            turn(self.engine)
            self.confirmed = True
        struck = self.store.struck
        self.store.arm(0, "fail")
        made = self.store.calls - calls
        self.stopped_at_write = struck and made["write"] > 0 and not made["sync"]
        return struck

    def reopen(self) -> KeyValueStore:
        return self.backend.crash(self.store.inner)


@pytest.mark.parametrize("hot", [0, 1000])
@pytest.mark.parametrize("fault", ["die_before", "die_after", "power_cut", "tear"])
def test_a_process_that_dies_at_any_step_of_a_turn_leaves_all_of_it_or_nothing(
    places: Places, fault: Fault, hot: int
) -> None:
    with hot_messages(hot):
        before, after = before_and_after()
        for nth in range(1, 100):
            life = Life(next(places), nth, fault)
            struck, store = life.take_turn(), life.reopen()
            found = rows(store)
            if fault == "tear" and life.stopped_at_write:
                assert found not in (before, after), "a part of a turn must not pass for all or nothing"
                store.close()
                continue
            assert found in (before, after), f"{fault} at step {nth}"
            assert not life.confirmed or found == after, f"{fault} at step {nth}"
            engine = Engine(store, clock=ManualClock())
            assert broken_laws(engine) == [], f"{fault} at step {nth}"
            engine.close()
            if not struck:
                break
        assert nth > 2, f"expected several steps to meet {fault}"


@pytest.mark.parametrize("hot", [0, 1000])
def test_a_step_that_fails_ends_the_turn_and_the_engine_goes_on_with_what_is_stored(
    places: Places, hot: int
) -> None:
    with hot_messages(hot):
        before, after = before_and_after()
        for nth in range(1, 100):
            life = Life(next(places), nth, "fail", OSError("the disk does not answer"))
            struck = life.take_turn()
            found = rows(life.store.inner)
            assert found in (before, after), f"step {nth}"
            assert life.confirmed != struck
            assert broken_laws(life.engine) == [], f"step {nth}"
            assert life.engine.do(Enqueue("q", b"once more"))
            life.engine.close()
            if not struck:
                break
        assert nth > 2


@pytest.mark.parametrize("hot", [0, 1000])
def test_what_others_do_while_a_step_of_a_turn_is_slow_comes_before_or_after_the_turn(
    places: Places, hot: int
) -> None:
    with hot_messages(hot):
        for nth in range(1, 100):
            life = Life(next(places), nth, "delay")
            other = Thread(target=lambda engine=life.engine: engine.do(Enqueue("q", b"meanwhile")))
            life.store.on_delay = lambda method, other=other: other.start()
            if not life.take_turn():
                life.engine.close()
                break
            other.join()
            stats = life.engine.do(Stats("q"))
            assert (stats.ready, stats.leased, stats.waiting) == (7 + 7 - 4 + 1, 1, 1), f"step {nth}"
            assert broken_laws(life.engine) == [], f"step {nth}"
            life.engine.close()
        assert nth > 2
