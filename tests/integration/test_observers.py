from __future__ import annotations

import logging

import pytest

from fairlead import Complete, Fail
from fairlead.errors import BrokerClosed, StoreFull
from fairlead.model.timings import Timing
from fairlead.testing import CommitStep
from fairlead.testing.steps import Change, ignore, observe
from tests.integration.world import World


class Heard:
    def __init__(self, world: World) -> None:
        self.changes: list[Change] = []
        self.timings: list[Timing] = []
        observe(world.broker, lambda step: self.changes.extend(step.changes()), timed=self.timings.append)

    def causes(self) -> list[tuple[str, str]]:
        return [change.move[:2] for change in self.changes if change.what == "move"]


def test_an_observer_is_told_the_queues_there_are_and_then_what_is_committed(world: World) -> None:
    heard = Heard(world)
    assert [change.record.name for change in heard.changes if change.what == "save queue"] == ["q", "q.dlq"]
    heard.changes.clear()
    world.fill("q", count=3)
    world.broker.settle([Complete(delivery) for delivery in world.broker.claim("q", limit=3)])
    assert [change.what for change in heard.changes][:2] == ["enqueue", "claim"]
    completed = [change for change in heard.changes if change.what == "complete"]
    assert [change.count for change in completed] == [3]


def test_an_observer_is_told_after_the_commit_and_never_of_one_that_failed(world: World) -> None:
    seen: list[int] = []
    observe(world.broker, lambda step: seen.append(world.store.last_commit))
    before = world.store.last_commit
    world.fill("q", count=1)
    assert seen[1:] == [before + 1]

    def refuse(step: CommitStep) -> None:
        raise StoreFull("data", 0, 1)

    world.store.on_step = refuse
    with pytest.raises(StoreFull):
        world.fill("q", count=1)
    world.store.on_step = ignore
    assert seen[1:] == [before + 1]


def test_an_observer_that_fails_harms_no_commit_and_is_logged_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[int] = []

    def fail(step: CommitStep) -> None:
        told.append(len(step.words))
        raise RuntimeError("metrics are broken")

    after = Heard(world)
    with caplog.at_level(logging.ERROR, "fairlead.observers"):
        observe(world.broker, fail)
        ids = world.fill("q", count=2)
        world.fill("q", count=2)
    assert len(ids) == 2
    assert world.counts("q") == (4, 0, 0, 0)
    assert len(told) == 3
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert sum(change.what == "enqueue" for change in after.changes) == 2


def test_a_closed_broker_takes_no_observer(world: World) -> None:
    world.broker.close()
    with pytest.raises(BrokerClosed):
        observe(world.broker, ignore)


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
    # A queue goes with all its messages in one fact: nobody could see them go one by one.
    assert heard.causes()[5:] == []
    assert sum(change.what == "end operation" for change in heard.changes) <= 1
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
