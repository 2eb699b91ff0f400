"""Outcomes recorded with a claim, and what becomes of its messages when it is closed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from fairlead import Complete, DeadFilter, Extend, Fail, NewMessage, Release
from fairlead.errors import ClaimClosed, ClaimNotNext, InvalidRequest, LimitReached, StoreFull
from fairlead.model.settle import DeliveryRef
from fairlead.testing import CommitStep, Storage, laws
from fairlead.testing.engine import hooks_of
from fairlead.testing.sizes import size
from fairlead.testing.steps import ignore
from fairlead.testing.stored import stored_count
from tests.integration.consumers.scene import Reader, payloads, shown
from tests.integration.world import Background, World, wait_until


def test_messages_without_an_outcome_are_completed_and_nothing_before_the_close(world: World) -> None:
    world.fill("q", count=5)
    reader = Reader(world)
    taken = reader.take(1)
    reader.record(1, [Complete(taken[0])])
    assert world.counts("q") == (0, 0, 5, 0)
    assert reader.close(1).settled == {"completed": 5}
    assert world.counts("q") == (0, 0, 0, 0)
    assert world.broker.browse("q") == []


def test_each_message_gets_the_outcome_recorded_for_it(world: World) -> None:
    world.broker.enqueue_many("q", [NewMessage(b"%d" % n) for n in range(6)])
    reader = Reader(world)
    taken = reader.take(1)
    reader.record(
        1,
        [
            Complete(taken[0], progress=1),
            Fail(taken[1], "no", "handler_exception", progress=4),
            Fail(taken[2], "later", retry_in="1m"),
            Fail(DeliveryRef(taken[3].id, taken[3].lease), "never", dead=True),
            Release(taken[4]),
        ],
    )
    world.restart()
    result = reader.close(1)
    assert result.last_closed == 1
    assert result.settled == {"completed": 2, "retry": 2, "dead": 1, "released": 1}
    assert world.counts("q") == (2, 1, 0, 1)
    (released, failed) = world.broker.claim("q", limit=10)
    assert (released.payload, released.attempts, released.deliveries) == (b"4", 0, 2)
    assert (failed.payload, failed.attempts, int(failed.progress) & 4, failed.failures[-1].error) == (
        b"1",
        1,
        4,
        "no",
    )
    assert failed.failures[-1].consumer == "etl"
    (dead,) = world.broker.peek("q.dlq")
    assert (dead.payload, dead.failures[-1].error) == (b"3", "never")


def test_the_last_word_on_a_message_counts(world: World) -> None:
    world.fill("q", count=3)
    reader = Reader(world)
    a, b, c = reader.take(1)
    reader.record(1, [Fail(a, dead=True), Fail(b), Release(c), Fail(c, dead=True)])
    reader.record(1, [Complete(a), Release(b)])
    assert reader.close(1).settled == {"completed": 1, "released": 1, "dead": 1}


def test_what_is_recorded_under_a_part_counts_only_if_the_part_is_chosen(world: World) -> None:
    world.fill("q", count=4)
    reader = Reader(world)
    a, b, c, d = reader.take(1)
    reader.record(1, [Fail(a, dead=True), Fail(b, dead=True)], part="first try")
    reader.record(1, [Release(a)], part="second try")
    reader.record(1, [Fail(c, dead=True)])
    reader.record(1, [Fail(d, dead=True)], part="never chosen")
    reader.choose(1, ["first try"])
    reader.choose(1, ["second try", "said nothing"])
    world.restart()
    assert reader.close(1).settled == {"released": 1, "completed": 2, "dead": 1}


def test_a_choice_may_add_to_the_one_before(world: World) -> None:
    world.fill("q", count=3)
    reader = Reader(world)
    a, b, c = reader.take(1)
    for part, delivery in (("x", a), ("y", b), ("z", c)):
        reader.record(1, [Fail(delivery, dead=True)], part=part)
    reader.choose(1, ["x"])
    reader.choose(1, ["y", "x"], add=True)
    assert reader.close(1).settled == {"dead": 2, "completed": 1}


def test_a_replay_says_it_again_under_another_part_and_the_first_run_leaves_nothing_behind(
    world: World,
) -> None:
    world.fill("q", count=2)
    reader = Reader(world)
    first = reader.take(1)
    reader.record(1, [Fail(delivery, dead=True) for delivery in first], part="0")
    reader.choose(1, ["0"])
    world.restart()
    reader.register()
    again = reader.take(1)
    assert shown(again) == shown(first)
    reader.choose(1, [])
    reader.record(1, [Release(again[1])], part="1")
    reader.choose(1, ["1"])
    assert reader.close(1).settled == {"completed": 1, "released": 1}


def test_outcomes_are_refused_of_messages_that_are_not_in_the_claim_and_then_none_is_kept(
    world: World,
) -> None:
    world.fill("q", count=3)
    reader = Reader(world)
    inside = reader.take(1, limit=2)
    (outside,) = world.broker.claim("q")
    mixed, nonsense = DeliveryRef(outside.id, inside[0].lease), DeliveryRef("nonsense", "1")
    for items in (
        [Complete(inside[0]), Complete(outside)],
        [Complete(DeliveryRef(inside[0].id, "1"))],
        [Complete(mixed)],
        [Complete(nonsense)],
    ):
        with pytest.raises(InvalidRequest):
            reader.record(1, items)
    with pytest.raises(InvalidRequest):
        reader.record(1, [Extend(inside[0], "30s")])
    assert stored_count(world.store, "outcomes") == 0
    with pytest.raises(ClaimNotNext):
        reader.record(2, [])


def test_outcomes_have_a_bound_in_bytes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size("recorded_bytes"), 2000)
    world.fill("q", count=1)
    reader = Reader(world)
    (only,) = reader.take(1)
    reader.record(1, [Fail(only, "e" * 1500)])
    with pytest.raises(LimitReached, match="bytes of outcomes"):
        reader.record(1, [Fail(only, "e" * 1500)])
    assert reader.close(1).settled == {"retry": 1}


def test_closing_twice_is_closing_once(world: World) -> None:
    world.fill("q", count=4)
    reader = Reader(world)
    taken = reader.take(1, limit=2)
    assert reader.close(0).last_closed == 0
    with pytest.raises(ClaimNotNext):
        reader.close(2)
    assert reader.close(1).settled == {"completed": 2}
    again = reader.close(1)
    assert (again.last_closed, again.settled) == (1, {"completed": 2})
    with pytest.raises(ClaimNotNext):
        reader.close(2)
    reader.claim(2)
    world.restart()
    assert reader.close(1).settled == {"completed": 2}
    assert world.counts("q") == (0, 0, 2, 0)
    reader.close(2)
    assert reader.close(1).settled == {}
    with pytest.raises(ClaimClosed):
        reader.read(1)
    with pytest.raises(ClaimClosed):
        reader.record(1, [Fail(taken[0])])


def test_a_reading_that_a_close_overtakes_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size("read_page_messages"), 2)
    world.fill("q", count=5)
    reader = Reader(world)
    reader.claim(1)
    reading = world.broker.consumers.read("etl", "q", reader.generation, 1)
    next(reading), next(reading)
    reader.close(1)
    with pytest.raises(ClaimClosed):
        next(reading)


def test_completed_messages_are_kept_where_their_queue_keeps_them(world: World) -> None:
    world.broker.update_queue("q", retain_completed="1h")
    world.fill("q", count=3)
    reader = Reader(world)
    taken = reader.take(1)
    reader.record(1, [Complete(taken[0], progress=2)])
    assert reader.close(1).settled == {"completed": 3}
    kept = {info.id: int(info.progress) for info in world.broker.peek("q", where="done")}
    assert kept == {taken[0].id: 2, taken[1].id: 0, taken[2].id: 0}


def test_dedup_keys_and_times_to_live_end_with_their_messages(world: World) -> None:
    world.broker.update_queue("q", dedup="live")
    first = world.broker.enqueue("q", b"", dedup_key="d", ttl="1h")
    reader = Reader(world)
    reader.claim(1)
    assert world.broker.enqueue("q", b"", dedup_key="d") == first
    reader.close(1)
    assert world.broker.enqueue("q", b"", dedup_key="d") != first


def test_a_message_whose_time_to_live_ends_in_a_claim_stays_in_it_and_is_completed_by_the_close(
    world: World,
) -> None:
    world.fill("q", count=3, ttl="1m")
    reader = Reader(world)
    seen = shown(reader.take(1))
    world.clock.advance(ms=3600_000)
    assert shown(reader.read(1)) == seen
    reader.record(1, [Release(delivery) for delivery in reader.read(1)[:1]])
    assert reader.close(1).settled == {"expired": 1, "completed": 2}


def test_the_hook_is_asked_about_failures_without_the_lock(world: World) -> None:
    script = """function on_failure(msg)
        if msg.error == "now" then return { action = "dlq" } end
        return { action = "retry", delay_ms = 60000 }
    end"""
    world.broker.update_queue("q", on_failure=script)
    world.fill("q", count=4)
    reader = Reader(world)
    taken = reader.take(1)
    reader.record(1, [Fail(taken[0], "now"), Fail(taken[1], "later"), Fail(taken[2], "now", retry_in="0s")])
    assert reader.close(1).settled == {"dead": 1, "retry": 2, "completed": 1}
    assert world.counts("q") == (1, 1, 0, 1)


def test_a_step_that_somebody_else_did_while_the_hook_was_asked_is_not_done_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.broker.update_queue("q", on_failure='function on_failure(msg) return { action = "dlq" } end')
    monkeypatch.setattr(size("close_step_messages"), 4)
    world.fill("q", count=10)
    reader = Reader(world)
    taken = reader.take(1)
    reader.record(1, [Fail(delivery, "no") for delivery in taken[:6]])
    hooks = hooks_of(world.broker)
    ask_hook, settled = hooks.on_failure, list[dict[str, int]]()

    def overtaken(*asked: Any) -> Any:
        answer = ask_hook(*asked)
        if not settled:
            settled.append({})
            settled.append(reader.close(1).settled)
        return answer

    monkeypatch.setattr(hooks, "on_failure", overtaken)
    assert reader.close(1).settled == {"dead": 6, "completed": 4}
    assert settled[1] == {"dead": 6, "completed": 4}
    assert world.counts("q") == (0, 0, 0, 6)


# Streams


def test_a_stream_goes_on_in_order_when_its_claim_is_closed(world: World) -> None:
    world.broker.update_queue("q", retry_in_stream={"policy": "fixed", "cooldown": "1m"})
    world.broker.enqueue_many("q", [NewMessage(b"%d" % n, stream="s") for n in range(5)])
    reader = Reader(world)
    taken = reader.take(1, limit=4)
    reader.record(1, [Fail(taken[1], "no"), *[Release(delivery, keep_order=True) for delivery in taken[2:]]])
    assert reader.close(1).settled == {"completed": 1, "retry": 1, "released": 2}
    assert reader.claim(2).count == 0
    world.clock.advance(ms=60_000)
    assert payloads(reader.take(2)) == [b"1", b"2", b"3", b"4"]


def test_a_release_in_a_claim_lets_a_message_pass_one_that_waits(world: World) -> None:
    world.broker.update_queue("q", retry_in_stream={"policy": "fixed", "cooldown": "1m"})
    world.broker.enqueue_many("q", [NewMessage(b"%d" % n, stream="s") for n in range(3)])
    reader = Reader(world)
    taken = reader.take(1)
    reader.record(1, [Fail(taken[0], "no"), Release(taken[1]), Release(taken[2])])
    reader.close(1)
    assert payloads(reader.take(2)) == [b"1", b"2"]


# Steps


def test_many_messages_are_closed_in_steps_and_others_get_the_lock_in_between(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size("close_step_messages"), 10)
    monkeypatch.setattr(size("close_step_outcomes"), 3)
    world.fill("q", count=35)
    reader = Reader(world)
    taken = reader.take(1)
    reader.record(1, [Fail(delivery, dead=True) for delivery in taken[12:18]])
    steps: list[tuple[int, int]] = []
    world.store.on_step = lambda step: steps.append((step.count("complete"), step.count("move")))
    assert reader.close(1).settled == {"completed": 29, "dead": 6}
    assert [sum(column) for column in zip(*steps, strict=True)] == [29, 6]
    assert max(completed + moved for completed, moved in steps) <= 10
    assert max(moved for _, moved in steps) <= 3


def test_messages_without_an_outcome_go_by_the_hundred(memory_world: World) -> None:
    memory_world.fill("q", count=9000)
    reader = Reader(memory_world)
    reader.claim(1)
    sizes: list[int] = []
    memory_world.store.on_step = lambda step: sizes.extend(
        change.count for change in step.changes("complete")
    )
    assert reader.close(1).settled == {"completed": 9000}
    assert sizes == [500] * 18


@pytest.mark.parametrize("hooked", [False, True])
def test_a_close_that_broke_off_is_finished_by_the_timer_of_the_next_life(
    world: World, monkeypatch: pytest.MonkeyPatch, hooked: bool
) -> None:
    monkeypatch.setattr(size("close_step_messages"), 4)
    monkeypatch.setattr(size("close_step_hook_calls"), 1)
    if hooked:
        world.broker.update_queue("q", on_failure='function on_failure(msg) return { action = "dlq" } end')
    world.fill("q", count=11)
    reader = Reader(world)
    taken = reader.take(1)
    reader.record(1, [Fail(delivery, "x", **({} if hooked else {"dead": True})) for delivery in taken[5:8]])
    fail_after(world, 2)
    with pytest.raises(StoreFull):
        reader.close(1)
    world.restart()
    assert laws(world.store) == []
    before = world.broker.stats("q")
    assert 0 < before.leased < 11
    world.broker.run_due()
    assert world.counts("q") == (0, 0, 0, 3)
    shown_now = world.broker.consumers.show("etl", "q")
    assert (shown_now.last_closed, shown_now.open) == (1, 0)
    assert reader.close(1).settled == {"completed": 8, "dead": 3}
    assert stored_count(world.store, "leases") == 0


def test_a_close_that_broke_off_is_finished_by_whoever_asks_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size("close_step_messages"), 4)
    world.fill("q", count=15)
    reader = Reader(world)
    reader.claim(1, limit=10)
    fail_after(world, 2)
    with pytest.raises(StoreFull):
        reader.close(1)
    world.store.on_step = ignore
    assert reader.claim(2).count == 5
    assert world.counts("q") == (0, 0, 5, 0)


def test_two_who_close_at_once_close_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size("close_step_messages"), 3)
    world.fill("q", count=100)
    reader = Reader(world)
    reader.claim(1)
    calls = [Background(lambda: reader.close(1)) for _ in range(3)]
    assert sorted(call.result().settled.get("completed", 0) for call in calls)[-1] == 100
    assert world.counts("q") == (0, 0, 0, 0)


def test_a_close_that_the_timer_has_to_finish_wakes_it_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a clock that goes by itself."""
    monkeypatch.setattr(size("close_step_messages"), 2)
    monkeypatch.setattr(size("timer_sleep_ms"), 3_600_000)
    store = Storage()
    with store.open_broker(durability="os") as broker:
        broker.create_queue("q")
        broker.enqueue_many("q", [NewMessage(b"") for _ in range(9)])
        generation = broker.consumers.register("etl", "q").generation
        broker.consumers.claim("etl", "q", generation, 1)
        commits = itertools.count(1)

        def full_for_a_while(step: CommitStep) -> None:
            if next(commits) in (3, 4, 5):
                raise StoreFull("here", 0, 1)

        store.on_step = full_for_a_while
        with pytest.raises(StoreFull):
            broker.consumers.close("etl", "q", generation, 1)
        wait_until(lambda: broker.stats("q").leased == 0)


def test_what_is_answered_is_synced_also_where_nothing_else_is(disk_world: World) -> None:
    disk_world.fill("q", count=3)
    reader = Reader(disk_world)
    store = disk_world.store.inner
    taken: list = []
    for call in (
        reader.register,
        lambda: reader.claim(1),
        lambda: taken.extend(reader.read(1)),
        lambda: reader.record(1, [Release(taken[0])]),
        lambda: reader.choose(1, ["a"]),
        lambda: reader.close(1),
    ):
        before, commits = store.syncs, store.last_commit
        call()
        assert store.syncs > before or store.last_commit == commits


def test_dead_letters_can_be_read_by_number_too(world: World) -> None:
    world.broker.quarantine("q", [NewMessage(b"a"), NewMessage(b"b")], error="bad")
    reader = Reader(world, queue="q.dlq")
    taken = reader.take(1)
    assert [(d.payload, d.source, d.failures[-1].error) for d in taken] == [
        (b"a", "q", "bad"),
        (b"b", "q", "bad"),
    ]
    assert world.broker.redrive("q.dlq").moved == 0
    assert world.broker.retry("q", filter=DeadFilter()).changed == ()
    reader.record(1, [Fail(taken[0])])
    assert reader.close(1).settled == {"released": 1, "completed": 1}
    assert world.counts("q") == (0, 0, 0, 1)


def fail_after(world: World, commits: int) -> None:
    """The store is full from the n-th commit on, until this is undone."""
    left = [commits]

    def full(step: CommitStep) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise StoreFull("here", 0, 1)

    world.store.on_step = full
