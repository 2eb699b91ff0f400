"""The numbers of a queue of the engine."""

from __future__ import annotations

import threading

import pytest

from fairlead import Complete, Fail, NewMessage
from fairlead.engine.engine import Engine
from fairlead.errors import Unavailable
from fairlead.model.views import Totals
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.testing import ManualClock
from fairlead.verbs.claim import Claim
from fairlead.verbs.config import ConfigSet
from fairlead.verbs.enqueue import EnqueueMany
from fairlead.verbs.inspect import Stats
from fairlead.verbs.operate import Done
from fairlead.verbs.queues import CreateQueue
from fairlead.verbs.settle import Settle


@pytest.fixture
def engine() -> Engine:
    made = Engine(DictionaryStore(), clock=ManualClock())
    made.do(CreateQueue("q"))
    return made


def enqueue(engine: Engine, *keys: str) -> list[str]:
    return engine.do(EnqueueMany("q", [NewMessage(b"", fairness_key=key) for key in keys]))


def test_totals_count_what_passed_since_the_engine_was_opened(engine: Engine) -> None:
    ids = enqueue(engine, "a", "b", "a", "a")
    held = engine.do(Claim("q", 2))
    engine.do(Settle([Complete(held[0]), Fail(held[1], dead=True)]))
    engine.do(Done("q", [ids[3]]))
    assert engine.do(Stats("q")).totals == Totals(enqueued=4, delivered=2, completed=2, failed=1)
    assert Engine(engine.store, clock=ManualClock()).do(Stats("q")).totals == Totals()


def test_a_message_that_comes_and_goes_in_one_transaction_is_counted(engine: Engine) -> None:
    with engine.transaction():
        (message_id,) = enqueue(engine, "a")
        engine.do(Settle([Complete(one) for one in engine.do(Claim("q"))]))
        (other,) = enqueue(engine, "a")
        engine.do(Done("q", [other]))
    assert engine.do(Stats("q")).totals == Totals(enqueued=2, delivered=1, completed=2)
    assert message_id != other


def test_a_transaction_that_is_lost_counts_nothing(engine: Engine) -> None:
    def lose() -> None:
        with engine.transaction():
            enqueue(engine, "a")
            raise OSError("no")

    with pytest.raises(Unavailable):
        lose()
    assert engine.do(Stats("q")).totals == Totals()


def test_keys_show_their_deliveries_and_what_is_pending(engine: Engine) -> None:
    enqueue(engine, "a", "b", "a", "a", "b")
    engine.do(Claim("q", 3))
    keys = engine.do(Stats("q", keys=True)).keys
    assert [(key.key, key.pending, key.more, key.delivered) for key in keys] == [
        ("a", 1, False, 2),
        ("b", 1, False, 1),
    ]
    assert engine.do(Stats("q")).keys == ()


def test_pending_counts_the_lanes_of_a_key_together_up_to_a_limit(engine: Engine) -> None:
    engine.do(ConfigSet("throttle:t:rate", "1"))
    throttled = [NewMessage(b"", fairness_key="a", throttle_keys=["t"])] * 4
    engine.do(EnqueueMany("q", [NewMessage(b"", fairness_key="a"), *throttled]))
    assert [key.pending for key in engine.do(Stats("q", keys=True)).keys] == [5]
    enqueue(engine, *["a"] * 10_000)
    (key,) = engine.do(Stats("q", keys=True)).keys
    assert (key.pending, key.more) == (10_000, True)


def test_a_consumer_that_waits_for_a_queue_is_one_of_its_consumers() -> None:
    engine = Engine(DictionaryStore())
    engine.do(CreateQueue("q"))
    engine.do(CreateQueue("other"))
    claim = threading.Thread(target=lambda: engine.do(Claim("q", consumer="c", wait="30s")))
    claim.start()
    try:
        while not engine.waiters:
            threading.Event().wait(0.001)
        assert engine.do(Stats("q")).consumers == 1
        assert engine.do(Stats("other")).consumers == 0
    finally:
        engine.interrupt_waits()
        claim.join()
    assert not engine.waiters
    engine.close()
