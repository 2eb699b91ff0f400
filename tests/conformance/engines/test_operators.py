"""Acts of operators in the engine, where the seeded runs come seldom."""

from __future__ import annotations

import pytest

from fairlead import Complete, DeadFilter, Delivery, Extend, Fail, NewMessage
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.testing import ManualClock
from fairlead.verbs.claim import Claim
from fairlead.verbs.dead_letters import Redrive
from fairlead.verbs.enqueue import Enqueue, Quarantine, Twin
from fairlead.verbs.inspect import Stats
from fairlead.verbs.operate import Bury, Hold, Retry, Unhold
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


@pytest.mark.parametrize("verb", ["redrive", "retry"])
def test_messages_that_return_to_a_stream_together_have_the_key_of_the_first(
    engine: Engine, verb: str
) -> None:
    messages = [NewMessage(b"", fairness_key=key, stream="s") for key in ("a", "b", "c")]
    ids = engine.do(Quarantine("q", messages, "validation_failure", "bad"))
    engine.do(Redrive("q") if verb == "redrive" else Retry("q", ids))
    assert broken_laws(engine) == []
    found = engine.do(Claim("q", 3, max_per_stream=3))
    assert [one.fairness_key for one in found] == ["a", "a", "a"]


@pytest.mark.parametrize("clears", [False, True])
def test_a_redriven_message_keeps_its_progress_and_its_carry_unless_they_are_cleared(
    engine: Engine, clears: bool
) -> None:
    engine.do(Enqueue("q", b"x"))
    held = only(engine.do(Claim("q")))
    engine.do(Settle([Extend(held, progress=2, carry=b"half")]))
    engine.do(Settle([Fail(held, dead=True)]))
    engine.do(Redrive("q", clear_progress=clears))
    again = only(engine.do(Claim("q")))
    assert (again.progress & 2, again.carry) == ((0, b"") if clears else (2, b"half"))


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


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000])
@pytest.mark.parametrize("dry_run", [True, False])
def test_the_age_of_a_dead_letter_does_not_change_with_a_step_of_the_wall_clock(
    step_ms: int, dry_run: bool
) -> None:
    clock = ManualClock()
    engine = Engine(DictionaryStore(), clock=clock)
    engine.do(CreateQueue("q"))
    message_id = engine.do(Enqueue("q", b"x"))
    engine.do(Bury("q", [message_id]))
    clock.advance(ms=60_000)
    clock.jump(ms=step_ms)
    for older_than, matched in (("2m", 0), ("30s", 1)):
        chosen = Redrive("q", filter=DeadFilter(older_than=older_than), dry_run=True)
        assert engine.do(chosen).matched == matched
        by_id = Redrive("q", [message_id], filter=DeadFilter(older_than=older_than), dry_run=dry_run)
        assert engine.do(by_id).matched == matched
