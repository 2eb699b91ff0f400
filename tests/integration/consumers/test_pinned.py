"""What is in a numbered claim stays as it is: whoever tries to move it is told why it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairlead import Broker, Complete, DeadFilter, Extend, Fail, Release, Start
from fairlead.model.delivery import Delivery
from tests.integration.consumers.scene import Reader, shown
from tests.integration.world import World
from tests.turns import turn

WHY = "in claim 1 of consumer 'etl': `fairlead consumer release q etl` lets go of it"


@pytest.fixture
def reader(world: World) -> Reader:
    world.fill("q", count=3, ttl="1h")
    return Reader(world, ttl="30d")


@pytest.mark.parametrize("item", [Complete, Fail, Release, Extend, Start], ids=lambda item: item.__name__)
def test_a_settle_with_its_lease_changes_nothing_and_says_why(
    world: World, reader: Reader, item: Callable[[Delivery], Any]
) -> None:
    taken = reader.take(1)
    seen = shown(taken)
    for result in world.broker.settle([item(delivery) for delivery in taken]):
        assert (result.ok, result.error) == (False, WHY)
    for result in turn(world.broker, settle=[item(taken[0]), Extend(taken[1])]).settled:
        assert result.error == WHY
    assert shown(reader.read(1)) == seen
    assert world.counts("q") == (0, 0, 3, 0)


def test_settling_by_id_changes_nothing_and_says_why(world: World, reader: Reader) -> None:
    taken = reader.take(1)
    assert world.broker.ack("q", taken[0].id).error == WHY
    assert world.broker.nack("q", taken[0].id).error == WHY
    assert world.counts("q") == (0, 0, 3, 0)


VERBS: dict[str, Callable[..., Any]] = {
    "retry": Broker.retry,
    "drop": Broker.drop,
    "done": Broker.done,
    "bury": Broker.bury,
    "hold": Broker.hold,
    "unhold": Broker.unhold,
    "fail": Broker.fail,
}


@pytest.mark.parametrize("verb", VERBS)
def test_operators_pass_over_it_and_are_told_why(world: World, reader: Reader, verb: str) -> None:
    taken = reader.take(1, limit=2)
    (free,) = world.broker.peek("q")
    by_id = VERBS[verb](world.broker, "q", [delivery.id for delivery in taken])
    assert by_id.changed == ()
    assert dict(by_id.skipped) == {delivery.id: WHY for delivery in taken}
    by_filter = VERBS[verb](world.broker, "q", filter=DeadFilter())
    assert not {delivery.id for delivery in taken} & set(by_filter.changed)
    if verb in ("drop", "done", "bury", "hold"):
        assert by_filter.changed == (free.id,)
        assert dict(by_filter.skipped)[taken[0].id] == WHY
    assert world.broker.stats("q").leased == 2


def test_an_operator_who_fails_it_does_not_even_ask_the_hook(world: World, reader: Reader) -> None:
    world.broker.update_queue("q", on_failure='function on_failure(msg) return { action = "retry" } end')
    taken = reader.take(1)
    world.broker.fail("q", [delivery.id for delivery in taken])
    world.broker.settle([Fail(delivery) for delivery in taken])
    assert [hook.calls for hook in world.broker.stats("q").hooks if hook.function == "on_failure"] in (
        [],
        [0],
    )


def test_purges_drains_goodbyes_and_time_pass_it_by(world: World, reader: Reader) -> None:
    seen = shown(reader.take(1, limit=2))
    assert world.broker.goodbye("etl") == 0
    assert world.broker.purge("q") == 1
    assert world.broker.drain("q") == []
    world.broker.prune("q")
    world.clock.advance(ms=10 * 24 * 3600 * 1000)
    world.restart(away_ms=10 * 24 * 3600 * 1000)
    world.broker.run_due()
    assert shown(reader.read(1)) == seen
    assert reader.close(1).settled == {"completed": 2}


def test_a_plain_consumer_of_the_same_name_may_say_goodbye_to_what_it_claimed_itself(
    world: World, reader: Reader
) -> None:
    reader.claim(1, limit=2)
    world.claim_one("q", consumer="etl")
    assert world.broker.goodbye("etl") == 1
    assert world.counts("q") == (1, 0, 2, 0)


def test_whoever_looks_is_told_where_it_is(world: World, reader: Reader) -> None:
    world.broker.enqueue("q", b"", stream="s")
    world.broker.enqueue("q", b"", stream="s")
    (*_, first) = reader.take(1, limit=4)
    assert first.stream == "s"
    said = world.broker.explain(first.id)
    assert said.summary == "in a numbered claim, until that is closed"
    assert WHY in said.reasons[0].text
    ends_at = world.broker.consumers.show("etl", "q").expires_at
    assert said.reasons[0].until_ms == ends_at
    info = world.broker.find(first.id)
    assert (info.where, info.consumer, info.lease_until) == ("leased", "etl", ends_at)
    assert [listed.lease_until for listed in world.broker.peek("q", where="leased")] == [ends_at] * 4
    assert first.lease_until == ends_at
    (behind,) = world.broker.peek("q")
    assert WHY in str(world.broker.explain(behind.id))
