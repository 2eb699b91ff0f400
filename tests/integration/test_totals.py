"""What passed: totals of a queue, and deliveries by key. For people who look; nothing decides by them."""

from __future__ import annotations

from fairlead import Complete, Fail, Release
from fairlead.model.views import Totals
from tests.integration.world import World


def test_totals_count_what_passed_and_not_what_is_there(world: World) -> None:
    world.fill("q", count=10)
    claimed = world.broker.claim("q", limit=6)
    world.broker.settle(
        [
            Complete(claimed[0]),
            Complete(claimed[1]),
            Fail(claimed[2]),
            Fail(claimed[3], dead=True),
            Release(claimed[4]),
        ]
    )
    assert world.broker.stats("q").totals == Totals(enqueued=10, delivered=6, completed=2, failed=2)


def test_a_lease_that_runs_out_is_a_failed_try_and_a_burial_by_hand_is_not(world: World) -> None:
    first, second = world.fill("q", count=2)
    world.broker.claim("q")
    world.broker.bury("q", [second])
    world.clock.advance(ms=31_000)
    assert world.broker.stats("q").totals == Totals(enqueued=2, delivered=1, completed=0, failed=1)
    world.broker.done("q", [first])
    assert world.broker.stats("q").totals.completed == 1


def test_totals_begin_anew_with_each_opening(world: World) -> None:
    world.fill("q", count=3)
    assert world.restart().stats("q").totals == Totals()


def test_deliveries_of_a_key_are_counted_across_times_when_it_had_nothing(world: World) -> None:
    for _ in range(3):
        world.fill("q", key="a", count=1)
        world.broker.claim("q")
    world.fill("q", key="a", count=5, weight=1)
    world.fill("q", key="b", count=5)
    world.broker.claim("q", limit=4)
    assert {key.key: key.delivered for key in world.broker.stats("q", keys=True).keys} == {"a": 5, "b": 2}


def test_a_run_of_a_stream_counts_for_its_key(world: World) -> None:
    world.fill("q", key="a", count=4, stream="s")
    assert len(world.broker.claim("q", limit=3, max_per_stream=3)) == 3
    world.fill("q", key="a", count=1)
    assert world.broker.stats("q", keys=True).keys[0].delivered == 3
    assert world.broker.stats("q").totals.delivered == 3
