"""Making a plan so, on a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fairlead
from fairlead import Broker, Fail
from fairlead.errors import HookInvalid
from fairlead.runbook.apply import apply_plan, find_in_force, plan_for
from fairlead.runbook.check import check_text
from fairlead.runbook.model import Runbook, dump_runbook
from fairlead.testing import ManualClock
from tests.runbook.runbooks import runbooks
from tests.runbook.writers import write
from tests.sampling import sampled


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(data: Path, clock: ManualClock) -> Iterator[Broker]:
    with fairlead.open(data, durability="os", clock=clock) as opened:
        yield opened


def runbook(text: str) -> Runbook:
    return check_text(text, "toml").runbook


def apply(target: Any, wanted: Runbook) -> list[str]:
    return [entry.name for entry in apply_plan(plan_for(target, wanted), target)]


ORDERS = '[queue.orders]\nretry = { attempts = 3, cooldown = "30s" }\n'
SHOP = 'project = "shop"\n' + ORDERS


def test_what_is_applied_is_there_and_in_force(broker: Broker) -> None:
    wanted = runbook(SHOP + '[queue.mail]\nvisibility_timeout = "2m"\n')
    assert apply(broker, wanted) == ["shop/mail", "shop/orders"]
    config = {info.name: info.config for info in broker.queues()}["shop/orders"]
    assert (config.retry.kind, config.retry.attempts, config.retry.base_ms, config.retry_in_stream) == (
        "fixed",
        3,
        30_000,
        None,
    )
    assert find_in_force(broker, "shop") == wanted
    assert apply(broker, wanted) == []


def test_a_policy_that_is_edited_changes_later_failures_only(broker: Broker, clock: ManualClock) -> None:
    apply(broker, runbook(SHOP))
    broker.enqueue("shop/orders", b"x")
    [first] = broker.claim("shop/orders")
    broker.settle([Fail(first, error="no")])
    apply(broker, runbook(SHOP.replace("attempts = 3", "attempts = 2").replace("30s", "1h")))
    clock.advance(ms=29_999)
    assert broker.claim("shop/orders") == []
    clock.advance(ms=1)
    [second] = broker.claim("shop/orders")
    broker.settle([Fail(second, error="no")])
    assert broker.stats("shop/orders").dead == 1


def test_without_retry_the_first_failure_kills(broker: Broker) -> None:
    apply(broker, runbook("[queue.orders]\n"))
    broker.enqueue("orders", b"x", stream="s")
    [delivery] = broker.claim("orders")
    broker.settle([Fail(delivery, error="no")])
    assert broker.stats("orders").dead == 1


def test_a_queue_that_is_no_longer_defined_stays_with_its_messages(broker: Broker) -> None:
    apply(broker, runbook(SHOP + "[queue.old]\n"))
    broker.enqueue("shop/old", b"kept")
    for _ in range(2):
        plan = plan_for(broker, runbook(SHOP))
        assert [entry.name for entry in plan.of("orphan")] == ["shop/old"]
        list(apply_plan(plan, broker))
    assert broker.stats("shop/old").ready == 1
    assert plan_for(broker, runbook(SHOP)).nothing_to_do


def test_equal_names_in_two_projects_never_mix(broker: Broker) -> None:
    apply(broker, runbook(SHOP))
    other = runbook(ORDERS.replace("attempts = 3", "attempts = 9"))
    apply(broker, Runbook("mail", other.queues))
    found = {info.name: info.config.retry.attempts for info in broker.queues() if not info.source}
    assert found == {"shop/orders": 3, "mail/orders": 9}
    assert plan_for(broker, runbook(SHOP)).nothing_to_do
    assert set(broker.runbooks.list()) == {"shop", "mail"}


class _Died(Exception):
    pass


class Dying:
    """A broker whose caller is gone at the `n`-th change: just before it, or just after."""

    def __init__(self, broker: Broker, n: int, *, after: bool) -> None:
        self.broker = broker
        self.left = n
        self.after = after
        self.runbooks = self
        self.queues = broker.queues
        self.get = broker.runbooks.get

    def _change(self, verb: Any, *given: Any, **options: Any) -> Any:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise _Died
        done = verb(*given, **options)
        if self.left == 0:
            raise _Died
        return done

    def create_queue(self, name: str, **options: Any) -> Any:
        return self._change(self.broker.create_queue, name, **options)

    def update_queue(self, name: str, **options: Any) -> Any:
        return self._change(self.broker.update_queue, name, **options)

    def save(self, project: str, text: str) -> Any:
        return self._change(self.broker.runbooks.save, project, text)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_an_apply_that_was_interrupted_is_completed_by_the_next(broker: Broker, n: int, after: bool) -> None:
    before = runbook(SHOP + "[queue.a]\n")
    wanted = runbook(SHOP.replace("attempts = 3", "attempts = 7") + '[queue.a]\nttl = "1h"\n[queue.z]\n')
    apply(broker, before)
    with pytest.raises(_Died):
        apply(Dying(broker, n, after=after), wanted)
    whole = n == 4 and after
    assert find_in_force(broker, "shop") == (wanted if whole else before)
    apply(broker, wanted)
    assert find_in_force(broker, "shop") == wanted
    assert plan_for(broker, wanted).nothing_to_do
    assert {info.name for info in broker.queues() if not info.source} == {"shop/a", "shop/orders", "shop/z"}


def test_a_script_that_does_not_compile_stops_the_apply_and_says_what_was_done(broker: Broker) -> None:
    bad = runbook("[queue.a]\n[queue.b]\nhooks.on_enqueue = 'function on_enqueue(msg) return {'\n[queue.c]\n")
    with pytest.raises(HookInvalid) as refused:
        apply(broker, bad)
    assert "done before the error: a;" in refused.value.__notes__[-1]
    assert [info.name for info in broker.queues() if not info.source] == ["a"]
    assert find_in_force(broker, None) is None


def test_steps_keep_their_progress_bits_over_several_applies(broker: Broker) -> None:
    def steps(*names: str) -> Runbook:
        return runbook(
            "[pipeline.p]\nsteps = ["
            + ", ".join(f'{{ name = "{name}", run = "a:b" }}' for name in names)
            + "]\n"
        )

    apply(broker, steps("parse", "mail"))
    apply(broker, steps("look"))
    apply(broker, steps("look", "mail", "parse"))
    in_force = find_in_force(broker, None)
    assert in_force is not None
    assert in_force.pipelines["p"].bits == {"parse": 8, "mail": 16, "look": 32}


@given(trees=st.lists(runbooks(), min_size=1, max_size=3), seed=st.integers(0, 2**32))
@settings(
    max_examples=sampled(6, of=25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_is_applied_leaves_nothing_to_do_the_second_time(
    broker: Broker, trees: list[dict[str, Any]], seed: int
) -> None:
    """Runbooks over one another, in one project, each in another syntax."""
    chance = Random(seed)
    for tree in trees:
        syntax = chance.choice(["toml", "hcl", "json"])
        wanted = check_text(write(tree, syntax, chance), syntax, project="p").runbook
        apply(broker, wanted)
        assert plan_for(broker, wanted).nothing_to_do
        in_force = find_in_force(broker, "p")
        assert in_force is not None
        assert dump_runbook(in_force) == broker.runbooks.get("p")
