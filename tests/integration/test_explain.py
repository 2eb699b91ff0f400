"""Why is this not being delivered? One test per answer."""

from __future__ import annotations

import pytest

from fairlead import Broker, Fail, NewMessage, errors
from fairlead.errors import StoreFull
from fairlead.model.views import Explanation, Reason
from fairlead.testing import CommitStep
from tests.integration.world import Background, World, wait_until


def why(explanation: Explanation) -> dict[str, Reason]:
    return {reason.code: reason for reason in explanation.reasons}


@pytest.fixture
def attended(world: World) -> World:
    """A world with a consumer on q, so that its absence is no reason."""
    world.broker.enqueue("q", b"", fairness_key="attended")
    world.claim_one("q", consumer="somebody")
    return world


def test_nothing_stands_in_the_way(attended: World) -> None:
    (message_id,) = attended.fill("q", count=1)
    explanation = attended.broker.explain(message_id)
    assert (explanation.reasons, explanation.subject) == ((), f"message {message_id}")
    assert explanation.summary == "ready: it goes out with one of the next claims"
    attended.claim_one("q")


def test_no_consumer(world: World) -> None:
    (message_id,) = world.fill("q", count=1)
    explanation = world.broker.explain(message_id)
    assert list(why(explanation)) == ["no_consumer"]
    assert explanation.summary == "ready, but it cannot go out"
    assert "'q'" in str(explanation)
    world.broker.pause("q")
    claim = Background(lambda: world.broker.claim("q", wait="1h"))
    wait_until(lambda: world.broker.stats("q").consumers == 1)
    assert "no_consumer" not in why(world.broker.explain(message_id))
    world.broker.resume("q")
    claim.result()


def test_paused(attended: World) -> None:
    (message_id,) = attended.fill("q", count=1)
    attended.broker.pause("q")
    assert list(why(attended.broker.explain(message_id))) == ["paused"]
    assert list(why(attended.broker.explain_queue("q"))) == ["paused"]
    assert attended.broker.explain_queue("q").summary == "nothing can be handed out now"


def test_leased(world: World) -> None:
    (message_id,) = world.fill("q", count=1)
    delivery = world.claim_one("q", consumer="ann", started=False)
    reason = why(world.broker.explain(message_id))["leased"]
    assert reason.until_ms == delivery.lease_until
    for word in ("'ann'", "delivery 1", "not started", "2023-11-14T22:13:50.000Z"):
        assert word in reason.text


def test_waiting_because_its_producer_delayed_it(attended: World) -> None:
    message_id = attended.broker.enqueue("q", b"", delay="90s")
    reason = why(attended.broker.explain(message_id))["waiting"]
    assert reason.until_ms == attended.clock.now_ms() + 90_000
    assert "1m30s from now" in reason.text
    assert "its producer delayed it" in reason.text


def test_waiting_by_the_rule_that_decided_its_retry(attended: World) -> None:
    (message_id,) = attended.fill("q", count=1)
    attended.broker.settle([Fail(attended.claim_one("q"), retry_in="5s", reason="dependency_failure")])
    reason = why(attended.broker.explain(message_id))["waiting"]
    assert "failed once, last with dependency_failure; decided by instruction" in reason.text


def test_held(attended: World) -> None:
    (message_id,) = attended.fill("q", count=1)
    attended.broker.hold("q", [message_id])
    attended.restart()
    assert list(why(attended.broker.explain(message_id))) == ["held"]
    attended.clock.advance(seconds=10**6)
    assert attended.broker.find(message_id).where == "waiting"


def test_throttled_with_the_time_of_the_next_token(attended: World) -> None:
    attended.broker.config.set("throttle:api:rate", 0.5)
    ids = attended.fill("q", throttle_keys=["api"], count=2)
    assert len(attended.broker.claim("q", limit=5)) == 1
    attended.clock.advance(ms=500)
    reason = why(attended.broker.explain(ids[1]))["throttled"]
    assert reason.until_ms == attended.clock.now_ms() + 1500
    assert "'api' (0.5/s)" in reason.text
    assert why(attended.broker.explain_queue("q"))["throttled"].until_ms == attended.clock.now_ms() + 1500
    attended.clock.advance(ms=1500)
    assert attended.claim_one("q").id == ids[1]


def test_throttled_by_a_rate_of_0(attended: World) -> None:
    attended.broker.config.set("throttle:api:rate", 0)
    ids = attended.fill("q", throttle_keys=["api"], count=2)
    attended.claim_one("q")
    reason = why(attended.broker.explain(ids[1]))["throttled"]
    assert (reason.until_ms, "its rate is 0" in reason.text) == (None, True)


def test_behind_in_lane_and_behind_in_ring(attended: World) -> None:
    for key in ("a", "b", "c"):
        ids = attended.fill("q", key=key, count=4)
    reasons = why(attended.broker.explain(ids[3]))
    assert list(reasons) == ["behind_in_lane", "behind_in_ring"]
    assert reasons["behind_in_lane"].text == "ahead of it in its lane (key 'c'): 3 messages"
    assert "2 keys have their turn before 'c'" in reasons["behind_in_ring"].text
    assert attended.broker.explain(ids[3]).summary == "ready: it waits for its turn"


def test_a_count_of_one_is_told_in_the_singular(attended: World) -> None:
    for key in ("a", "b"):
        ids = attended.fill("q", key=key, count=2)
    reasons = why(attended.broker.explain(ids[1]))
    assert reasons["behind_in_lane"].text == "ahead of it in its lane (key 'b'): 1 message"
    assert reasons["behind_in_ring"].text == "1 key has its turn before 'b'"


def test_one_more_stream_is_told_in_the_singular(world: World) -> None:
    blocked_streams(world, 6)
    assert world.broker.explain_queue("q").reasons[-1].text == "1 more stream is held up"


def test_messages_ahead_are_counted_to_10000(memory_world: World) -> None:
    ids = memory_world.fill("q", count=10_002)
    assert "10000 messages" in why(memory_world.broker.explain(ids[10_000]))["behind_in_lane"].text
    assert "more than 10000 messages" in why(memory_world.broker.explain(ids[10_001]))["behind_in_lane"].text


def test_the_limit_of_its_key(attended: World) -> None:
    attended.broker.update_queue("q", max_unsettled_per_key=1)
    ids = attended.fill("q", key="a", count=2)
    attended.claim_one("q")
    reason = why(attended.broker.explain(ids[1]))["key_limit"]
    assert "key 'a' has 1 unsettled message, its limit is 1" in reason.text


def test_dead_with_its_last_error(world: World) -> None:
    (message_id,) = world.fill("q", count=1)
    world.broker.settle(
        [Fail(world.claim_one("q"), error="no such host", reason="transport_unavailable", dead=True)]
    )
    explanation = world.broker.explain(message_id)
    reasons = why(explanation)
    assert "after 1 failure, reason transport_unavailable, decided by instruction" in reasons["dead"].text
    assert reasons["last_error"].text == "last error: no such host"
    assert "q.dlq; redrive brings it back" in explanation.summary


def test_purging(memory_world: World) -> None:
    world = memory_world
    message_id = world.fill("q", count=600)[-1]
    steps: list[CommitStep] = []

    def second_fails(step: CommitStep) -> None:
        steps.append(step)
        if len(steps) == 2:
            raise StoreFull("data", 0, 1)

    world.store.on_step = second_fails
    with pytest.raises(StoreFull):
        world.broker.purge("q")
    broker: Broker = world.kill()
    assert "purging" in why(broker.explain(message_id))
    assert "purging" in why(broker.explain_queue("q"))
    assert broker.claim("q", limit=5) == []
    broker.run_due()
    assert broker.stats("q").ready == 0
    assert "purging" not in why(broker.explain_queue("q"))
    world.close()


def test_a_queue_with_nothing_ready_says_what_is_next(attended: World) -> None:
    attended.broker.enqueue("q", b"", delay="5s")
    reasons = why(attended.broker.explain_queue("q"))
    assert reasons["no_ready_messages"].text == "no message is ready: 1 leased, 1 waiting"
    assert reasons["next_due"].until_ms == attended.clock.now_ms() + 5000


def test_a_queue_that_flows_says_so(attended: World) -> None:
    attended.fill("q", key="a", count=2)
    attended.fill("q", key="b", count=2)
    explanation = attended.broker.explain_queue("q")
    assert (explanation.summary, explanation.reasons, explanation.subject) == (
        "4 ready, 2 keys taking turns",
        (),
        "queue q",
    )


def test_a_message_can_be_named_by_its_tail(world: World) -> None:
    (message_id,) = world.fill("q", count=1)
    assert message_id in world.broker.explain(message_id[-8:], queue="q").subject
    assert message_id in str(world.broker.explain(message_id[:13]))


def test_what_is_not_there_cannot_be_explained(world: World) -> None:
    with pytest.raises(errors.MessageNotFound):
        world.broker.explain("018bcfe5-6800-7000-8000-00000000001a")
    with pytest.raises(errors.QueueNotFound):
        world.broker.explain_queue("nowhere")


def test_a_queue_says_that_a_hook_is_switched_off_and_until_when(world: World) -> None:
    world.broker.update_queue("q", on_enqueue="function on_enqueue(msg) error('no tenant') end")
    world.fill("q", count=3)
    (reason,) = [
        reason for reason in world.broker.explain_queue("q").reasons if reason.code == "hook_bypassed"
    ]
    assert reason.until_ms == world.clock.now_ms() + 10_000
    assert "on_enqueue" in reason.text
    assert "no tenant" in reason.text
    world.clock.advance(seconds=10)
    assert "hook_bypassed" not in [reason.code for reason in world.broker.explain_queue("q").reasons]


def test_a_queue_says_that_a_failure_breaker_is_open(world: World) -> None:
    world.broker.update_queue("q", failure_breaker={"failures": 1, "within": "1m", "pause": "5m"})
    world.fill("q", count=1)
    world.broker.settle([Fail(world.claim_one("q"), reason="dependency_failure")])
    (reason,) = [
        reason for reason in world.broker.explain_queue("q").reasons if reason.code == "failure_breaker"
    ]
    assert reason.until_ms == world.clock.now_ms() + 300_000
    assert "dependency_failure" in reason.text


def blocked_streams(world: World, count: int) -> list[str]:
    """The heads of so many streams of two messages, each waiting for an hour."""
    names = [f"s{number}" for number in range(count)]
    world.broker.enqueue_many("q", [NewMessage(b"", stream=name) for name in names for _ in range(2)])
    heads = world.broker.claim("q", limit=count)
    world.broker.settle([Fail(head, retry_in="1h") for head in heads])
    return [head.id for head in sorted(heads, key=lambda head: names.index(str(head.stream)))]


def test_a_queue_names_the_streams_that_are_held_up_and_counts_the_rest(world: World) -> None:
    heads = blocked_streams(world, 7)
    world.broker.hold("q", heads[:1])
    told = world.broker.explain_queue("q")
    reasons = [reason for reason in told.reasons if reason.code.startswith("blocked_stream")]
    assert [reason.code for reason in reasons] == ["blocked_stream"] * 5 + ["blocked_streams"]
    (first,) = [reason for reason in reasons if "'s0'" in reason.text]
    assert (heads[0] in first.text, "which is held; 1 behind it" in first.text) == (True, True)
    (second,) = [reason for reason in reasons if "'s1'" in reason.text]
    assert second.until_ms == world.clock.now_ms() + 3_600_000
    assert reasons[-1].text == "2 more streams are held up"


def test_a_queue_names_streams_behind_a_leased_message_after_those_behind_one_that_waits(
    world: World,
) -> None:
    names = [f"leased{number}" for number in range(6)]
    world.broker.enqueue_many("q", [NewMessage(b"", stream=name) for name in names for _ in range(3)])
    heads = {head.stream: head.id for head in world.broker.claim("q", limit=6, consumer="ann")}
    assert len(heads) == 6
    blocked_streams(world, 1)
    reasons = [reason for reason in world.broker.explain_queue("q").reasons if "stream" in reason.code]
    assert [reason.code for reason in reasons] == ["blocked_stream"] + ["leased_stream"] * 4 + [
        "leased_streams"
    ]
    (first,) = [reason for reason in reasons if "'leased0'" in reason.text]
    assert f"held up by {heads['leased0']}, which is leased to 'ann' until" in first.text
    assert first.text.endswith("2 behind it")
    assert first.until_ms == world.clock.now_ms() + 30_000
    assert reasons[-1].text == "2 more streams are behind a leased message"


def test_the_head_of_a_stream_is_found_by_the_streams_name(world: World) -> None:
    first, _ = world.broker.enqueue_many("q", [NewMessage(b"", stream="s 1") for _ in range(2)])
    for _ in range(2):
        assert world.broker.find("stream:s 1", "q").id == first
        (delivery,) = world.broker.claim("q", consumer="ann")
        assert "leased to 'ann'" in world.broker.explain("stream:s 1", "q").reasons[0].text
        world.broker.settle([Fail(delivery, retry_in="1h")])
        assert world.broker.explain("stream:s 1", "q").subject == f"message {first}"
        world.broker.retry("q", [first])


def test_a_stream_without_live_messages_is_not_found(world: World) -> None:
    world.broker.enqueue("q", b"", stream="s")
    world.broker.create_queue("other")
    for call in (world.broker.find, world.broker.explain):
        with pytest.raises(errors.MessageNotFound):
            call("stream:t", "q")
        with pytest.raises(errors.MessageNotFound):
            call("stream:s", "other")
        with pytest.raises(errors.InvalidRequest):
            call("stream:s")
    assert world.broker.full_id("stream:s", "q", lambda _: True) == world.broker.find("stream:s", "q").id
    with pytest.raises(errors.MessageNotFound):
        world.broker.full_id("stream:s", "q", lambda _: False)
