"""Every hostile script of the hook host's own tests, set on a queue of a broker that others use meanwhile.

Each time: no message lost, the defaults applied and recorded, the other queues served throughout, the breaker
counting.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fairlead import Complete, Fail, NewMessage
from fairlead.testing.engine import hooks_of
from tests.hooks.scripts import KIND
from tests.hooks.test_host_process import SLOW
from tests.hooks.test_hostile_scripts import FATAL, NEEDS_A_KILL, NOTHING_LEFT, hostile
from tests.integration.world import Background, World, wait_until

ANGRY = 8
CALM_DEATH = 'function on_failure(msg) if msg.headers.n then return { action = "dlq" } end return {} end'


@pytest.fixture(scope="module", params=["memory", "rocks"])
def town(request: pytest.FixtureRequest) -> Iterator[World]:
    """One broker for the whole module: what one script leaves behind would be met by the next."""
    with tempfile.TemporaryDirectory(prefix="fairlead-") as path:
        town = World(request.param, Path(path))
        town.broker.create_queue("good", on_enqueue=KIND, on_failure=CALM_DEATH)
        town.broker.create_queue("plain")
        yield town
        town.close()


def hostile_on_failure(name: str) -> str:
    return (
        hostile(name).replace("on_enqueue", "on_failure").replace('fairness_key = "fine"', 'action = "dlq"')
    )


@contextmanager
def neighbours_at_work(town: World) -> Iterator[None]:
    """While the block runs, others use their queues and must see nothing of it."""
    over, rounds = threading.Event(), [0]

    def work() -> None:
        while not over.is_set() or not rounds[0]:
            use_neighbours(town)
            rounds[0] += 1

    neighbours = Background(work)
    try:
        yield
    finally:
        over.set()
        neighbours.result()


def use_neighbours(town: World) -> None:
    broker = town.broker
    broker.enqueue_many("good", [NewMessage(b"x", headers={"n": str(n)}) for n in range(3)])
    broker.enqueue_many("plain", [NewMessage(b"x", fairness_key=f"k-{n}") for n in range(3)])
    for queue, rule in (("good", "on_failure"), ("plain", "instruction")):
        deliveries = broker.claim(queue, limit=3)
        assert sorted(delivery.fairness_key for delivery in deliveries) == ["k-0", "k-1", "k-2"]
        failed, *done = deliveries
        results = broker.settle([Fail(failed, dead=queue == "plain"), *map(Complete, done)])
        assert [(result.outcome, result.rule) for result in results] == [
            ("dead", rule),
            ("completed", ""),
            ("completed", ""),
        ]
        broker.settle([Complete(delivery) for delivery in broker.claim(f"{queue}.dlq", limit=3)])
    assert [(hook.failures, hook.bypassed) for hook in broker.stats("good").hooks] == [(0, 0), (0, 0)]
    assert town.counts("good") == town.counts("plain") == (0, 0, 0, 0)


def batch() -> list[NewMessage]:
    """A harmless message, those that set the script off, and a harmless one again."""
    calm = NewMessage(b"calm", headers={"calm": "yes"}, fairness_key="mine", weight=7, throttle_keys=["t"])
    return [calm, *[NewMessage(b"angry", fairness_key="mine", weight=7, throttle_keys=["t"])] * ANGRY, calm]


def check_recorded(town: World) -> None:
    (hook,) = town.broker.stats("bad").hooks
    assert (hook.calls, hook.failures, hook.bypassed, hook.consecutive) == (4, 3, ANGRY - 2, 3)
    assert hook.breaker_open_until_ms == town.clock.now_ms() + 10_000
    assert 0 < len(hook.last_error) < 700


@pytest.fixture
def bad(town: World) -> Iterator[str]:
    town.broker.create_queue("bad")
    yield "bad"
    town.broker.delete_queue("bad")


@pytest.mark.parametrize("name", FATAL)
def test_a_hostile_on_enqueue_costs_no_message_and_no_neighbour(town: World, bad: str, name: str) -> None:
    town.broker.update_queue(bad, on_enqueue=hostile(name))
    with neighbours_at_work(town):
        ids = town.broker.enqueue_many(bad, batch())
        deliveries = town.broker.claim(bad, limit=100)
    check_recorded(town)
    assert sorted(delivery.id for delivery in deliveries) == sorted(ids)
    scheduled = {
        delivery.id: (delivery.fairness_key, delivery.weight, delivery.throttle_keys)
        for delivery in deliveries
    }
    assert [scheduled[message_id] for message_id in ids] == [
        ("fine", 7, ("t",)),
        *[("default", 1, ())] * (ANGRY + 1),
    ]


@pytest.mark.parametrize("name", FATAL)
def test_a_hostile_on_failure_costs_no_message_and_no_neighbour(town: World, bad: str, name: str) -> None:
    town.broker.update_queue(bad, on_failure=hostile_on_failure(name))
    ids = town.broker.enqueue_many(bad, batch())
    deliveries = town.broker.claim(bad, limit=100)
    with neighbours_at_work(town):
        results = town.broker.settle([Fail(delivery, error="boom") for delivery in deliveries])
    check_recorded(town)
    assert [(result.outcome, result.rule) for result in results] == [
        ("dead", "on_failure"),
        *[("retry", "retry.immediate")] * (ANGRY + 1),
    ]
    assert town.counts(bad) == (ANGRY + 1, 0, 0, 1)
    found = [*town.broker.peek(bad, limit=100), *town.broker.peek(f"{bad}.dlq")]
    assert sorted(info.id for info in found) == sorted(ids)
    assert {(info.attempts, len(info.failures), info.failures[0].rule == info.rule) for info in found} == {
        (1, 1, True)
    }


@pytest.mark.parametrize("name", [*NEEDS_A_KILL, "table bomb inside pcall"])
def test_leases_that_expire_beside_a_hostile_on_failure_all_expire(town: World, bad: str, name: str) -> None:
    town.broker.update_queue(bad, on_failure=hostile_on_failure(name))
    ids = town.broker.enqueue_many(bad, batch())
    town.broker.enqueue("good", b"x", headers={"n": "1"})
    town.broker.enqueue("plain", b"x")
    for queue in (bad, "good", "plain"):
        assert town.broker.claim(queue, limit=100)
    town.clock.advance(seconds=30)
    assert town.counts(bad) == (len(ids) - 1, 0, 0, 1)
    assert (town.counts("good"), town.counts("plain")) == ((0, 0, 0, 1), (1, 0, 0, 0))
    town.broker.purge("good.dlq")
    town.broker.purge("plain")
    use_neighbours(town)


def test_a_script_that_works_first_and_hangs_on_the_second_is_stopped_there(town: World, bad: str) -> None:
    town.broker.update_queue(bad, on_enqueue=hostile("catastrophic pattern"))
    calm, angry = batch()[:2]
    with neighbours_at_work(town):
        ids = town.broker.enqueue_many(bad, [calm, angry, *[calm] * 600])
    keys = {delivery.id: delivery.fairness_key for delivery in town.broker.claim(bad, limit=1000)}
    assert [keys[message_id] for message_id in ids] == ["fine", "default", *["fine"] * 600]
    assert [(hook.calls, hook.failures) for hook in town.broker.stats(bad).hooks] == [(602, 1)]


def test_a_call_leaves_nothing_behind_for_a_later_one_or_another_queue(town: World, bad: str) -> None:
    town.broker.update_queue(bad, on_enqueue=NOTHING_LEFT)
    with neighbours_at_work(town):
        for _ in range(3):
            town.broker.enqueue_many(bad, batch())
    assert {delivery.fairness_key for delivery in town.broker.claim(bad, limit=100)} == {"clean"}


TANGLED = "(function() local t = {} for i = 1, 5000 do t[i] = i end t.fairness_key, t.throttle_keys, t.stream, t.me = t, t, t, t return t end)()"


@pytest.mark.parametrize(
    ("result", "key", "weight", "note"),
    [
        ('{ fairness_key = ("x"):rep(400000), weight = 1e300 }', "x" * 512, 1000, "cut to 512"),
        (TANGLED, "mine", 7, "fairness_key is not text"),
        (
            "{ fairness_key = true, weight = {}, throttle_keys = 5, stream = false }",
            "mine",
            7,
            "weight of that type is not a number",
        ),
        ("{ weight = 0 / 0 }", "mine", 7, "is not a number: ignored"),
        ("{ weight = -math.huge }", "mine", 1, "weight -inf -> 1"),
        ('{ fairness_key = "\\0\\xff" }', "mine", 7, "is not text"),
    ],
)
def test_a_result_out_of_bounds_is_corrected_and_recorded(
    town: World, bad: str, result: str, key: str, weight: int, note: str
) -> None:
    town.broker.update_queue(bad, on_enqueue=f"function on_enqueue() return {result} end")
    ids = town.broker.enqueue_many(bad, batch())
    deliveries = town.broker.claim(bad, limit=100)
    assert len(deliveries) == len(ids)
    assert {(delivery.fairness_key, delivery.weight, delivery.stream) for delivery in deliveries} == {
        (key, weight, None)
    }
    assert all(len(delivery.throttle_keys) <= 16 for delivery in deliveries)
    (hook,) = town.broker.stats(bad).hooks
    assert (hook.failures, hook.corrected) == (0, len(ids))
    assert note in hook.last_note


@pytest.mark.parametrize("delay", ["math.huge", "math.maxinteger", "0 / 0", "-1", "{}", '("9"):rep(100000)'])
def test_a_delay_out_of_bounds_is_corrected_and_recorded(town: World, bad: str, delay: str) -> None:
    town.broker.update_queue(
        bad, on_failure=f'function on_failure() return {{ action = "retry", delay_ms = {delay} }} end'
    )
    town.broker.enqueue(bad, b"x")
    (result,) = town.broker.settle([Fail(town.claim_one(bad))])
    assert (result.outcome, result.rule[:21]) == ("retry", "on_failure (delay_ms ")
    assert sum(town.counts(bad)) == 1
    assert town.broker.explain(result.id).summary


@pytest.mark.parametrize("everyone", [False, True], ids=["the host", "the host and its spare"])
def test_a_host_killed_from_outside_in_the_middle_of_a_batch_costs_nothing(
    town: World, bad: str, everyone: bool
) -> None:
    broker = town.broker
    broker.update_queue(
        bad,
        on_enqueue=SLOW,
        on_failure=SLOW.replace("on_enqueue", "on_failure").replace("fairness_key", "action"),
    )
    hooks = hooks_of(broker)
    count = 600

    def kill_in_the_middle() -> None:
        host = hooks._host
        assert host is not None
        for pid in hooks.pids() if everyone else [host.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def at_work() -> bool:
        return hooks._host is not None and hooks._host.running_call > 0

    with neighbours_at_work(town):
        enqueueing = Background(
            lambda: broker.enqueue_many(bad, [NewMessage(b"x", headers={"n": str(n)}) for n in range(count)])
        )
        wait_until(at_work)
        kill_in_the_middle()
        ids = enqueueing.result(60)
        deliveries = {delivery.id: delivery for delivery in broker.claim(bad, limit=count)}
        assert [deliveries[message_id].fairness_key for message_id in ids] == [f"k-{n}" for n in range(count)]
        settling = Background(lambda: broker.settle([Fail(deliveries[message_id]) for message_id in ids]))
        wait_until(at_work)
        kill_in_the_middle()
        assert [result.rule for result in settling.result(60)] == [
            f"on_failure (unknown action 'k-{n}': retry)" for n in range(count)
        ]
    assert town.counts(bad) == (count, 0, 0, 0)
    assert [(hook.calls, hook.failures) for hook in broker.stats(bad).hooks] == [(count, 0)] * 2
