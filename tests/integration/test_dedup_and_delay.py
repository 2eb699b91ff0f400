"""The same key twice is one message; a delay is kept."""

from __future__ import annotations

import pytest

from fairlead import Complete, Fail, NewMessage
from fairlead.testing.stored import stored_count
from tests.integration.world import World


def test_within_the_window_the_first_id_comes_back_and_nothing_is_stored(world: World) -> None:
    first = world.broker.enqueue("q", b"first", dedup_key="d")
    before = world.store.last_commit
    assert world.broker.enqueue("q", b"second", dedup_key="d") == first
    assert world.store.last_commit == before
    assert world.broker.enqueue("q", b"other", dedup_key="e") != first
    assert [delivery.payload for delivery in world.broker.claim("q", limit=5)] == [b"first", b"other"]


def test_the_window_runs_from_the_first_enqueue_and_is_not_renewed_by_duplicates(world: World) -> None:
    world.broker.update_queue("q", dedup="10s")
    first = world.broker.enqueue("q", b"", dedup_key="d")
    world.clock.advance(ms=6000)
    assert world.broker.enqueue("q", b"", dedup_key="d") == first
    world.clock.advance(ms=3999)
    assert world.broker.enqueue("q", b"", dedup_key="d") == first
    world.clock.advance(ms=1)
    second = world.broker.enqueue("q", b"", dedup_key="d")
    assert second != first
    world.clock.advance(ms=9999)
    assert world.broker.enqueue("q", b"", dedup_key="d") == second


def test_the_window_goes_on_after_the_message_is_done(world: World) -> None:
    first = world.broker.enqueue("q", b"", dedup_key="d")
    world.broker.settle([Complete(world.claim_one("q"))])
    assert world.broker.enqueue("q", b"", dedup_key="d") == first
    assert world.counts("q") == (0, 0, 0, 0)


def test_a_window_that_is_over_counts_as_over_also_before_it_is_swept(world: World) -> None:
    first = world.broker.enqueue("q", b"", dedup_key="d")
    world.clock._monotonic_ms += 300_000
    assert world.broker.enqueue("q", b"", dedup_key="d") != first


def test_a_live_key_lasts_as_long_as_its_message(world: World) -> None:
    world.broker.update_queue("q", dedup="live")
    first = world.broker.enqueue("q", b"", dedup_key="d")
    world.clock.advance(seconds=10**7)
    assert world.broker.enqueue("q", b"", dedup_key="d") == first
    delivery = world.claim_one("q")
    assert world.broker.enqueue("q", b"", dedup_key="d") == first
    world.broker.settle([Fail(delivery, retry_in="1h")])
    assert world.broker.enqueue("q", b"", dedup_key="d") == first
    world.clock.advance(seconds=3600)
    world.broker.settle([Complete(world.claim_one("q"))])
    assert world.broker.enqueue("q", b"", dedup_key="d") != first


@pytest.mark.parametrize("end", ["dead", "ttl", "purge"])
def test_a_live_key_ends_with_its_message_however_that_ends(world: World, end: str) -> None:
    world.broker.update_queue("q", dedup="live")
    first = world.broker.enqueue("q", b"", dedup_key="d", ttl="10s")
    if end == "dead":
        world.broker.settle([Fail(world.claim_one("q"), dead=True)])
    elif end == "ttl":
        world.clock.advance(seconds=10)
    else:
        world.broker.purge("q")
    assert world.broker.enqueue("q", b"", dedup_key="d") != first


@pytest.mark.parametrize("dedup", ["5m", "live"])
def test_duplicates_inside_one_batch_get_the_id_of_the_first(world: World, dedup: str) -> None:
    world.broker.update_queue("q", dedup=dedup)
    keys = ["d", None, "d", "e", "d", None, "e"]
    ids = world.broker.enqueue_many(
        "q", [NewMessage(str(at).encode(), dedup_key=key) for at, key in enumerate(keys)]
    )
    assert ids[0] == ids[2] == ids[4]
    assert ids[3] == ids[6]
    assert len(set(ids)) == 4
    assert [delivery.payload for delivery in world.broker.claim("q", limit=10)] == [b"0", b"1", b"3", b"5"]


@pytest.mark.parametrize("dedup", ["5m", "live"])
def test_dedup_keys_survive_a_restart(world: World, dedup: str) -> None:
    world.broker.update_queue("q", dedup=dedup)
    first = world.broker.enqueue("q", b"", dedup_key="d")
    world.restart(away_ms=1000)
    assert world.broker.enqueue("q", b"", dedup_key="d") == first
    world.restart(away_ms=300_000)
    again = world.broker.enqueue("q", b"", dedup_key="d")
    assert (again == first) == (dedup == "live")


def test_the_same_key_in_two_queues_is_two_messages(world: World) -> None:
    world.broker.create_queue("r")
    assert world.broker.enqueue("q", b"", dedup_key="d") != world.broker.enqueue("r", b"", dedup_key="d")


def test_a_key_keeps_the_kind_of_window_it_was_enqueued_with(world: World) -> None:
    windowed = world.broker.enqueue("q", b"", dedup_key="windowed")
    world.broker.update_queue("q", dedup="live")
    live = world.broker.enqueue("q", b"", dedup_key="live")
    world.broker.update_queue("q", dedup="5m")
    world.clock.advance(seconds=300)
    assert world.broker.enqueue("q", b"", dedup_key="windowed") != windowed
    assert world.broker.enqueue("q", b"", dedup_key="live") == live


def test_many_windows_end_together(world: World) -> None:
    ids = world.broker.enqueue_many("q", [NewMessage(b"", dedup_key=f"d{at}") for at in range(2500)])
    world.clock.advance(seconds=300)
    assert stored_count(world.store, "windows") == 0
    assert not set(ids) & set(
        world.broker.enqueue_many("q", [NewMessage(b"", dedup_key=f"d{at}") for at in range(2500)])
    )


def test_a_delayed_message_waits_for_its_time_and_no_longer(world: World) -> None:
    world.broker.enqueue("q", b"", delay="10s")
    assert world.counts("q") == (0, 1, 0, 0)
    world.clock.advance(ms=9999)
    assert world.broker.claim("q") == []
    world.clock.advance(ms=1)
    delivery = world.claim_one("q")
    assert (delivery.attempts, delivery.deliveries) == (0, 1)


def test_a_delay_is_kept_over_a_restart(world: World) -> None:
    ids = [
        world.broker.enqueue("q", b"", delay=f"{seconds}s", fairness_key="k", throttle_keys=["t"])
        for seconds in (60, 30)
    ]
    world.restart(away_ms=29_999)
    world.broker.run_due()
    assert world.counts("q") == (0, 2, 0, 0)
    world.clock.advance(ms=1)
    delivery = world.claim_one("q")
    assert (delivery.id, delivery.fairness_key, delivery.throttle_keys) == (ids[1], "k", ("t",))
    world.broker.settle([Complete(delivery)])
    world.restart(away_ms=30_000)
    assert world.claim_one("q").id == ids[0], "a claim finds what became due while the broker was away"


def test_a_delay_of_zero_is_no_delay(world: World) -> None:
    world.broker.enqueue("q", b"", delay="0s")
    assert world.counts("q") == (1, 0, 0, 0)


def test_a_duplicate_of_a_delayed_message_changes_nothing_about_it(world: World) -> None:
    first = world.broker.enqueue("q", b"", delay="10s", dedup_key="d")
    assert world.broker.enqueue("q", b"", dedup_key="d") == first
    assert world.counts("q") == (0, 1, 0, 0)


def test_more_due_messages_than_one_step_all_become_ready_in_order(world: World) -> None:
    ids = world.broker.enqueue_many("q", [NewMessage(b"", delay="5s") for _ in range(2500)])
    world.clock.advance(seconds=5)
    assert world.counts("q") == (2500, 0, 0, 0)
    assert [delivery.id for delivery in world.broker.claim("q", limit=2500)] == ids
