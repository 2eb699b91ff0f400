"""A message closes its throttle key: nobody gets another of that key until a time, then probes open it by doubling."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fairlead import Complete, Fail, Release
from fairlead.errors import LimitReached
from fairlead.model.delivery import Delivery
from fairlead.model.settle import SettleResult
from tests.integration.world import Background, World, wait_until

API = "api.openai"


def close(world: World, delivery: Delivery, retry_after: str = "60s", *, key: str = API) -> SettleResult:
    (result,) = world.broker.settle([Fail(delivery, "429", retry_after=retry_after, close=key)])
    return result


def claim(world: World, limit: int = 500, queue: str = "q") -> list[Delivery]:
    return world.broker.claim(queue, limit=limit)


def complete(world: World, deliveries: Sequence[Delivery]) -> None:
    world.broker.settle([Complete(delivery) for delivery in deliveries])


def closed_and_over(world: World, count: int) -> None:
    """So many messages of a key that was closed for a minute, which is over."""
    world.fill("q", count=count, throttle_keys=[API])
    (first,) = claim(world, 1)
    close(world, first)
    world.clock.advance(seconds=60)


def at_once(world: World) -> int:
    (closed,) = world.broker.throttles()
    return closed.at_once


def open_by_probes(world: World) -> list[int]:
    """Complete every probe. Returns how many were out at a time."""
    sizes = []
    while world.broker.throttles() and (probes := claim(world)):
        sizes.append(len(probes))
        complete(world, probes)
    return sizes


# Closing


def test_a_close_returns_the_message_without_an_attempt_and_nobody_gets_another_of_its_key(
    world: World,
) -> None:
    world.fill("q", count=5, throttle_keys=[API])
    first, second = claim(world, 2)
    result = close(world, first)
    assert (result.outcome, result.rule, result.ok) == ("returned", "closed", True)
    assert result.due_ms == world.clock.now_ms() + 60_000
    info = world.broker.find(first.id)
    assert (info.where, info.attempts, info.deliveries, info.failures) == ("ready", 0, 0, ())
    assert claim(world) == []
    complete(world, [second])
    assert claim(world) == []
    world.clock.advance(ms=59_999)
    assert claim(world) == []
    world.clock.advance(ms=1)
    assert len(claim(world)) == 1


def test_other_keys_and_messages_without_one_go_out_while_a_key_is_closed(world: World) -> None:
    world.fill("q", count=2, throttle_keys=[API])
    world.fill("q", count=2, throttle_keys=["other"])
    world.fill("q", count=2, throttle_keys=["other", API])
    world.fill("q", count=2)
    close(world, claim(world, 1)[0])
    assert {delivery.throttle_keys for delivery in claim(world)} == {("other",), ()}


def test_a_closed_key_is_closed_in_every_queue(world: World) -> None:
    world.broker.create_queue("r")
    world.fill("q", count=1, throttle_keys=[API])
    world.fill("r", count=1, throttle_keys=[API])
    close(world, claim(world)[0])
    assert claim(world, queue="r") == []


def test_the_message_that_closed_the_key_is_not_the_first_probe_if_there_is_another(world: World) -> None:
    world.fill("q", count=2, throttle_keys=[API])
    first = claim(world, 1)[0]
    close(world, first)
    world.clock.advance(seconds=60)
    (probe,) = claim(world)
    assert probe.id != first.id


def test_a_message_of_a_stream_keeps_its_place_there(world: World) -> None:
    ids = world.fill("q", count=3, stream="s", throttle_keys=[API])
    close(world, claim(world, 1)[0])
    world.clock.advance(seconds=60)
    order = []
    while probes := claim(world):
        order += [probe.id for probe in probes]
        complete(world, probes)
    assert order == ids


def test_a_later_close_extends_and_an_earlier_one_does_not_shorten(world: World) -> None:
    world.fill("q", count=3, throttle_keys=[API])
    first, second, third = claim(world, 3)
    close(world, first, "60s")
    assert close(world, second, "10s").due_ms == world.clock.now_ms() + 60_000
    close(world, third, "90s")
    (closed,) = world.broker.throttles()
    assert (closed.until - closed.since, closed.returns) == (90_000, 3)


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ({"retry_after": "60s"}, "close: "),
        ({"close": API}, "retry_after: "),
        ({"close": API, "retry_after": "0s"}, "retry_after: "),
        ({"close": API, "retry_after": "soon"}, "retry_after: "),
        ({"close": "", "retry_after": "60s"}, "close: "),
        ({"close": 3, "retry_after": "60s"}, "close: "),
        ({"close": "stripe", "retry_after": "60s"}, f"one of the message's throttle keys ({API})"),
        ({"close": API, "retry_after": "60s", "dead": True}, "close: "),
        ({"close": API, "retry_after": "60s", "retry_in": "1s"}, "close: "),
    ],
)
def test_a_close_that_makes_no_sense_is_refused_and_the_lease_stays(
    world: World, said: dict[str, object], wrong: str
) -> None:
    world.fill("q", count=1, throttle_keys=[API])
    (delivery,) = claim(world)
    (result,) = world.broker.settle([Fail(delivery, **said)])  # type: ignore[arg-type]
    assert result.outcome == "invalid"
    assert wrong.rstrip(": ") in result.error
    assert world.broker.throttles() == []
    assert world.counts("q") == (0, 0, 1, 0)


def test_a_dead_letter_closes_its_key_and_stays_dead(world: World) -> None:
    world.fill("q", count=2, throttle_keys=[API])
    dead = claim(world, 1)[0]
    world.broker.settle([Fail(dead, dead=True)])
    (delivery,) = world.broker.claim("q.dlq")
    assert close(world, delivery).outcome == "released"
    assert claim(world) == []
    assert world.counts("q") == (1, 0, 0, 1)


def test_the_on_failure_hook_is_not_asked(world: World) -> None:
    world.broker.update_queue("q", on_failure="function on_failure(f) return {action = 'dlq'} end")
    world.fill("q", count=1, throttle_keys=[API])
    assert close(world, claim(world)[0]).outcome == "returned"


# Opening


def test_a_key_opens_by_doubling_once_its_probes_are_answered(world: World) -> None:
    closed_and_over(world, 300)
    assert open_by_probes(world) == [1, 2, 4, 8, 16, 32, 64]
    assert len(claim(world)) == 300 - 127


def test_no_more_probes_are_out_than_the_stage_has_whoever_asks(world: World) -> None:
    world.broker.create_queue("r")
    world.fill("r", count=10, throttle_keys=[API])
    closed_and_over(world, 10)
    complete(world, claim(world))
    assert at_once(world) == 2
    assert (
        len(claim(world, 1)) + len(claim(world, 9, "r")) + len(claim(world)) + len(claim(world, 9, "r")) == 2
    )


def test_a_probe_that_fails_counts_as_an_answer_and_one_that_is_given_back_does_not(world: World) -> None:
    closed_and_over(world, 10)
    world.broker.settle([Release(probe) for probe in claim(world)])
    assert at_once(world) == 1
    world.broker.settle([Fail(probe, "400") for probe in claim(world)])
    assert at_once(world) == 2


def test_a_probe_whose_lease_runs_out_makes_room_and_proves_nothing(world: World) -> None:
    closed_and_over(world, 10)
    (lost,) = claim(world)
    assert claim(world) == []
    world.clock.advance(seconds=30)
    assert at_once(world) == 1
    assert len(claim(world)) == 1
    assert world.broker.find(lost.id).attempts <= 1


def test_a_probe_that_closes_the_key_again_begins_with_one_probe(world: World) -> None:
    closed_and_over(world, 20)
    complete(world, claim(world))
    complete(world, claim(world))
    first, *others = claim(world)
    close(world, first, "10s")
    complete(world, others)
    assert claim(world) == []
    world.clock.advance(seconds=10)
    assert len(claim(world)) == 1


def test_a_bucket_limits_probes_too(world: World) -> None:
    world.broker.config.set(f"throttle:{API}:rate", 1)
    closed_and_over(world, 20)
    complete(world, claim(world))
    assert at_once(world) == 2
    assert claim(world) == []
    world.clock.advance(seconds=1)
    assert len(claim(world)) == 1


def test_a_claim_that_waits_gets_the_probe_when_the_time_is_over_and_the_next_when_it_is_answered(
    world: World,
) -> None:
    world.fill("q", count=3, throttle_keys=[API])
    close(world, claim(world, 1)[0])
    waiting = Background(lambda: world.broker.claim("q", limit=5, wait="10m"))
    wait_until(lambda: world.broker.stats("q").consumers == 1)
    world.clock.advance(seconds=60)
    (probe,) = waiting.result()
    waiting = Background(lambda: world.broker.claim("q", limit=5, wait="10m"))
    wait_until(lambda: world.broker.stats("q").consumers >= 1 and not waiting.done)
    complete(world, [probe])
    assert len(waiting.result()) == 2


def test_probes_end_with_their_queue(world: World) -> None:
    world.broker.create_queue("r")
    world.fill("r", count=1, throttle_keys=[API])
    closed_and_over(world, 2)
    assert len(claim(world, queue="r")) == 1
    assert claim(world) == []
    world.broker.delete_queue("r")
    wait_until(lambda: len(claim(world)) == 1)


# Bounds


def test_a_close_lasts_an_hour_at_most_unless_the_configuration_says_otherwise(world: World) -> None:
    world.fill("q", count=1, throttle_keys=[API])
    assert close(world, claim(world)[0], "7d").due_ms == world.clock.now_ms() + 3_600_000
    world.broker.open_throttle(API)
    world.broker.config.set(f"throttle:{API}:max_closed", "5m")
    assert close(world, claim(world)[0], "7d").due_ms == world.clock.now_ms() + 300_000


def test_a_message_that_came_back_often_enough_has_failed(world: World) -> None:
    world.broker.config.set(f"throttle:{API}:max_returns", 2)
    world.fill("q", count=1, throttle_keys=[API])
    outcomes = []
    for _ in range(4):
        result = close(world, claim(world)[0], "1s")
        outcomes.append((result.outcome, world.broker.throttles()[0].returns))
        world.clock.advance(seconds=1)
    assert outcomes == [("returned", 1), ("returned", 2), ("retry", 3), ("retry", 4)]
    (info,) = world.broker.peek("q")
    assert info.attempts == 2
    world.broker.reset("q", ids=[info.id])
    assert close(world, claim(world)[0], "1s").outcome == "returned"


def test_there_are_so_many_closed_keys_at_most_and_those_whose_time_is_over_make_room(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("closed_throttles", "work.settle", "work.throttles"):
        monkeypatch.setattr(f"fairlead.engine.{module}.MAX_CLOSED_THROTTLES", 2)
    for key, duration in (("a", "1s"), ("b", "1m")):
        world.broker.close_throttle(key, duration)
    with pytest.raises(LimitReached, match="closed throttle keys"):
        world.broker.close_throttle("c", "1m")
    world.fill("q", count=1, throttle_keys=[API])
    (delivery,) = claim(world)
    result = close(world, delivery)
    assert (result.outcome, "at most 2 closed throttle keys" in result.error) == ("invalid", True)
    world.clock.advance(seconds=1)
    assert close(world, delivery).outcome == "returned"
    assert [one.key for one in world.broker.throttles()] == [API, "b"]


@pytest.mark.parametrize(
    ("entry", "value"),
    [("max_closed", "soon"), ("max_closed", "-1s"), ("max_returns", "x"), ("max_returns", -1), ("closed", 1)],
)
def test_a_wrong_bound_is_refused(world: World, entry: str, value: str | int) -> None:
    with pytest.raises(Exception, match="throttle"):
        world.broker.config.set(f"throttle:{API}:{entry}", value)


# Restarts


def test_a_closed_key_is_closed_after_a_restart_until_the_same_time(world: World) -> None:
    world.fill("q", count=5, throttle_keys=[API])
    close(world, claim(world, 1)[0])
    world.restart(away_ms=20_000)
    assert claim(world) == []
    assert world.broker.throttles()[0].error == "429"
    world.clock.advance(ms=39_999)
    assert claim(world) == []
    world.clock.advance(ms=1)
    assert len(claim(world)) == 1


def test_opening_begins_with_one_probe_again_after_a_restart(world: World) -> None:
    closed_and_over(world, 100)
    for _ in range(3):
        complete(world, claim(world))
    assert at_once(world) == 8
    world.kill()
    assert len(claim(world)) == 1


def test_an_open_key_stays_open_after_a_restart(world: World) -> None:
    closed_and_over(world, 300)
    open_by_probes(world)
    world.restart()
    assert (world.broker.throttles(), len(claim(world))) == ([], 173)


def test_returns_are_counted_over_restarts(world: World) -> None:
    world.broker.config.set(f"throttle:{API}:max_returns", 1)
    world.fill("q", count=1, throttle_keys=[API])
    close(world, claim(world)[0], "1s")
    world.restart(away_ms=1000)
    assert close(world, claim(world)[0], "1s").outcome == "retry"


# Operators


def test_an_operator_opens_a_key_at_once(world: World) -> None:
    world.fill("q", count=5, throttle_keys=[API])
    close(world, claim(world, 1)[0])
    assert world.broker.open_throttle(API) is True
    assert world.broker.open_throttle(API) is False
    assert len(claim(world)) == 5


def test_an_operator_closes_a_key_that_no_message_has_yet(world: World) -> None:
    closed = world.broker.close_throttle(API, "2h", error="maintenance")
    assert (closed.until - closed.since, closed.by, closed.queue) == (7_200_000, "local", "")
    world.fill("q", count=5, throttle_keys=[API])
    assert claim(world) == []
    world.clock.advance(seconds=7200)
    assert len(claim(world)) == 1


def test_explain_says_until_when_a_key_is_closed_by_whom_and_why(world: World) -> None:
    ids = world.fill("q", count=3, throttle_keys=[API])
    (first,) = world.broker.claim("q", consumer="w1")
    close(world, first)
    told = world.broker.explain(first.id)
    (reason,) = [one for one in told.reasons if one.code == "closed"]
    assert told.summary == "ready, but it cannot go out"
    for part in (API, "consumer 'w1': 429", "1m from now", "one probe", "came back once"):
        assert part in reason.text
    assert reason.until_ms == world.clock.now_ms() + 60_000
    assert claim(world) == []
    assert "closed" in [one.code for one in world.broker.explain_queue("q").reasons]
    world.clock.advance(seconds=60)
    (probe,) = claim(world)
    waiting = next(id for id in ids if id != probe.id)
    (reason,) = [one for one in world.broker.explain(waiting).reasons if one.code == "closed"]
    assert "1 of 1 probes is out" in reason.text


def test_explain_tells_nothing_of_other_queues(world: World) -> None:
    world.broker.create_queue("tenant/r")
    (other,) = world.fill("tenant/r", count=1, throttle_keys=[API])
    world.fill("q", count=1, throttle_keys=[API])
    (first,) = world.broker.claim("q", consumer="w1")
    close(world, first)
    (reason,) = [one for one in world.broker.explain(other).reasons if one.code == "closed"]
    assert "by a consumer of another queue (1m from now)" in reason.text
    world.broker.close_throttle(API, "2h", error="maintenance")
    (reason,) = [one for one in world.broker.explain(other).reasons if one.code == "closed"]
    assert "by an operator: maintenance" in reason.text


def test_stats_and_measures_show_closed_keys(world: World) -> None:
    world.fill("q", count=3, throttle_keys=[API])
    close(world, claim(world, 1)[0])
    (closed,) = world.broker.stats("q").closed_throttles
    assert (closed.key, closed.at_once, closed.probes, closed.returns) == (API, 0, 0, 1)
    assert [one.key for one in world.broker.measures().closed_throttles] == [API]


def test_the_audit_has_an_entry_when_a_key_closes_and_when_it_is_open_again(world: World) -> None:
    closed_and_over(world, 300)
    open_by_probes(world)
    opened, closed = world.broker.audit.read()
    assert (closed.verb, closed.queue, closed.outcome) == ("close_throttle", "q", "done")
    assert (closed.details["key"], closed.details["error"]) == (API, "429")
    assert (opened.verb, opened.details["key"]) == ("open_throttle", API)
