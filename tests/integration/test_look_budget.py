"""All looks together hold a bounded number of bytes: pages get shorter, and one message waits for its room."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from fairlead import Broker, NewMessage, look_budget
from fairlead.errors import BrokerClosed, ServerStopping
from fairlead.model.limits import MAX_LOOK_BYTES
from fairlead.testing.engine import engine_of
from tests.integration.world import Background, World, wait_until

BODY = 1000


def never() -> None:
    """Nobody stops."""


@contextmanager
def budget_of(broker: Broker, limit: int) -> Iterator[look_budget.LookBudget]:
    core = engine_of(broker)
    before, core.looks = core.looks, look_budget.LookBudget(limit, core.check_scan)
    yield core.looks
    core.looks = before


def test_a_look_takes_a_quarter_of_what_is_free() -> None:
    budget = look_budget.LookBudget(1000, never)
    with budget.look() as first, budget.look() as second:
        assert first.admit([100] * 10) == 2
        assert second.admit([100] * 10) == 2
        assert first.admit([1]) == 1
        assert first.admit([100]) == 0
        assert (budget.held, budget.peak) == (401, 401)
    assert budget.held == 0


def test_a_look_gets_no_more_than_others_have_left() -> None:
    budget = look_budget.LookBudget(1000, never)
    with budget.look() as first, budget.look() as second:
        assert first.admit([10]) == 1
        assert second.admit([980]) == 1
        assert first.admit([50]) == 0
        assert budget.peak == 990


def test_a_message_larger_than_all_of_it_gets_in_alone() -> None:
    budget = look_budget.LookBudget(10, never)
    with budget.look() as look:
        assert look.admit([5000, 1]) == 1
    assert budget.held == 0


def test_a_look_without_room_waits_until_another_gives_back() -> None:
    budget = look_budget.LookBudget(1000, never)
    done = threading.Event()

    def wait_for_room() -> int:
        with budget.look() as look:
            count = look.admit([900])
            done.set()
        return count

    with ExitStack() as held:
        held.enter_context(budget.look()).admit([400])
        waiting = Background(wait_for_room)
        wait_until(lambda: bool(budget._changed._waiters))  # type: ignore[attr-defined]
        assert not done.is_set()
    assert waiting.result() == 1


def test_what_a_door_keeps_is_given_back_when_its_answer_is_written() -> None:
    budget = look_budget.LookBudget(1000, never)
    with budget.keep():
        with budget.look() as look:
            look.admit([100])
        assert budget.held == 100
    assert budget.held == 0


def test_a_broker_has_the_documented_budget(memory_world: World) -> None:
    assert engine_of(memory_world.broker).looks.limit == MAX_LOOK_BYTES


def test_concurrent_peeks_stay_within_the_budget_and_together_show_everything(world: World) -> None:
    """Eight doors that all keep their answers at the same time."""
    ids = world.fill("q", count=40, payload=bytes(BODY))
    everybody = threading.Barrier(8)

    def look() -> list[str]:
        with world.broker.answering():
            page = [info.id for info in world.broker.peek("q", limit=40)]
            everybody.wait(20)
        return page

    with budget_of(world.broker, 20 * BODY) as budget:
        pages = [caller.result() for caller in [Background(look) for _ in range(8)]]
        assert 8 * BODY <= budget.peak <= 20 * BODY
        assert budget.held == 0
        seen, after = list[str](), None
        while page := world.broker.peek("q", limit=40, after=after):
            seen += [info.id for info in page]
            after = seen[-1]
    assert all(page == ids[: len(page)] and page for page in pages)
    assert seen == ids


@pytest.mark.parametrize("where", ["peek", "drain"])
def test_error_texts_count_as_bytes_that_are_looked_at(world: World, where: str) -> None:
    world.broker.quarantine("q", [NewMessage(b"") for _ in range(10)], error="x" * BODY)
    with budget_of(world.broker, 12 * BODY):
        assert len(getattr(world.broker, where)("q.dlq", limit=10)) == 3


def test_a_drain_removes_no_more_than_it_returns(world: World) -> None:
    world.fill("q", count=10, payload=bytes(BODY))
    with budget_of(world.broker, 12 * BODY):
        drained = world.broker.drain("q")
    assert len(drained) == 3
    assert world.counts("q") == (7, 0, 0, 0)


@pytest.mark.parametrize(("stop", "error"), [("interrupt_waits", ServerStopping), ("close", BrokerClosed)])
def test_a_look_that_waits_for_room_ends_when_the_broker_stops(
    world: World, stop: str, error: type[Exception]
) -> None:
    world.fill("q", count=1, payload=bytes(BODY))
    with budget_of(world.broker, BODY) as budget, budget.look() as other:
        other.admit([BODY])
        waiting = Background(lambda: world.broker.peek("q"))
        wait_until(lambda: bool(budget._changed._waiters))  # type: ignore[attr-defined]
        getattr(world.broker, stop)()
        with pytest.raises(error):
            waiting.result()
