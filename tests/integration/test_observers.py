from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from fairlead import Complete, Fail
from fairlead.errors import BrokerClosed, StoreFull
from fairlead.model.facts import Completed, Enqueued, Fact, IntentEnded, Leased, Moved, QueueSaved
from fairlead.model.timings import Timing
from tests.integration.world import World


class Heard:
    def __init__(self, world: World) -> None:
        self.facts: list[Fact] = []
        self.timings: list[Timing] = []
        world.broker.observe(self.facts.extend, timed=self.timings.append)

    def causes(self) -> list[tuple[str, str]]:
        return [(fact.kind, fact.cause) for fact in self.facts if isinstance(fact, Moved)]


def test_an_observer_is_told_the_queues_there_are_and_then_what_is_committed(world: World) -> None:
    heard = Heard(world)
    assert [fact.record.name for fact in heard.facts if isinstance(fact, QueueSaved)] == ["q", "q.dlq"]
    heard.facts.clear()
    world.fill("q", count=3)
    world.broker.settle([Complete(delivery) for delivery in world.broker.claim("q", limit=3)])
    assert [type(fact) for fact in heard.facts][:2] == [Enqueued, Leased]
    completed = [fact for fact in heard.facts if isinstance(fact, Completed)]
    assert [len(fact.leases) for fact in completed] == [3]


def test_an_observer_is_told_after_the_commit_and_never_of_one_that_failed(world: World) -> None:
    seen: list[int] = []
    world.broker.observe(lambda facts: seen.append(world.store.last_commit))
    before = world.store.last_commit
    world.fill("q", count=1)
    assert seen[1:] == [before + 1]

    def refuse(facts: Sequence[Fact]) -> None:
        raise StoreFull("data", 0, 1)

    world.store.on_commit = refuse
    with pytest.raises(StoreFull):
        world.fill("q", count=1)
    world.store.on_commit = lambda facts: None
    assert seen[1:] == [before + 1]


def test_an_observer_that_fails_harms_no_commit_and_is_logged_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[int] = []

    def fail(facts: Sequence[Fact]) -> None:
        told.append(len(facts))
        raise RuntimeError("metrics are broken")

    after = Heard(world)
    with caplog.at_level(logging.ERROR, "fairlead.observers"):
        world.broker.observe(fail)
        ids = world.fill("q", count=2)
        world.fill("q", count=2)
    assert len(ids) == 2
    assert world.counts("q") == (4, 0, 0, 0)
    assert len(told) == 3
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert sum(isinstance(fact, Enqueued) for fact in after.facts) == 2


def test_a_closed_broker_takes_no_observer(world: World) -> None:
    world.broker.close()
    with pytest.raises(BrokerClosed):
        world.broker.observe(lambda facts: None)


def test_a_move_says_what_caused_it_where_nobody_asked_for_it(world: World) -> None:
    world.broker.create_queue("short", visibility_timeout="1s", retry="none", dead_retention="1m")
    heard = Heard(world)
    world.fill("short", count=2)
    first, second = world.broker.claim("short", limit=2)
    world.broker.settle([Fail(first)])
    world.clock.advance(ms=1_000)
    assert heard.causes() == [("buried", ""), ("buried", "lease_expiry")]
    world.broker.redrive("short", count=1)
    assert heard.causes()[2:] == [("redriven", "redrive")]
    world.broker.purge("short")
    assert heard.causes()[3:] == [("dropped", "purge")]
    world.clock.advance(ms=60_000)
    assert heard.causes()[4:] == [("expired", "retention")]
    world.fill("short", count=1)
    world.broker.delete_queue("short")
    assert heard.causes()[5:] == [("dropped", "delete")]
    assert sum(isinstance(fact, IntentEnded) for fact in heard.facts) <= 1
    assert second.id


def test_timings_tell_of_commits_and_hooks(world: World) -> None:
    world.broker.create_queue(
        "hooked", on_enqueue='function on_enqueue(msg) if msg.headers.bad then error("no") end return {} end'
    )
    heard = Heard(world)
    world.broker.enqueue("hooked", b"")
    world.broker.enqueue("hooked", b"", headers={"bad": "1"})
    hooked = [timing for timing in heard.timings if timing.what == "on_enqueue"]
    assert [(timing.ran, timing.failed, timing.bypassed) for timing in hooked] == [(1, 0, 0), (0, 1, 0)]
    assert all(timing.seconds > 0 for timing in heard.timings)
    assert [timing.what for timing in heard.timings] == ["on_enqueue", "commit"] * 2
    assert len({timing.queue_id for timing in hooked}) == 1
