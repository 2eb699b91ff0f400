"""Where few messages wait, and memory saw all of them begin to wait, nothing is read to find what is due."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from fairlead import Fail, NewMessage
from fairlead.engine import known_waits
from fairlead.engine.engine import Engine
from fairlead.engine.known_waits import KnownWaits
from fairlead.engine.laws import broken_laws
from fairlead.records.state import OwnState
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.store.kv.port import Table
from fairlead.testing import ManualClock
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.operate import Hold, Reset, Unhold
from fairlead.verbs.queues import CreateQueue, DeleteQueue
from fairlead.verbs.settle import Settle


@contextmanager
def reads_of(store: DictionaryStore) -> Iterator[list[Table]]:
    """The tables of waiting messages that are read."""
    read: list[Table] = []

    def noted(name: str) -> Any:
        known = getattr(DictionaryStore, name)

        def ask(self: DictionaryStore, table: Table, *given: Any, **more: Any) -> Any:
            if table in (Table.DUE, Table.OWN):
                read.append(table)
            return known(self, table, *given, **more)

        return patch.object(DictionaryStore, name, ask)

    with noted("scan"), noted("get_many"):
        yield read


def opened(store: DictionaryStore, clock: ManualClock) -> Engine:
    engine = Engine(store, clock=clock)
    if "q" not in engine.memory.by_name:
        engine.do(CreateQueue("q", {"retry": {"policy": "fixed", "cooldown": "3s"}}))
    return engine


def test_messages_become_due_in_the_order_of_their_times_and_nothing_is_read() -> None:
    store, clock = DictionaryStore(), ManualClock()
    engine = opened(store, clock)
    engine.do(Enqueue("q", b"third", delay="3s"))
    engine.do(EnqueueMany("q", [NewMessage(b"second", delay="2s"), NewMessage(b"first", delay="1s")]))
    with reads_of(store) as read:
        clock.advance(ms=3000)
        claimed = engine.do(Claim("q", 3))
        engine.do(Settle([Fail(delivery) for delivery in claimed]))
        clock.advance(ms=3000)
    assert not read
    assert [delivery.payload for delivery in claimed] == [b"first", b"second", b"third"]
    assert engine.memory.by_name["q"].counts.ready == 3
    assert broken_laws(engine) == []


def test_a_reopened_engine_reads_what_waits_until_nothing_does() -> None:
    data, clock = DictionaryData(), ManualClock()
    engine = opened(DictionaryStore(data), clock)
    engine.do(Enqueue("q", b"before", delay="2s"))
    engine.close()
    store = DictionaryStore(data)
    engine = opened(store, clock)
    engine.do(Enqueue("q", b"after", delay="1s"))
    with reads_of(store) as read:
        clock.advance(ms=2000)
        assert read
        assert [delivery.payload for delivery in engine.do(Claim("q", 3))] == [b"after", b"before"]
        read.clear()
        engine.do(Enqueue("q", b"later", delay="1s"))
        clock.advance(ms=1000)
        assert not read
    assert broken_laws(engine) == []


def test_a_queue_in_which_too_many_messages_wait_is_read() -> None:
    store, clock = DictionaryStore(), ManualClock()
    with patch.object(known_waits, "MAX_KNOWN_WAITS", 3), reads_of(store) as read:
        engine = opened(store, clock)
        engine.do(EnqueueMany("q", [NewMessage(b"x", delay="1s")] * 4))
        clock.advance(ms=1000)
        assert read
        assert len(engine.do(Claim("q", 10))) == 4


def test_messages_that_an_operator_moves_wait_no_longer_or_anew() -> None:
    store, clock = DictionaryStore(), ManualClock()
    engine = opened(store, clock)
    ids = engine.do(EnqueueMany("q", [NewMessage(b"x", delay="1s")] * 3))
    engine.do(Hold("q", ids[:2]))
    engine.do(Unhold("q", ids[:1]))
    assert broken_laws(engine) == []
    clock.advance(ms=1000)
    assert len(engine.do(Claim("q", 10))) == 2
    engine.do(Unhold("q", ids[1:2]))
    assert len(engine.do(Claim("q", 10))) == 1
    assert broken_laws(engine) == []
    engine.do(Enqueue("q", b"x", delay="1s"))
    engine.do(DeleteQueue("q"))
    assert engine.memory.known_waits.first(1, 10) is None


def test_a_message_whose_failures_are_forgotten_while_it_waits_comes_back_without_them() -> None:
    store, clock = DictionaryStore(), ManualClock()
    engine = opened(store, clock)
    (name,) = engine.do(EnqueueMany("q", [NewMessage(b"x")]))
    engine.do(Settle([Fail(delivery) for delivery in engine.do(Claim("q"))]))
    engine.do(Reset("q", [name]))
    assert broken_laws(engine) == []
    clock.advance(ms=3000)
    (again,) = engine.do(Claim("q"))
    assert again.attempts == 0


def test_times_that_are_stale_do_not_pile_up() -> None:
    waits = KnownWaits()
    for due_ms in range(1, 1000):
        waits.began(1, {7: OwnState(1, due_ms=due_ms)}, 1)
        assert waits.first(1, 10) == [(due_ms, 7)]
        if due_ms < 999:
            waits.ended(1, [7])
    waits.began(1, {8: OwnState(1, due_ms=5)}, 2)
    for due_ms in range(2000, 1000, -1):
        waits.ended(1, [7])
        waits.began(1, {7: OwnState(1, due_ms=due_ms)}, 2)
    assert len(waits._queues[1].times) < 300
    assert waits.first(1, 1) == [(5, 8)]
    assert waits.first(1, 10) == [(5, 8), (1001, 7)]


@pytest.mark.parametrize("waiting", [2, 10])
def test_a_queue_with_others_that_wait_is_not_known(waiting: int) -> None:
    waits = KnownWaits()
    waits.began(1, {7: OwnState(1, due_ms=5)}, waiting)
    assert waits.first(1, 10) is None
