"""What a reader was answered survives a power cut, also where nothing else is synced (`durability="os"`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead import Broker, Complete, Extend, Fail, NewMessage, Release, Start
from fairlead.errors import StaleConsumer
from fairlead.testing import ManualClock, Storage, laws
from fairlead.testing.engine import abandon
from fairlead.testing.sizes import size
from fairlead.testing.storage import ProcessEnded
from tests.integration.consumers.scene import shown


class Machine:
    """A broker on a machine whose power fails."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = Storage(forgets=True)
        self.broker = self.store.open_broker(clock=self.clock, durability="os")

    def cut(self) -> Broker:
        self.store.arm(0, "before")
        abandon(self.broker)
        self.store.lose_unsynced()
        self.store = self.store.reopen()
        assert laws(self.store) == []
        self.broker = self.store.open_broker(clock=self.clock, durability="os")
        return self.broker


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    machine.broker.create_queue("q", retry={"policy": "none"})
    machine.broker.enqueue_many("q", [NewMessage(b"%d" % n) for n in range(10)])
    yield machine
    machine.broker.close()


def test_generations_claims_outcomes_and_choices_that_were_answered_are_still_there(machine: Machine) -> None:
    old = machine.broker.consumers.register("etl", "q").generation
    generation = machine.cut().consumers.register("etl", "q").generation
    assert generation == old + 1
    with pytest.raises(StaleConsumer):
        machine.cut().consumers.claim("etl", "q", old, 1)
    claimed = machine.broker.consumers.claim("etl", "q", generation, 1, limit=6)
    taken = list(machine.broker.consumers.read("etl", "q", generation, 1))
    again = list(machine.cut().consumers.read("etl", "q", generation, 1))
    assert len(again) == claimed.count == 6
    assert shown(again) == shown(taken)
    machine.broker.consumers.record(
        "etl", "q", generation, 1, [Fail(again[0], "no"), Release(again[1])], part="a"
    )
    machine.cut().consumers.record("etl", "q", generation, 1, [Release(again[2])])
    machine.cut().consumers.choose("etl", "q", generation, 1, ["a"])
    assert machine.cut().consumers.close("etl", "q", generation, 1).settled == {
        "dead": 1,
        "released": 2,
        "completed": 3,
    }
    after = machine.cut()
    after.run_due()
    assert (after.stats("q").ready, after.stats("q").leased, after.stats("q").dead) == (6, 0, 1)


def test_starts_progress_and_slices_taken_up_that_were_answered_are_still_there(machine: Machine) -> None:
    generation = machine.broker.consumers.register("etl", "q", default_outcome="release").generation
    machine.broker.consumers.claim("etl", "q", generation, 1, limit=4)
    taken = list(machine.cut().consumers.read("etl", "q", generation, 1, unsettled=True))
    machine.broker.consumers.begin_slice("etl", "q", generation, 1)
    machine.cut().consumers.record(
        "etl",
        "q",
        generation,
        1,
        [Start(taken[0]), Complete(taken[1]), Extend(taken[2], progress=1, carry=b"c")],
    )
    again = machine.cut().consumers.begin_slice("etl", "q", generation, 1)
    assert (again.again, again.failed) == (True, 1)
    left = list(machine.cut().consumers.read("etl", "q", generation, 1, unsettled=True))
    assert [(one.payload, int(one.progress), one.carry) for one in left] == [(b"2", 1, b"c"), (b"3", 0, b"")]
    assert machine.cut().consumers.close("etl", "q", generation, 1).settled == {
        "dead": 1,
        "completed": 1,
        "released": 2,
    }


def test_a_close_that_has_begun_is_finished_though_all_its_later_steps_were_lost(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size("close_step_messages"), 2)
    generation = machine.broker.consumers.register("etl", "q").generation
    machine.broker.consumers.claim("etl", "q", generation, 1, limit=8)
    # The decision comes with the first step, and reaches the disk; the power fails at the third step behind it.
    machine.store.arm(4, "power")
    syncs = iter([machine.store.sync])
    machine.store.after_step = lambda step: next(syncs, lambda: None)()
    with pytest.raises(ProcessEnded):
        machine.broker.consumers.close("etl", "q", generation, 1)
    done: list[int] = []
    after = machine.cut()
    assert after.stats("q").leased == 6
    assert after.consumers.show("etl", "q").last_closed == 1
    machine.store.after_step = lambda step: done.extend(change.count for change in step.changes("complete"))
    after.run_due()
    assert done == [2, 2, 2]
    assert (after.stats("q").ready, after.stats("q").leased) == (2, 0)


def test_a_release_by_an_operator_holds(machine: Machine) -> None:
    generation = machine.broker.consumers.register("etl", "q").generation
    machine.broker.consumers.claim("etl", "q", generation, 1)
    assert machine.broker.consumers.release("etl", "q") == 10
    after = machine.cut()
    assert after.consumers.show("etl", "q").lost == 1
    assert after.stats("q").ready == 10
    after.consumers.drop("etl", "q")
    assert machine.cut().consumers.list() == []
