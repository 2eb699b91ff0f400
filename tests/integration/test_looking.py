"""Counts, peeks and finds: exact, and without touching anything."""

from __future__ import annotations

import pytest

from fairlead import Complete, Fail, NewMessage, Release, errors
from fairlead.model.views import QueueStats
from tests.integration.world import World


def test_stats_count_what_is_where(world: World) -> None:
    world.fill("q", key="a", payload=b"x" * 10, count=4)
    world.broker.enqueue("q", b"y", delay="1h", headers={"h": "v"})
    first, second = world.broker.claim("q", limit=2, consumer="ann")
    world.broker.settle([Fail(first, dead=True)])
    stats = world.broker.stats("q")
    assert (stats.ready, stats.waiting, stats.leased, stats.dead, stats.done) == (2, 1, 1, 1, 0)
    assert (stats.bytes, stats.consumers, stats.active_keys, stats.paused) == (30 + 1 + 5, 1, 1, False)
    dead = world.broker.stats("q.dlq")
    assert (dead.ready, dead.leased, dead.dead, dead.bytes) == (1, 0, 1, 10)
    world.broker.settle([Complete(second)])
    assert world.broker.stats("q").consumers == 0


def test_stats_of_a_fresh_queue_are_zero(world: World) -> None:
    assert world.broker.stats("q", keys=True) == QueueStats("q", 0, 0, 0, 0, 0, 0, 0, 0, False)


def test_stats_are_exact_after_a_restart(world: World) -> None:
    world.fill("q", key="a", weight=3, payload=b"abc", count=20)
    world.fill("q", key="b", count=5, ttl="1h", dedup_key=None)
    world.broker.enqueue("q", b"", delay="1h")
    claimed = world.broker.claim("q", limit=9, consumer="ann")
    world.broker.settle(
        [
            Complete(claimed[0]),
            Fail(claimed[1]),
            Fail(claimed[2], dead=True),
            Release(claimed[3]),
            Fail(claimed[4], retry_in="1h"),
        ]
    )
    before, dead_before = world.broker.stats("q"), world.broker.stats("q.dlq")
    world.restart()
    assert (world.broker.stats("q"), world.broker.stats("q.dlq")) == (before, dead_before)


def test_stats_show_each_active_key(world: World) -> None:
    world.fill("q", key="a", weight=3, count=5)
    world.fill("q", key="a", weight=3, count=2, throttle_keys=["t"])
    world.fill("q", key="b", count=1)
    world.claim_one("q")
    keys = world.broker.stats("q", keys=True).keys
    assert [(key.key, key.weight, key.deficit, key.pending, key.more) for key in keys] == [
        ("a", 3, 2, 6, False),
        ("b", 1, 0, 1, False),
    ]
    assert len(world.broker.stats("q", keys=True, key_limit=1).keys) == 1
    assert world.broker.stats("q").keys == ()


def test_pending_is_counted_to_10000_and_then_says_more(memory_world: World) -> None:
    memory_world.fill("q", key="a", count=10_000)
    (key,) = memory_world.broker.stats("q", keys=True).keys
    assert (key.pending, key.more) == (10_000, False)
    memory_world.fill("q", key="a", count=1)
    (key,) = memory_world.broker.stats("q", keys=True).keys
    assert (key.pending, key.more) == (10_000, True)


def test_all_keys_together_count_no_more_rows_than_one_look_may(memory_world: World) -> None:
    memory_world.broker.enqueue_many("q", [NewMessage(b"", fairness_key=f"k{at:03}") for at in range(499)])
    memory_world.fill("q", key="big", count=300)
    keys = memory_world.broker.stats("q", keys=True).keys
    assert (keys[0].key, keys[0].pending, keys[0].more) == ("big", 200, True)
    assert {(key.pending, key.more) for key in keys[1:]} == {(1, False)}


def test_a_message_of_a_stream_shows_its_order_wherever_it_is(world: World) -> None:
    world.broker.enqueue_many("q", [NewMessage(name, stream="s") for name in (b"leased", b"behind")])
    world.broker.enqueue_many(
        "q",
        [NewMessage(b"plain"), NewMessage(b"late", stream="s", delay="1m"), NewMessage(b"last", stream="s")],
    )
    delivery = world.claim_one("q")
    infos = {
        info.payload: info.seq
        for where in ("leased", "ready", "waiting")
        for info in world.broker.peek("q", where=where)
    }
    assert infos.pop(b"plain") == 0
    assert infos.pop(b"leased") == delivery.seq == world.broker.find(delivery.id).seq
    assert delivery.seq < infos[b"behind"] < infos[b"late"] < infos[b"last"]
    world.broker.bury("q", [delivery.id])
    world.broker.redrive("q")
    assert world.broker.find(delivery.id).seq > infos[b"last"], "the tail of its stream, in a new life"


def test_consumers_that_hold_a_lease_count_once_per_queue(world: World) -> None:
    world.broker.create_queue("r")
    world.fill("q", count=4)
    for consumer in ("ann", "ann", "bob"):
        world.claim_one("q", consumer=consumer)
    assert (world.broker.stats("q").consumers, world.broker.stats("r").consumers) == (2, 0)
    world.broker.goodbye("ann")
    assert world.broker.stats("q").consumers == 1
    world.clock.advance(seconds=30)
    assert world.broker.stats("q").consumers == 0


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_peek_pages_through_ready_messages_without_claiming_them(world: World, limit: int) -> None:
    for key in ("b", "a"):
        for throttle in ((), ("t",)):
            world.broker.enqueue_many(
                "q", [NewMessage(b"", fairness_key=key, throttle_keys=throttle) for _ in range(3)]
            )
    seen: list[str] = []
    while page := world.broker.peek("q", limit=limit, after=seen[-1] if seen else None):
        assert len(page) <= limit
        seen += [info.id for info in page]
    assert len(seen) == len(set(seen)) == 12
    assert [world.broker.find(message_id).fairness_key for message_id in seen] == ["a"] * 6 + ["b"] * 6
    assert world.counts("q") == (12, 0, 0, 0)


@pytest.mark.parametrize("where", ["waiting", "leased"])
def test_peek_pages_through_waiting_and_leased_messages(world: World, where: str) -> None:
    for at in range(8):
        world.broker.enqueue(
            "q", b"", delay=f"{9 - at}s" if where == "waiting" else None, fairness_key="ab"[at % 2]
        )
    world.broker.claim("q", limit=8)
    seen: list[str] = []
    while page := world.broker.peek("q", where=where, limit=3, after=seen[-1] if seen else None):
        assert {info.where for info in page} == {where}
        seen += [info.id for info in page]
    assert len(seen) == len(set(seen)) == 8
    if where == "waiting":
        dues = [world.broker.find(message_id).due_at for message_id in seen]
        assert dues == sorted(dues)  # type: ignore[type-var]
    assert len(world.broker.peek("q", where=where, key="a")) == 4


def test_peek_by_key_shows_that_key_alone(world: World) -> None:
    for key in ("a", "ab", "b"):
        world.fill("q", key=key, count=2)
    assert {info.fairness_key for info in world.broker.peek("q", key="a")} == {"a"}
    assert world.broker.peek("q", key="nobody") == []


def test_find_shows_where_a_message_is_and_how_it_fared(world: World) -> None:
    message_id = world.broker.enqueue(
        "q", b"body", headers={"h": "1"}, fairness_key="k", weight=2, throttle_keys=["t"], ttl="1d"
    )
    ready = world.broker.find(message_id)
    assert (ready.queue, ready.where, ready.payload, ready.headers, ready.fairness_key) == (
        "q",
        "ready",
        b"body",
        {"h": "1"},
        "k",
    )
    assert (ready.weight, ready.throttle_keys, ready.attempts, ready.deliveries, ready.reason) == (
        2,
        ("t",),
        0,
        0,
        None,
    )
    assert (ready.expires_at, ready.lease_until, ready.consumer, ready.due_at) == (
        world.clock.now_ms() + 86_400_000,
        None,
        None,
        None,
    )
    delivery = world.claim_one("q", consumer="ann")
    leased = world.broker.find(message_id)
    assert (leased.where, leased.consumer, leased.lease_until, leased.deliveries) == (
        "leased",
        "ann",
        delivery.lease_until,
        1,
    )
    world.broker.settle([Fail(delivery, retry_in="5s", reason="dependency_failure", error="down")])
    waiting = world.broker.find(message_id)
    assert (waiting.where, waiting.due_at, waiting.attempts, waiting.rule) == (
        "waiting",
        world.clock.now_ms() + 5000,
        1,
        "instruction",
    )
    world.clock.advance(seconds=5)
    world.broker.settle([Fail(world.claim_one("q"), dead=True)])
    dead = world.broker.find(message_id)
    assert (dead.queue, dead.where, dead.source, dead.dead_since) == (
        "q.dlq",
        "ready",
        "q",
        world.clock.now_ms(),
    )
    world.broker.settle([Complete(world.claim_one("q.dlq"))])
    with pytest.raises(errors.MessageNotFound):
        world.broker.find(message_id)


def test_find_by_prefix_and_by_tail(world: World) -> None:
    ids = []
    for _ in range(3):
        ids += world.fill("q", count=1)
        world.clock.advance(seconds=100)
    delayed = world.broker.enqueue("q", b"", delay="1h")
    for message_id in (*ids, delayed):
        assert world.broker.find(message_id).id == message_id
        assert world.broker.find(message_id.upper()).id == message_id
        assert world.broker.find(message_id[:16]).id == message_id
        assert world.broker.find(message_id[-8:], queue="q").id == message_id
    held = world.claim_one("q")
    assert world.broker.find(held.id[-8:], queue="q").where == "leased"
    with pytest.raises(errors.MessageNotFound):
        world.broker.find(ids[0][-8:])
    with pytest.raises(errors.MessageNotFound):
        world.broker.find(ids[0][-8:], queue="q.dlq")


def test_an_ambiguous_prefix_names_what_it_fits(world: World) -> None:
    ids = world.fill("q", count=2)
    with pytest.raises(errors.AmbiguousId) as ambiguous:
        world.broker.find(ids[0][:8])
    assert set(ambiguous.value.matches) == set(ids)
    assert world.broker.find(ids[0][:-1]).id == ids[0]


def test_a_tail_is_looked_for_within_a_bounded_part_of_the_queue(memory_world: World) -> None:
    ids = memory_world.fill("q", count=2500)
    assert memory_world.broker.find(ids[-1][-12:], queue="q").id == ids[-1]


def test_a_tail_finds_messages_behind_the_front_of_their_stream(world: World) -> None:
    ids = world.broker.enqueue_many("q", [NewMessage(b"", stream="s") for _ in range(3)])
    assert [world.broker.find(message_id[-8:], queue="q").id for message_id in ids] == ids


@pytest.mark.parametrize("text", ["", "abc", "zzzz", "0188 ", 5, None, "g" * 36])
def test_what_cannot_be_an_id_is_refused(world: World, text: str) -> None:
    with pytest.raises(errors.InvalidRequest) as refused:
        world.broker.find(text)
    assert refused.value.field == "id"


def test_a_message_is_found_and_settled_while_the_server_stops(world: World) -> None:
    (message_id,) = world.fill("q", count=1)
    delivery = world.claim_one("q")
    world.broker.interrupt_waits()
    assert world.broker.queues_of([delivery.raw_id]) == ["q"]
    assert world.broker.find(message_id).where == "leased"
    assert world.broker.stats("q").leased == 1
    assert world.broker.settle([Complete(delivery)])[0].ok
