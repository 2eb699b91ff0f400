"""How a claim ends without being closed: an operator, the consumer's time to live, a deleted queue."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fairlead import Fail, NewMessage
from fairlead.errors import ClaimReleased, ConsumerNotFound, QueueNotFound, StoreFull
from fairlead.testing import laws
from fairlead.testing.sizes import size
from fairlead.testing.steps import ignore
from fairlead.testing.stored import stored_count
from tests.integration.consumers.scene import Reader, payloads
from tests.integration.consumers.test_closing import fail_after
from tests.integration.world import World

LOSE: dict[str, Callable[[World], object]] = {
    "release": lambda world: world.broker.consumers.release("etl", "q"),
    "time to live": lambda world: world.clock.advance(ms=60_000),
    "time to live, away": lambda world: (world.restart(away_ms=60_000), world.broker.run_due()),
}


@pytest.mark.parametrize("how", LOSE)
def test_its_messages_go_back_to_their_places_and_no_attempt_is_counted(world: World, how: str) -> None:
    world.broker.enqueue_many("q", [NewMessage(b"%d" % n, stream="s" if n > 3 else None) for n in range(8)])
    reader = Reader(world, ttl="60s")
    taken = reader.take(1, limit=6)
    reader.record(1, [Fail(taken[0], dead=True)])
    LOSE[how](world)
    assert world.counts("q") == (8, 0, 0, 0)
    assert laws(world.store) == []
    again = world.broker.claim("q", limit=10, max_per_stream=10)
    assert payloads(again) == [b"%d" % n for n in range(8)]
    assert {(delivery.attempts, delivery.deliveries) for delivery in again} == {(0, 2), (0, 1)}


@pytest.mark.parametrize("how", LOSE)
def test_whoever_comes_with_its_number_is_told_that_it_is_lost_and_goes_on_with_the_next(
    world: World, how: str
) -> None:
    world.fill("q", count=3)
    reader = Reader(world, ttl="60s")
    taken = reader.take(1, limit=2)
    LOSE[how](world)
    calls = (
        lambda: reader.claim(1),
        lambda: reader.read(1),
        lambda: reader.record(1, [Fail(taken[0])]),
        lambda: reader.choose(1, []),
    )
    for call in (*calls, lambda: reader.close(1)):
        with pytest.raises(ClaimReleased) as told:
            call()
        assert (told.value.number, told.value.name) == (1, "etl")
    assert ("an operator" if how == "release" else "was not seen for 1m") in told.value.why
    info = world.broker.consumers.show("etl", "q")
    assert (info.lost, info.last_closed, info.open) == (1, 1, 0)
    assert reader.claim(2).count == 3
    settled = reader.close(2).settled
    with pytest.raises(ClaimReleased):
        reader.close(1)
    assert reader.close(2).settled == settled == {"completed": 3}


def test_a_message_that_is_claimed_by_number_again_knows_how_often_it_went_out(world: World) -> None:
    world.broker.enqueue_many("q", [NewMessage(b"%d" % n, stream="s" if n else None) for n in range(3)])
    reader = Reader(world)
    for number in (1, 2, 3):
        assert [delivery.deliveries for delivery in reader.take(number)] == [number] * 3
        world.broker.consumers.release("etl", "q")


def test_releasing_says_how_many_and_with_nothing_in_hand_nothing_happens(world: World) -> None:
    world.fill("q", count=3)
    reader = Reader(world)
    assert world.broker.consumers.release("etl", "q") == 0
    reader.claim(1, limit=2)
    assert world.broker.consumers.release("etl", "q") == 2
    assert world.broker.consumers.release("etl", "q") == 0
    assert world.broker.consumers.show("etl", "q").lost == 1


def test_a_consumer_with_nothing_in_hand_outlives_its_time(world: World) -> None:
    world.fill("q", count=2)
    reader = Reader(world, ttl="60s")
    reader.claim(1)
    reader.close(1)
    world.clock.advance(ms=600_000)
    info = world.broker.consumers.show("etl", "q")
    assert (info.lost, info.last_closed) == (0, 1)
    world.fill("q", count=1)
    assert reader.claim(2).count == 1


def test_a_step_of_the_wall_clock_ends_nobody_in_this_process(world: World) -> None:
    world.fill("q", count=1)
    reader = Reader(world, ttl="60s")
    reader.claim(1)
    world.clock.jump(ms=3600_000)
    world.broker.run_due()
    assert reader.claim(1).count == 1
    world.restart(jump_ms=-7200_000)
    world.clock.advance(ms=59_000)
    assert world.broker.consumers.show("etl", "q").open == 1
    world.clock.advance(ms=1001)
    assert world.broker.consumers.show("etl", "q").lost == 1


@pytest.mark.parametrize("dropping", [False, True])
def test_a_release_that_broke_off_is_finished_later(
    world: World, monkeypatch: pytest.MonkeyPatch, dropping: bool
) -> None:
    monkeypatch.setattr(size("release_step_messages"), 3)
    world.broker.enqueue_many("q", [NewMessage(b"%d" % n, stream="s") for n in range(10)])
    Reader(world).claim(1)
    fail_after(world, 2)
    with pytest.raises(StoreFull):
        (world.broker.consumers.drop if dropping else world.broker.consumers.release)("etl", "q")
    world.restart()
    assert laws(world.store) == []
    assert world.counts("q") == (6, 0, 4, 0)
    world.broker.run_due()
    assert world.counts("q") == (10, 0, 0, 0)
    assert [info.name for info in world.broker.consumers.list()] == ([] if dropping else ["etl"])
    assert payloads(world.broker.claim("q", limit=10, max_per_stream=10)) == [b"%d" % n for n in range(10)]


def test_a_dropped_consumer_is_forgotten_with_what_it_had_in_hand(world: World) -> None:
    world.fill("q", count=3)
    reader = Reader(world)
    taken = reader.take(1)
    reader.record(1, [Fail(taken[0])])
    reader.choose(1, ["a"])
    world.broker.consumers.drop("etl", "q")
    assert world.counts("q") == (3, 0, 0, 0)
    assert world.broker.consumers.list() == []
    with pytest.raises(ConsumerNotFound):
        reader.claim(1)
    world.restart()
    assert world.broker.consumers.list() == []
    again = Reader(world)
    assert again.claim(1).count == 3
    assert stored_count(world.store, "outcomes") == 0


@pytest.mark.parametrize("queue", ["q", "q.dlq"])
def test_a_deleted_queue_takes_what_is_in_hand_with_it_and_the_reader_is_told(
    world: World, queue: str
) -> None:
    world.fill("q", count=3)
    world.broker.quarantine("q", [NewMessage(b"")])
    reader = Reader(world, queue=queue)
    reader.claim(1)
    half_read = world.broker.consumers.read("etl", queue, reader.generation, 1)
    world.broker.delete_queue("q")
    with pytest.raises(ClaimReleased, match=f"queue '{queue}' was deleted"):
        list(half_read)
    for call in (lambda: reader.read(1), lambda: reader.close(1), lambda: reader.claim(1)):
        with pytest.raises(ClaimReleased):
            call()
    with pytest.raises(QueueNotFound):
        reader.claim(2)
    world.restart()
    assert laws(world.store) == []
    assert stored_count(world.store, "leases") == 0
    world.broker.create_queue("q")
    with pytest.raises(QueueNotFound):
        reader.claim(2)
    world.fill("q", count=2)
    world.broker.quarantine("q", [NewMessage(b"")] * 2)
    reader.register()
    assert reader.claim(2).count == 2


def test_a_queue_deleted_between_the_steps_of_a_close_leaves_no_step_behind(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size("close_step_messages"), 2)
    world.fill("q", count=7)
    reader = Reader(world)
    reader.claim(1)
    fail_after(world, 3)
    with pytest.raises(StoreFull):
        reader.close(1)
    world.store.on_step = ignore
    world.broker.delete_queue("q")
    world.broker.run_due()
    info = world.broker.consumers.show("etl", "q")
    assert (info.last_closed, info.lost, info.open) == (1, 0, 0)
    assert laws(world.store) == []


def test_a_consumer_that_is_being_dropped_goes_with_its_queue(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size("release_step_messages"), 2)
    world.fill("q", count=7)
    Reader(world).claim(1)
    fail_after(world, 2)
    with pytest.raises(StoreFull):
        world.broker.consumers.drop("etl", "q")
    world.store.on_step = ignore
    world.broker.delete_queue("q")
    assert world.broker.consumers.list() == []


@pytest.mark.parametrize("call", ["drop", "claim", "close"])
def test_a_close_that_got_no_further_than_its_first_step_is_finished_before_another_call(
    world: World, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(size("close_step_messages"), 2)
    world.fill("q", count=7)
    reader = Reader(world)
    reader.claim(1, limit=4)
    fail_after(world, 1)
    with pytest.raises(StoreFull):
        reader.close(1)
    world.store.on_step = ignore
    assert world.counts("q") == (3, 0, 2, 0)
    if call == "drop":
        world.broker.consumers.drop("etl", "q")
        assert world.broker.consumers.list() == []
        assert world.counts("q") == (3, 0, 0, 0)
    elif call == "claim":
        assert reader.claim(2).count == 3
        assert world.counts("q") == (0, 0, 3, 0)
    else:
        assert reader.close(1).last_closed == 1
        assert world.counts("q") == (3, 0, 0, 0)
    assert laws(world.store) == []
