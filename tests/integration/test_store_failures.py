"""When the store fails: a full disk passes and memory equals what is stored; anything else stops the broker."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from fairlead import Complete, DeadFilter, Extend, Fail, NewMessage, Release, Start, errors
from fairlead.clock import SystemClock
from fairlead.testing import CommitStep, Storage, laws
from fairlead.testing.steps import ignore
from fairlead.testing.storage import fail_syncs
from fairlead.testing.stored import stored_count
from tests.integration.world import Background, World, wait_until
from tests.turns import Turn, turn


class Trouble:
    """The n-th commit from now on raises, before anything is written; those after it work."""

    def __init__(
        self,
        world: World,
        nth: int = 1,
        error: Callable[[], Exception] = lambda: errors.StoreFull("here", 0, 1),
    ) -> None:
        self.left = nth
        self._error = error
        world.store.on_step = self._commit

    def _commit(self, step: CommitStep) -> None:
        self.left -= 1
        if self.left == 0:
            raise self._error()


def drain(world: World, queue: str = "q") -> list[str]:
    """Everything there is, now and later, completed."""
    world.clock.advance(seconds=10**6)
    done: list[str] = []
    while claimed := world.broker.claim(queue, limit=100):
        done += [delivery.id for delivery in claimed]
        assert all(result.ok for result in world.broker.settle([Complete(delivery) for delivery in claimed]))
    assert world.counts(queue)[:3] == (0, 0, 0)
    return done


def agree(world: World) -> None:
    """What the broker holds in memory is what a freshly opened one would hold."""
    assert laws(world.store) == []


VERBS: dict[str, Callable[[World, dict[str, Any]], Any]] = {
    "enqueue": lambda world, held: world.fill("q", count=3),
    "enqueue with a dedup key": lambda world, held: world.broker.enqueue(
        "q", b"", dedup_key="d", ttl="1h", delay="5s"
    ),
    "claim": lambda world, held: world.broker.claim("q", limit=3, token="new"),
    "complete": lambda world, held: world.broker.settle([Complete(held["a"])]),
    "fail": lambda world, held: world.broker.settle(
        [Fail(held["a"]), Fail(held["b"], dead=True), Fail(held["c"], retry_in="5s")]
    ),
    "release": lambda world, held: world.broker.settle([Release(held["a"])]),
    "extend and start": lambda world, held: world.broker.settle(
        [Extend(held["a"], "1h", progress=4, carry=b"c"), Start(held["b"])]
    ),
    "goodbye": lambda world, held: world.broker.goodbye("ann"),
    "expiry": lambda world, held: world.clock.advance(seconds=30),
    "due": lambda world, held: world.clock.advance(seconds=10),
    "time to live": lambda world, held: world.clock.advance(seconds=20),
    "redrive": lambda world, held: world.broker.redrive("q", filter=DeadFilter(key="default")),
    "redrive by id": lambda world, held: world.broker.redrive(
        "q", ids=[info.id for info in world.broker.peek("q.dlq")]
    ),
    "redrive at a rate": lambda world, held: world.broker.redrive("q", rate=5),
    "quarantine": lambda world, held: world.broker.quarantine("q", [NewMessage(b"")]),
    "purge": lambda world, held: world.broker.purge("q"),
    "pause": lambda world, held: world.broker.pause("q"),
    "update": lambda world, held: world.broker.update_queue("q", quantum=3, max_unsettled_per_key=5),
    "create": lambda world, held: world.broker.create_queue("new"),
    "config": lambda world, held: world.broker.config.set("throttle:t:rate", 1),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_after_a_full_disk_memory_is_what_is_stored_and_nothing_is_lost(
    world: World, verb: Callable[[World, dict[str, Any]], Any]
) -> None:
    ids = [*world.fill("q", key="k", count=6), *world.fill("q", count=3, throttle_keys=["t"])]
    ids.append(world.broker.enqueue("q", b"", delay="10s"))
    short_lived = world.broker.enqueue("q", b"", ttl="20s", delay="19s")
    world.broker.quarantine("q", [NewMessage(b""), NewMessage(b"")])
    claimed = world.broker.claim("q", limit=3, consumer="ann", token="t", started=False)
    before = world.store.last_commit
    Trouble(world)
    with pytest.raises(errors.StoreFull):
        verb(world, dict(zip("abc", claimed, strict=True)))
    world.store.on_step = ignore
    assert world.store.last_commit == before
    agree(world)
    assert world.broker.settle([Complete(claimed[0])])[0].outcome == "completed", (
        "also when its expiry could not be committed"
    )
    done = [*drain(world), claimed[0].id]
    assert len(done) == len(set(done))
    assert set(done) - {short_lived} == set(ids)
    agree(world)


@pytest.mark.parametrize("verb", ["purge", "redrive"])
def test_a_long_operation_stopped_halfway_by_a_full_disk_goes_on_by_itself(
    memory_world: World, verb: str
) -> None:
    world, count = memory_world, 10_500
    if verb == "redrive":
        world.broker.quarantine("q", [NewMessage(b"")] * count)
    else:
        world.fill("q", count=count)
    Trouble(world, nth=2)
    with pytest.raises(errors.StoreFull):
        getattr(world.broker, verb)("q")
    agree(world)
    assert len(world.broker.intents()) == 1
    world.clock.advance(ms=1)
    assert world.broker.intents() == []
    if verb == "redrive":
        assert world.counts("q") == (count, 0, 0, 0)
    else:
        assert world.counts("q") == (0, 0, 0, 0)
        world.fill("q", count=1)
        assert len(world.broker.claim("q", limit=5)) == 1


def test_a_queue_whose_deletion_does_not_fit_on_the_disk_stays_whole(memory_world: World) -> None:
    world = memory_world
    world.fill("q", count=10_500)
    Trouble(world)
    with pytest.raises(errors.StoreFull):
        world.broker.delete_queue("q")
    agree(world)
    assert world.counts("q") == (10_500, 0, 0, 0)
    world.broker.delete_queue("q")
    assert stored_count(world.store, "queues") == 0
    world.broker.create_queue("q")


def test_after_an_error_that_nobody_foresaw_memory_is_what_is_stored(world: World) -> None:
    world.fill("q", count=3)
    Trouble(world, error=lambda: OverflowError("too big"))
    with pytest.raises(errors.Unavailable, match="OverflowError"):
        world.broker.claim("q", limit=2)
    agree(world)
    assert len(drain(world)) == 3


def test_an_exchange_that_does_not_fit_on_the_disk_does_nothing_of_its_work(world: World) -> None:
    world.fill("q", count=1)
    held = world.claim_one("q")

    def work() -> Turn:
        new = {"q": [NewMessage(b"")]}
        return turn(world.broker, "ann", settle=[Complete(held)], enqueue=new, claim={"queue": "q"})

    Trouble(world)
    with pytest.raises(errors.StoreFull):
        work()
    agree(world)
    assert world.counts("q") == (0, 0, 1, 0)
    result = work()
    assert [settled.outcome for settled in result.settled] == ["completed"]
    assert [delivery.id for delivery in result.deliveries] == result.enqueued["q"]


def test_a_claim_over_two_queues_that_does_not_fit_on_the_disk_takes_of_neither(world: World) -> None:
    world.broker.create_queue("second")
    world.fill("q", count=1)
    world.fill("second", count=1)
    Trouble(world)
    with pytest.raises(errors.StoreFull):
        world.broker.claim(["q", "second"], limit=2)
    agree(world)
    assert (world.counts("q"), world.counts("second")) == ((1, 0, 0, 0), (1, 0, 0, 0))
    assert len(world.broker.claim(["q", "second"], limit=2)) == 2


def test_a_waiting_claim_goes_on_waiting_when_somebody_elses_write_failed(world: World) -> None:
    claim = Background(lambda: world.broker.claim("q", wait="1h"))
    wait_until(lambda: world.broker.stats("q").consumers == 1)
    Trouble(world)
    with pytest.raises(errors.StoreFull):
        world.fill("q", count=1)
    assert not claim.done
    (message_id,) = world.fill("q", count=1)
    assert [delivery.id for delivery in claim.result()] == [message_id]


def test_a_lease_keeps_its_monotonic_deadline_when_memory_is_rebuilt(world: World) -> None:
    world.fill("q", count=1)
    world.claim_one("q")
    world.clock.jump(ms=3_600_000)
    Trouble(world)
    with pytest.raises(errors.StoreFull):
        world.fill("q", count=1)
    world.clock.advance(ms=29_999)
    assert world.counts("q") == (0, 0, 1, 0)
    world.clock.advance(ms=1)
    assert world.counts("q") == (1, 0, 0, 0)


def test_random_traffic_with_full_disks_in_between_loses_and_doubles_nothing(world: World) -> None:
    chance = random.Random(20)
    enqueued: set[str] = set()
    completed: set[str] = set()
    held: list[Any] = []

    def sometimes(step: CommitStep) -> None:
        if chance.random() < 0.3:
            raise errors.StoreFull("here", 0, 1)

    world.store.on_step = sometimes
    for _ in range(600):
        try:
            match chance.randrange(6):
                case 0:
                    enqueued |= set(world.fill("q", key=chance.choice("ab"), count=chance.randint(1, 3)))
                case 1:
                    held += world.broker.claim("q", limit=chance.randint(1, 4), started=chance.random() < 0.5)
                case 2 | 3 if held:
                    delivery = held.pop(chance.randrange(len(held)))
                    make = chance.choice([Complete, Complete, Fail, Release])
                    if world.broker.settle([make(delivery)])[0].outcome == "completed":
                        assert delivery.id not in completed
                        completed.add(delivery.id)
                case 4:
                    world.clock.advance(ms=chance.randint(1, 20_000))
        except errors.StoreFull:
            continue
    world.store.on_step = ignore
    agree(world)
    rest = drain(world)
    assert len(rest) == len(set(rest))
    assert completed | set(rest) == enqueued
    assert not completed & set(rest)


AFTERWARDS: dict[str, Callable[[World], Any]] = {
    "enqueue": lambda world: world.broker.enqueue("q", b""),
    "quarantine": lambda world: world.broker.quarantine("q", [NewMessage(b"")]),
    "claim": lambda world: world.broker.claim("q"),
    "claim by token": lambda world: world.broker.claim("q", token="t"),
    "settle": lambda world: world.broker.settle([]),
    "ack": lambda world: world.broker.ack("q", "018bcfe5-6800-7000-8000-00000000001a"),
    "goodbye": lambda world: world.broker.goodbye("ann"),
    "stats": lambda world: world.broker.stats("q"),
    "queues": lambda world: world.broker.queues(),
    "create": lambda world: world.broker.create_queue("new"),
    "update": lambda world: world.broker.update_queue("q", quantum=2),
    "pause": lambda world: world.broker.pause("q"),
    "purge": lambda world: world.broker.purge("q"),
    "delete": lambda world: world.broker.delete_queue("q"),
    "redrive": lambda world: world.broker.redrive("q"),
    "peek": lambda world: world.broker.peek("q"),
    "find": lambda world: world.broker.find("0123"),
    "explain": lambda world: world.broker.explain("0123"),
    "explain queue": lambda world: world.broker.explain_queue("q"),
    "config": lambda world: world.broker.config.set("a", "1"),
    "config get": lambda world: world.broker.config.get("a"),
    "config list": lambda world: world.broker.config.list(),
    "intents": lambda world: world.broker.intents(),
    "cancel": lambda world: world.broker.cancel_intent(1),
    "checkpoint": lambda world: world.broker.checkpoint(world.path / "copy"),
    "run_due": lambda world: world.broker.run_due(),
}


def test_after_a_failed_store_every_call_raises_it(world: World) -> None:
    world.fill("q", count=2)
    world.claim_one("q", token="t")
    Trouble(world, error=lambda: errors.StoreFailed("the disk is gone"))
    with pytest.raises(errors.StoreFailed):
        world.fill("q", count=1)
    before = world.store.last_commit
    for verb, call in AFTERWARDS.items():
        with pytest.raises(errors.StoreFailed, match="the disk is gone"):
            print(verb, call(world))
    assert world.store.last_commit == before
    world.store.on_step = ignore
    world.restart()
    assert world.counts("q") == (1, 0, 1, 0)


def test_a_closed_broker_says_so_to_every_call(world: World) -> None:
    world.fill("q", count=2)
    world.claim_one("q", token="t")
    world.broker.close()
    world.broker.close()
    for verb, call in AFTERWARDS.items():
        if verb == "run_due":
            continue
        with pytest.raises(errors.BrokerClosed):
            print(verb, call(world))


def test_a_failed_sync_stops_the_broker(tmp_path: Any) -> None:
    world = World("memory", tmp_path)
    world.broker.close()
    store = world.store.reopen()

    broker = store.open_broker(clock=world.clock, durability="fsync")
    broker.create_queue("q")
    fail_syncs(broker, errors.StoreFailed("no sync"))
    with pytest.raises(errors.StoreFailed):
        broker.enqueue("q", b"")
    with pytest.raises(errors.StoreFailed):
        broker.stats("q")


def test_a_waiting_claim_hears_of_a_failed_store(world: World) -> None:
    claim = Background(lambda: world.broker.claim("q", wait="1h"))
    wait_until(lambda: world.broker.stats("q").consumers == 1)
    Trouble(world, error=lambda: errors.StoreFailed("the disk is gone"))
    with pytest.raises(errors.StoreFailed):
        world.fill("q", count=1)
    with pytest.raises(errors.StoreFailed):
        claim.result(timeout=5)


def test_enqueues_stop_at_the_reserve_and_settles_go_on(world: World) -> None:
    world.fill("q", count=2)
    delivery = world.claim_one("q")

    def no_room(incoming_bytes: int) -> None:
        raise errors.StoreFull("here", 1, 2)

    world.store.check_room = no_room
    before = world.store.last_commit
    for call in (lambda: world.fill("q", count=1), lambda: world.broker.quarantine("q", [NewMessage(b"")])):
        with pytest.raises(errors.StoreFull):
            call()
    assert world.store.last_commit == before
    assert world.broker.settle([Fail(delivery)])[0].outcome == "retry"
    assert [
        result.outcome for result in world.broker.settle([Complete(world.claim_one("q")) for _ in range(2)])
    ] == ["completed"] * 2


def test_the_timer_goes_on_after_an_error_that_nobody_foresaw(caplog: pytest.LogCaptureFixture) -> None:
    store = Storage()
    with store.open_broker(clock=SystemClock()) as broker:
        broker.create_queue("q")
        broker.enqueue("q", b"", delay="50ms")
        errors_left = [OverflowError("too big")]

        def trip(step: CommitStep) -> None:
            if errors_left:
                raise errors_left.pop()

        store.on_step = trip
        wait_until(lambda: broker.stats("q").ready == 1)
    assert "too big" in caplog.text
    assert not errors_left
