"""Explanations and failure metrics of the engine, where the seeded runs do not come."""

from __future__ import annotations

import pytest

from fairlead import Fail, NewMessage, Release
from fairlead.engine import blocked_streams as blocked_module
from fairlead.engine import walk as walk_module
from fairlead.engine import walk_ids as walk_ids_module
from fairlead.engine.engine import Engine
from fairlead.engine.walk import find_latest_due
from fairlead.engine.work import explain as explain_module
from fairlead.engine.work import failures as failures_module
from fairlead.errors import MessageNotFound
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.testing import ManualClock
from fairlead.verbs.claim import Claim
from fairlead.verbs.config import ConfigSet
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.inspect import Explain, ExplainQueue, Find, GetFailureMetrics
from fairlead.verbs.operate import Drop, Hold, ReleaseStream
from fairlead.verbs.queues import CreateQueue
from fairlead.verbs.settle import Settle


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Engine:
    for module in (walk_module, walk_ids_module, explain_module, blocked_module):
        monkeypatch.setattr(module, "STEP_MESSAGES", 3)
    made = Engine(DictionaryStore(), clock=clock)
    made.do(CreateQueue("q", {"retry": {"policy": "fixed", "cooldown": "1m"}, "poison_after": 1}))
    return made


def queue_id(engine: Engine) -> int:
    return engine.memory.by_name["q"].record.queue_id


def reasons(engine: Engine, message_id: str) -> dict[str, str]:
    return {reason.code: reason.text for reason in engine.do(Explain(message_id)).reasons}


def test_messages_ahead_are_counted_over_many_steps_in_the_order_of_their_places(engine: Engine) -> None:
    ids = engine.do(EnqueueMany("q", [NewMessage(b"", fairness_key="k")] * 20))
    held = engine.do(Claim("q", 4))
    engine.do(Settle([Release(held[1]), Release(held[3])]))
    assert reasons(engine, ids[19])["behind_in_lane"].endswith("17 messages")
    assert reasons(engine, ids[3])["behind_in_lane"].endswith("1 message")
    assert "behind_in_lane" not in reasons(engine, ids[1])


def test_a_lane_that_waits_for_tokens_says_when_it_gets_one(engine: Engine) -> None:
    engine.do(ConfigSet("throttle:t:rate", "0.5"))
    engine.do(ConfigSet("throttle:t:burst", "1"))
    ids = engine.do(EnqueueMany("q", [NewMessage(b"", throttle_keys=["t"])] * 2))
    assert len(engine.do(Claim("q", 2))) == 1
    (throttled,) = [one for one in engine.do(Explain(ids[1])).reasons if one.code == "throttled"]
    assert throttled.until_ms == engine.clock.now_ms() + 2_000
    assert engine.do(Explain(ids[1])).summary == "ready, but it cannot go out"
    (parked,) = [one for one in engine.do(ExplainQueue("q")).reasons if one.code == "throttled"]
    assert parked.text.startswith("1 lane is throttled on 't', next token at")


def test_a_message_that_is_gone_is_not_explained(engine: Engine) -> None:
    message_id = engine.do(Enqueue("q", b""))
    engine.do(Drop("q", [message_id]))
    with pytest.raises(MessageNotFound):
        engine.do(Explain(message_id))


def test_the_next_due_message_is_not_one_that_has_left(engine: Engine) -> None:
    first = engine.do(Enqueue("q", b"", delay="1s"))
    engine.do(Enqueue("q", b"", delay="9s"))
    engine.do(Drop("q", [first]))
    (due,) = [one for one in engine.do(ExplainQueue("q")).reasons if one.code == "next_due"]
    assert due.until_ms == engine.clock.now_ms() + 9_000


def test_the_latest_due_time_is_that_of_a_message_that_waits(engine: Engine) -> None:
    ids = [engine.do(Enqueue("q", b"", delay=f"{at}s")) for at in range(1, 9)]
    engine.do(Drop("q", ids[6:]))
    engine.do(Hold("q", ids[5:6]))
    assert find_latest_due(engine, queue_id(engine)) == engine.clock.now_ms() + 5_000
    engine.do(Drop("q", ids))
    assert find_latest_due(engine, queue_id(engine)) is None


def failed(engine: Engine, count: int) -> None:
    engine.do(EnqueueMany("q", [NewMessage(b"")] * count))
    engine.do(Settle([Fail(held) for held in engine.do(Claim("q", count))]))


def test_failure_metrics_pass_over_messages_that_nothing_happened_to(engine: Engine) -> None:
    failed(engine, 4)
    engine.do(EnqueueMany("q", [NewMessage(b"")] * 50))
    found = engine.do(GetFailureMetrics("q"))
    assert (found.by_attempts, found.scheduled, found.complete) == ({1: 4}, 4, True)
    assert len(found.poison_candidates) == 4


def test_failure_metrics_look_at_a_bounded_part_and_say_so(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed(engine, 4)
    clock.advance(ms=500)
    failed(engine, 1)
    monkeypatch.setattr(failures_module, "SCAN_LIMIT", 3)
    found = engine.do(GetFailureMetrics("q", 2))
    assert (found.by_attempts, found.complete) == ({1: 3}, False)
    assert found.latest_due == clock.now_ms() + 60_000


def in_streams(engine: Engine, count: int) -> list[str]:
    """Two messages of each stream; the first ones in the order of their names."""
    names = [f"s{at:02}" for at in range(count)] * 2
    return engine.do(EnqueueMany("q", [NewMessage(b"", fairness_key=name, stream=name) for name in names]))


def test_a_message_behind_another_of_its_stream_says_what_that_one_does(
    engine: Engine, clock: ManualClock
) -> None:
    first, second = in_streams(engine, 1)
    assert reasons(engine, second)["behind_in_stream"] == "earlier messages of stream 's00' go before it"
    engine.do(Claim("q", consumer="c"))
    assert f"is held up by {first}, which is leased to 'c'" in reasons(engine, second)["behind_in_stream"]
    engine.do(Hold("q", [first]))
    explained = engine.do(Explain(second))
    assert explained.summary == "ready, but not at the front of its stream"
    assert explained.reasons[0].text.endswith("which is held")
    assert explained.reasons[0].until_ms is None
    assert engine.do(Find("stream:s00", "q")).id == first


def test_streams_that_are_held_up_are_listed_and_counted_over_many_steps(
    engine: Engine, clock: ManualClock
) -> None:
    in_streams(engine, 10)
    held = engine.do(Claim("q", 9))
    engine.do(Settle([Fail(one) for one in held[:7]]))
    found = engine.do(GetFailureMetrics("q", 3))
    assert [stream.stream for stream in found.blocked_streams] == ["s00", "s01", "s02"]
    assert {stream.behind for stream in found.blocked_streams} == {1}
    assert found.blocked_count == 7
    codes = [reason.code for reason in engine.do(ExplainQueue("q")).reasons]
    assert codes.count("blocked_stream") == 5
    assert codes[-2:] == ["blocked_streams", "leased_streams"]


def test_a_stream_whose_waiting_message_may_be_passed_is_not_held_up(engine: Engine) -> None:
    first, _ = in_streams(engine, 1)
    engine.do(Hold("q", [first]))
    assert engine.do(GetFailureMetrics("q")).blocked_count == 1
    engine.do(ReleaseStream("q", "s00"))
    assert engine.do(GetFailureMetrics("q")).blocked_count == 0


def test_times_in_explanations_are_those_of_the_wall_clock(engine: Engine, clock: ManualClock) -> None:
    message_id = engine.do(Enqueue("q", b"", delay="1m"))
    clock.jump(ms=3_600_000)
    (waiting, _) = engine.do(Explain(message_id)).reasons
    assert waiting.until_ms == clock.now_ms() + 60_000
    (due,) = [one for one in engine.do(ExplainQueue("q")).reasons if one.code == "next_due"]
    assert due.until_ms == clock.now_ms() + 60_000
