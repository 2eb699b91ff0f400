"""Queues: made with their dead letters, changed live, paused, listed, emptied, deleted."""

from __future__ import annotations

import pytest

from fairlead import Complete, Fail, Release, errors
from fairlead.testing import CommitStep
from fairlead.testing.steps import ignore
from fairlead.testing.stored import stored_count
from tests.integration.world import World


def test_a_queue_is_made_with_its_dead_letter_queue_in_one_commit(world: World) -> None:
    before = world.store.last_commit
    info = world.broker.create_queue("orders", visibility_timeout="10s", max_attempts=4)
    assert world.store.last_commit == before + 1
    assert (info.name, info.dead_letter_queue, info.source, info.paused) == (
        "orders",
        "orders.dlq",
        None,
        False,
    )
    assert (info.config.visibility_timeout_ms, info.config.max_attempts, info.created_at) == (
        10_000,
        4,
        world.clock.now_ms(),
    )
    (dead,) = world.broker.queues("orders.dlq")
    assert (dead.name, dead.source, dead.dead_letter_queue) == ("orders.dlq", "orders", None)


def test_when_the_creation_fails_there_is_neither_queue_nor_dead_letter_queue(world: World) -> None:
    def refuse(step: CommitStep) -> None:
        raise errors.StoreFull("here", 0, 1)

    world.store.on_step = refuse
    with pytest.raises(errors.StoreFull):
        world.broker.create_queue("orders")
    world.store.on_step = ignore
    assert world.broker.queues("orders") == []
    assert world.broker.create_queue("orders").name == "orders"


def test_queues_survive_a_restart(world: World) -> None:
    info = world.broker.create_queue(
        "project/orders", max_messages=7, retry={"policy": "immediate", "attempts": 2}
    )
    world.broker.pause("project/orders")
    world.restart()
    (again,) = world.broker.queues("project/orders")[:1]
    assert (again.config, again.created_at, again.paused) == (info.config, info.created_at, True)


@pytest.mark.parametrize("name", ["a", "A_b-c.d", "0", "project/name", "p.1/n-2", "_", "x" * 196])
def test_a_name_may_have_letters_digits_and_a_project(world: World, name: str) -> None:
    world.broker.create_queue(name)
    world.broker.enqueue(name, b"")
    assert world.claim_one(name).queue == name
    assert [info.name for info in world.broker.queues(name)][:2] == [name, f"{name}.dlq"]


REFUSED = [
    "",
    " ",
    "a b",
    "a/b/c",
    "/a",
    "a/",
    "-a",
    ".a",
    "ä",
    "a:b",
    "a\n",
    "x" * 197,
    "a.dlq",
    "p/.dlq",
    "a/-b",
    None,
    5,
    b"a",
]


@pytest.mark.parametrize("name", REFUSED)
def test_other_names_are_refused(world: World, name: object) -> None:
    before = world.store.last_commit
    with pytest.raises(errors.InvalidRequest) as refused:
        world.broker.create_queue(name)  # type: ignore[arg-type]
    assert refused.value.field == "queue"
    assert world.store.last_commit == before


def test_a_name_is_taken_once(world: World) -> None:
    with pytest.raises(errors.QueueExists):
        world.broker.create_queue("q")


def test_the_same_name_in_two_projects_is_two_queues(world: World) -> None:
    world.broker.create_queue("a/q")
    world.broker.create_queue("b/q")
    world.fill("a/q", count=1)
    assert [world.counts(name)[0] for name in ("q", "a/q", "b/q")] == [0, 1, 0]


def test_queues_are_listed_by_name_with_a_prefix(world: World) -> None:
    for name in ("b", "a/x", "a/y"):
        world.broker.create_queue(name)
    assert [info.name for info in world.broker.queues()] == [
        "a/x",
        "a/x.dlq",
        "a/y",
        "a/y.dlq",
        "b",
        "b.dlq",
        "q",
        "q.dlq",
    ]
    assert [info.name for info in world.broker.queues("a/")] == ["a/x", "a/x.dlq", "a/y", "a/y.dlq"]
    assert world.broker.queues("zz") == []


def test_an_update_counts_for_the_next_claim_and_leaves_the_rest_alone(world: World) -> None:
    world.broker.update_queue("q", max_attempts=9)
    world.fill("q", count=2)
    before = world.claim_one("q")
    info = world.broker.update_queue("q", visibility_timeout="5s")
    after = world.claim_one("q")
    assert (after.lease_until - world.clock.now_ms(), before.lease_until - world.clock.now_ms()) == (
        5000,
        30_000,
    )
    assert (info.config.max_attempts, info.config.visibility_timeout_ms) == (9, 5000)
    world.restart()
    assert world.broker.queues("q")[0].config == info.config


def test_a_larger_quantum_counts_at_once_and_loses_no_message(world: World) -> None:
    for key in ("a", "b"):
        world.fill("q", key=key, count=8)
    held = world.claim_one("q")
    world.broker.update_queue("q", quantum=3)
    world.broker.settle([Release(held)])
    assert (
        "".join(delivery.fairness_key for delivery in world.broker.claim("q", limit=16)) == "bbbaaabbbaaabbaa"
    )


def test_a_dead_letter_queue_takes_only_the_options_that_are_its_own(world: World) -> None:
    world.broker.update_queue("q.dlq", visibility_timeout="5s", max_unsettled_per_consumer=1)
    with pytest.raises(errors.InvalidRequest) as refused:
        world.broker.update_queue("q.dlq", max_attempts=3)
    assert refused.value.field == "max_attempts"


def test_a_paused_queue_hands_nothing_out_and_takes_everything_else(world: World) -> None:
    world.fill("q", count=2)
    held = world.claim_one("q")
    world.broker.pause("q")
    world.broker.pause("q")
    assert world.broker.stats("q").paused
    assert world.broker.claim("q", limit=10) == []
    world.fill("q", count=1)
    assert world.broker.settle([Complete(held)])[0].outcome == "completed"
    world.restart()
    assert world.broker.claim("q", limit=10) == []
    world.broker.resume("q")
    assert len(world.broker.claim("q", limit=10)) == 2


def test_leases_expire_and_messages_become_due_while_a_queue_is_paused(world: World) -> None:
    world.fill("q", count=1)
    world.claim_one("q")
    world.broker.enqueue("q", b"", delay="5s")
    world.broker.pause("q")
    world.clock.advance(seconds=30)
    assert world.counts("q") == (2, 0, 0, 0)


def test_purge_drops_what_is_ready_or_waiting_and_keeps_what_is_leased(world: World) -> None:
    world.fill("q", key="a", count=5)
    world.fill("q", key="b", throttle_keys=["t"], count=5)
    world.broker.enqueue("q", b"", delay="1h")
    held = world.broker.claim("q", limit=2)
    world.broker.settle([Fail(world.claim_one("q"), dead=True)])
    assert world.broker.purge("q") == 8
    assert world.counts("q") == (0, 0, 2, 1)
    assert world.broker.claim("q", limit=10) == []
    world.broker.settle([Release(held[0])])
    world.fill("q", key="a", count=1)
    assert len(world.broker.claim("q", limit=10)) == 2
    assert world.broker.purge("q") == 0


def test_purge_empties_a_dead_letter_queue_and_leaves_its_source_alone(world: World) -> None:
    world.fill("q", count=3)
    world.broker.settle([Fail(delivery, dead=True) for delivery in world.broker.claim("q", limit=2)])
    assert world.broker.purge("q.dlq") == 2
    assert world.counts("q") == (1, 0, 0, 0)


def test_purge_frees_dedup_keys_that_live_with_their_messages(world: World) -> None:
    world.broker.update_queue("q", dedup="live")
    first = world.broker.enqueue("q", b"", dedup_key="d", ttl="1h")
    world.broker.purge("q")
    assert world.broker.enqueue("q", b"", dedup_key="d") != first


def test_purge_of_more_than_one_step_drops_all_and_counts_exactly(memory_world: World) -> None:
    world = memory_world
    for key in range(5):
        world.fill("q", key=f"k{key}", count=5000)
    assert world.broker.purge("q") == 25_000
    assert world.counts("q") == (0, 0, 0, 0)
    assert world.broker.intents() == []


def test_a_deleted_queue_is_gone_with_its_dead_letters(world: World) -> None:
    world.fill("q", count=3)
    world.broker.settle([Fail(world.claim_one("q"), dead=True)])
    world.broker.delete_queue("q")
    assert world.broker.queues() == []
    for verb in (world.broker.stats, world.broker.purge, world.broker.delete_queue, world.broker.pause):
        with pytest.raises(errors.QueueNotFound):
            verb("q")
    with pytest.raises(errors.QueueNotFound):
        world.broker.enqueue("q", b"")
    assert stored_count(world.store, "queues") == 0


def test_a_dead_letter_queue_is_not_deleted_alone(world: World) -> None:
    with pytest.raises(errors.InvalidRequest):
        world.broker.delete_queue("q.dlq")


@pytest.mark.parametrize("restarted", [False, True])
def test_a_queue_deleted_with_leased_messages_and_made_again_never_shows_the_old_ones(
    world: World, restarted: bool
) -> None:
    world.broker.update_queue("q", dedup="live")
    old = [
        *world.fill("q", count=4, ttl="1h"),
        world.broker.enqueue("q", b"", delay="5s"),
        world.broker.enqueue("q", b"", dedup_key="d"),
    ]
    held = world.broker.claim("q", limit=3, consumer="ann", token="t")
    world.broker.settle([Fail(held[2], dead=True)])
    world.broker.delete_queue("q")
    world.broker.create_queue("q")
    if restarted:
        world.restart()
    new = world.broker.enqueue("q", b"", dedup_key="d")
    assert new not in old
    assert [result.outcome for result in world.broker.settle([Complete(held[0]), Fail(held[1])])] == [
        "not_found",
        "not_found",
    ]
    assert world.broker.goodbye("ann") == 0
    world.clock.advance(seconds=4000)
    assert [delivery.id for delivery in world.broker.claim("q", limit=10, token="t")] == [new]
    assert world.counts("q") == (0, 0, 1, 0)


def test_the_id_of_a_deleted_queue_is_never_used_again(world: World) -> None:
    seen: set[int] = set()

    def note(step: CommitStep) -> None:
        for change in step.changes("save queue"):
            assert change.record.queue_id not in seen
            seen.add(change.record.queue_id)

    for _ in range(3):
        world.store.on_step = note
        world.broker.create_queue("other")
        world.broker.delete_queue("other")
        world.restart()
    assert len(seen) == 6


def test_the_runtime_weight_of_a_queue_holds_for_the_next_one_of_that_name(world: World) -> None:
    world.broker.config.set("weight:q:a", 5)
    world.broker.delete_queue("q")
    world.broker.create_queue("q")
    world.fill("q", key="a", count=1)
    assert world.broker.stats("q", keys=True).keys[0].weight == 5
