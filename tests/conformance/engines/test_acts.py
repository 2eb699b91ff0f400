"""Acts of operators by filter in the engine: bounded, in whole steps, and repeatable after an error."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead import NewMessage
from fairlead.decide.dead_filter import DeadFilter
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.errors import StoreFull, Unavailable
from fairlead.model.limits import HOLD_MESSAGES, STEP_MESSAGES
from fairlead.records.facts import QueueStored
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.testing import ManualClock
from fairlead.testing.faulty import FaultyStore
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import EnqueueMany
from fairlead.verbs.inspect import Stats
from fairlead.verbs.operate import Bury, Drop, Hold
from fairlead.verbs.queues import CreateQueue

EVERYTHING = DeadFilter()


def with_messages(count: int, store: FaultyStore | None = None) -> Engine:
    engine = Engine(store or DictionaryStore(), clock=ManualClock())
    engine.do(CreateQueue("q"))
    engine.do(EnqueueMany("q", [NewMessage(b"%d" % n, fairness_key=f"k{n % 3}") for n in range(count)]))
    return engine


def test_a_call_changes_a_bounded_number_of_messages_and_says_that_there_are_more() -> None:
    engine = with_messages(STEP_MESSAGES + 5)
    first = engine.do(Drop("q", filter=EVERYTHING))
    assert (len(first.changed), first.more) == (STEP_MESSAGES, True)
    second = engine.do(Drop("q", filter=EVERYTHING))
    assert (len(second.changed), second.more) == (5, False)
    assert broken_laws(engine) == []


def test_a_message_that_moves_during_an_act_is_changed_once() -> None:
    engine = with_messages(3 * HOLD_MESSAGES)
    engine.do(Claim("q", 50))
    held = engine.do(Hold("q", filter=EVERYTHING, reason="poison_message", error="look at it"))
    assert len(held.changed) == len(set(held.changed)) == 3 * HOLD_MESSAGES
    assert held.skipped == ()
    buried = engine.do(Bury("q", filter=EVERYTHING))
    assert (len(buried.changed), buried.skipped) == (3 * HOLD_MESSAGES, ())
    assert broken_laws(engine) == []


def test_an_error_leaves_whole_steps_and_the_same_call_goes_on_with_the_rest() -> None:
    store = FaultyStore(DictionaryStore())
    engine = with_messages(3 * HOLD_MESSAGES, store)
    store.arm(2, "fail", only=("write",))
    with pytest.raises(StoreFull):
        engine.do(Bury("q", filter=EVERYTHING))
    assert engine.do(Stats("q")).dead == HOLD_MESSAGES
    assert broken_laws(engine) == []
    rest = engine.do(Bury("q", filter=EVERYTHING))
    assert len(rest.changed) == 2 * HOLD_MESSAGES
    assert engine.do(Stats("q")).dead == 3 * HOLD_MESSAGES
    assert broken_laws(engine) == []


def test_a_dry_run_tells_what_the_act_then_does_and_writes_nothing() -> None:
    engine = with_messages(2 * HOLD_MESSAGES)
    commit = engine.store.last_commit
    act = Bury("q", filter=DeadFilter(key="k1"), dry_run=True)
    told = engine.do(act)
    assert engine.store.last_commit == commit
    assert engine.do(Bury("q", filter=DeadFilter(key="k1"))) == told
    assert engine.do(Stats("q")).dead == len(told.changed) > 0


def test_an_act_sees_messages_of_the_transaction_that_it_joins() -> None:
    engine = with_messages(0)
    with engine.transaction():
        (message_id,) = engine.do(EnqueueMany("q", [NewMessage(b"new")]))
        assert engine.do(Drop("q", filter=EVERYTHING)).changed == (message_id,)
    assert engine.do(Stats("q")).ready == 0
    assert broken_laws(engine) == []


def test_a_step_that_breaks_after_a_change_loses_the_transaction_that_it_joined() -> None:
    engine = with_messages(1)

    def break_in_a_step() -> None:
        with engine.transaction() as tx:
            tx.add(QueueStored(replace(tx.queue("q").record, paused=True)))
            raise ZeroDivisionError

    def turn() -> None:
        with engine.transaction():
            engine.do(EnqueueMany("q", [NewMessage(b"neighbour")]))
            with pytest.raises(Unavailable):
                break_in_a_step()

    with pytest.raises(Unavailable, match="ZeroDivisionError"):
        turn()
    stats = engine.do(Stats("q"))
    assert (stats.ready, stats.paused) == (1, False)
