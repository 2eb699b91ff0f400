from __future__ import annotations

from fairlead import Complete, Fail, NewMessage
from fairlead.model.distribution import Distribution
from fairlead.server.metrics import Metrics
from tests.doors.http.shown import Values, show
from tests.integration.world import World

LATENCY = "fairlead_delivery_latency_seconds"
AGE = "fairlead_lease_age_seconds"
BATCH = "fairlead_batch_messages"


def _of(values: Values, name: str, labels: str = "queue=q") -> tuple[float, float]:
    """How many, and their sum."""
    return values.get(f"{name}_count{{{labels}}}", 0), values.get(f"{name}_sum{{{labels}}}", 0)


def test_delivery_latency_is_from_enqueue_to_first_delivery(world: World, metrics: Metrics) -> None:
    world.fill("q", count=2)
    world.clock.advance(ms=400)
    world.fill("q", count=3)
    world.clock.advance(ms=600)
    world.broker.claim("q", limit=5)
    shown = show(metrics)
    assert _of(shown, LATENCY) == (5, 2 * 1.0 + 3 * 0.6)
    assert shown[f"{LATENCY}_bucket{{le=0.5,queue=q}}"] == 0
    assert shown[f"{LATENCY}_bucket{{le=1.0,queue=q}}"] == 5
    assert shown[f"{LATENCY}_bucket{{le=+Inf,queue=q}}"] == 5


def test_a_redelivery_or_a_delayed_message_is_no_delivery_latency(world: World, metrics: Metrics) -> None:
    world.broker.enqueue("q", b"", delay="1h")
    world.clock.advance(seconds=3600)
    world.broker.settle([Fail(world.claim_one("q"))])
    world.claim_one("q")
    assert _of(show(metrics), LATENCY) == (0, 0)


def test_a_clock_set_back_makes_no_negative_latency(world: World, metrics: Metrics) -> None:
    world.fill("q", count=1)
    world.clock.jump(ms=-60_000)
    world.claim_one("q")
    assert _of(show(metrics), LATENCY) == (1, 0)


def test_lease_age_is_from_claim_to_the_end_of_the_lease_whatever_the_wall_clock_does(
    world: World, metrics: Metrics
) -> None:
    world.fill("q", count=3)
    first, second, _ = world.broker.claim("q", limit=3)
    world.clock.advance(ms=2_000)
    world.clock.jump(ms=3_600_000)
    world.broker.settle([Complete(first), Fail(second, retry_in="1h")])
    assert _of(show(metrics), AGE) == (2, 4.0)
    world.clock.advance(ms=28_000)
    assert _of(show(metrics), AGE) == (3, 34.0)


def test_the_age_of_a_lease_of_an_earlier_process_is_not_guessed(world: World, metrics: Metrics) -> None:
    world.fill("q", count=1)
    held = world.claim_one("q")
    world.restart()
    later = Metrics(world.broker, clock=world.clock)
    world.broker.settle([Complete(held)])
    shown = show(later)
    assert shown["fairlead_messages_completed_total{queue=q}"] == 1
    assert _of(shown, AGE) == (0, 0)


def test_nothing_is_remembered_of_claims_that_are_over(world: World, metrics: Metrics) -> None:
    world.fill("q", count=20)
    for _ in range(4):
        world.broker.settle([Complete(delivery) for delivery in world.broker.claim("q", limit=3)])
    world.broker.claim("q", limit=4)
    assert len(metrics._counts._claims) == 1
    world.clock.advance(seconds=30)
    assert metrics._counts._claims == {}


def test_batches_are_counted_by_operation(world: World, metrics: Metrics) -> None:
    world.fill("q", count=7)
    world.fill("q", count=1)
    deliveries = world.broker.claim("q", limit=5)
    world.broker.settle([*(Complete(delivery) for delivery in deliveries[:3]), Fail(deliveries[3])])
    shown = show(metrics)
    assert _of(shown, BATCH, "operation=enqueue") == (2, 8)
    assert _of(shown, BATCH, "operation=claim") == (1, 5)
    assert _of(shown, BATCH, "operation=settle") == (1, 4)


def test_commits_and_hooks_are_timed(world: World, metrics: Metrics) -> None:
    world.broker.update_queue("q", on_enqueue="function on_enqueue(msg) return {} end")
    before = show(metrics)["fairlead_commit_seconds_count"]
    world.broker.enqueue_many("q", [NewMessage(b"")] * 3)
    shown = show(metrics)
    assert shown["fairlead_commit_seconds_count"] == before + 1
    assert shown["fairlead_hook_seconds_count{function=on_enqueue}"] == 1
    assert shown["fairlead_hook_seconds_sum{function=on_enqueue}"] > 0


def test_a_value_on_a_bound_belongs_below_it_as_prometheus_has_it() -> None:
    found = Distribution((1.0, 2.0))
    found.add(1.0)
    found.add(1.5, times=3)
    found.add(9.0)
    assert (found.counts, found.sum) == ([1, 3, 1], 14.5)
