"""Acts of operators on the new engine, where the seeded runs come seldom."""

from __future__ import annotations

import pytest

from fairlead import Complete, Delivery, Fail
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.testing import ManualClock
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, Twin
from fairlead.verbs.inspect import Stats
from fairlead.verbs.operate import Hold, Retry, Unhold
from fairlead.verbs.queues import CreateQueue
from fairlead.verbs.settle import Settle


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(clock: ManualClock) -> Engine:
    made = Engine(DictionaryStore(), clock=clock)
    made.do(CreateQueue("q", {"dedup": "live"}))
    return made


def killed_and_retried(engine: Engine) -> str:
    """A message with a dedup key and a time to live that died and was brought back."""
    message_id = engine.do(Enqueue("q", b"first", dedup_key="d", ttl="5s"))
    (held,) = engine.do(Claim("q"))
    engine.do(Settle([Fail(held, dead=True)]))
    assert engine.do(Retry("q", [message_id])).changed == (message_id,)
    return message_id


def only(deliveries: list[Delivery]) -> Delivery:
    (delivery,) = deliveries
    return delivery


def test_a_message_that_was_brought_back_has_no_time_to_live_any_more(
    engine: Engine, clock: ManualClock
) -> None:
    message_id = killed_and_retried(engine)
    clock.advance(ms=60_000)
    assert only(engine.do(Claim("q"))).id == message_id
    assert broken_laws(engine) == []


def test_a_message_that_was_brought_back_does_not_take_its_dedup_key_along_when_it_ends(
    engine: Engine,
) -> None:
    killed_and_retried(engine)
    second = engine.do(Enqueue("q", b"second", dedup_key="d"))
    engine.do(Settle([Complete(only(engine.do(Claim("q"))))]))
    assert engine.do(Twin("q", "d")) == second
    assert broken_laws(engine) == []


def test_holding_a_leased_message_counts_its_delivery_and_fences_its_holder(engine: Engine) -> None:
    message_id = engine.do(Enqueue("q", b"body"))
    held = only(engine.do(Claim("q")))
    engine.do(Hold("q", [message_id]))
    assert engine.do(Settle([Complete(held)]))[0].outcome == "lost_lease"
    assert engine.do(Stats("q")).waiting == 1
    engine.do(Unhold("q", [message_id]))
    assert only(engine.do(Claim("q"))).deliveries == 2
    assert broken_laws(engine) == []


def test_a_message_that_is_held_after_its_life_ended_under_a_lease_ends(
    engine: Engine, clock: ManualClock
) -> None:
    message_id = engine.do(Enqueue("q", b"body", ttl="5s"))
    engine.do(Claim("q"))
    clock.advance(ms=6_000)
    engine.do(Hold("q", [message_id]))
    clock.advance(ms=1)
    assert engine.do(Stats("q")).waiting == 0
    assert broken_laws(engine) == []
