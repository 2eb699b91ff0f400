"""Hooks in the engine: asked without the lock, before the transaction."""

from __future__ import annotations

import threading
from typing import Literal

import pytest

from fairlead import Complete, Fail, NewMessage
from fairlead.engine import consumer_steps
from fairlead.engine.broker import Broker
from fairlead.engine.consumer_steps import OUTCOMES_STEP
from fairlead.engine.laws import broken_laws
from fairlead.errors import HookInvalid
from fairlead.hooks import EnqueueDecision, FailureDecision
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.testing import ManualClock
from fairlead.testing.faulty import FaultyStore, Killed
from tests.conformance.engines.stand_in_hooks import StandInHooks

SCRIPT = "function on_failure(f) return {action = 'retry', delay_ms = 4000} end"


class Always(StandInHooks):
    """Retries after four seconds, puts messages under the key `hooked`."""

    def on_failure(self, queue_id, queue, failures):  # type: ignore[no-untyped-def]
        super().on_failure(queue_id, queue, failures)
        return [FailureDecision("ran", "retry", 4_000) for _ in failures]

    def on_enqueue(self, queue_id, queue, messages):  # type: ignore[no-untyped-def]
        super().on_enqueue(queue_id, queue, messages)
        return [EnqueueDecision("ran", "hooked", 2, (), None) for _ in messages]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(clock: ManualClock) -> Broker:
    broker = Broker(DictionaryStore(), clock=clock)
    hooks = Always(lambda: must_be_free(broker))
    broker.engine.hooking.hooks = hooks  # type: ignore[assignment]
    options = {"on_failure": "x", "on_enqueue": "x", "visibility_timeout": "10s", "retry": "none"}
    broker.create_queue("q", **options)
    broker.create_queue("plain", visibility_timeout="10s", retry="immediate")
    return broker


def must_be_free(broker: Broker) -> None:
    """Another thread can have the lock."""
    taken: list[bool] = []

    def take() -> None:
        taken.append(broker.engine.lock.acquire(timeout=10))
        broker.engine.lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert taken == [True]


def calls(broker: Broker) -> int:
    hooks = broker.engine.hooking.hooks
    assert isinstance(hooks, StandInHooks)
    return hooks.calls


def test_a_hook_decides_about_messages_and_failures(broker: Broker, clock: ManualClock) -> None:
    broker.enqueue("q", b"x", fairness_key="a")
    broker.enqueue_many("q", [NewMessage(b"y"), NewMessage(b"z")])
    found = broker.claim("q", limit=3)
    assert [(one.fairness_key, one.weight) for one in found] == [("hooked", 2)] * 3
    (failed,) = broker.settle([Fail(found[0])])
    assert (failed.outcome, failed.rule) == ("retry", "on_failure")
    assert broker.nack("q", found[1].id).rule == "on_failure"
    assert broker.fail("q", [found[2].id]).changed == (found[2].id,)
    assert broker.stats("q").waiting == 3
    assert broken_laws(broker.engine) == []
    clock.advance(ms=4_000)
    assert broker.stats("q").ready == 3


def test_an_instruction_and_a_stale_lease_are_not_worth_a_call(broker: Broker) -> None:
    broker.enqueue_many("q", [NewMessage(b"x"), NewMessage(b"y")])
    first, second = broker.claim("q", limit=2)
    broker.settle([Complete(first)])
    before = calls(broker)
    assert broker.settle([Fail(first)])[0].outcome == "not_found"
    assert broker.settle([Fail(second, dead=True)])[0].outcome == "dead"
    assert calls(broker) == before


def test_a_claim_leaves_leases_that_a_hook_must_be_asked_about_to_the_timer(
    broker: Broker, clock: ManualClock
) -> None:
    broker.enqueue_many("q", [NewMessage(b"%d" % at) for at in range(5)])
    broker.enqueue("plain", b"x")
    broker.claim("q", limit=5)
    broker.claim("plain")
    run_due = broker.engine.run_due
    broker.engine._timer._unsubscribe()
    clock.advance(ms=10_000)
    assert len(broker.claim("plain")) == 1, "a claim expires what no hook is asked about"
    assert broker.stats("q").leased == 5
    run_due()
    assert broker.stats("q").waiting == 5
    assert broken_laws(broker.engine) == []


def test_a_lease_that_was_settled_while_its_hook_ran_stays_settled(
    broker: Broker, clock: ManualClock
) -> None:
    broker.enqueue("q", b"x")
    (found,) = broker.claim("q")
    hooks = Always(lambda: broker.settle([Complete(found)]) and None)
    broker.engine.hooking.hooks = hooks  # type: ignore[assignment]
    clock.advance(ms=10_000)
    stats = broker.stats("q")
    assert (stats.ready, stats.waiting, stats.leased, stats.dead) == (0, 0, 0, 0)
    assert broken_laws(broker.engine) == []


def test_more_overdue_deliveries_than_one_step_asks_about_all_get_an_answer(
    broker: Broker, clock: ManualClock
) -> None:
    broker.enqueue_many("q", [NewMessage(b"x") for _ in range(250)])
    broker.claim("q", limit=250)
    before = calls(broker)
    clock.advance(ms=10_000)
    assert broker.stats("q").waiting == 250
    assert calls(broker) - before == 250


def fail_in_claim(broker: Broker, messages: int, failures: int) -> int:
    """A numbered claim with recorded failures, some of them with an instruction. Returns the generation."""
    broker.enqueue_many("q", [NewMessage(b"x") for _ in range(messages)])
    generation = broker.consumers.register("etl", "q").generation
    broker.consumers.claim("etl", "q", generation, 1)
    found = list(broker.consumers.read("etl", "q", generation, 1))
    failed = [Fail(one) for one in found[:failures]]
    broker.consumers.record("etl", "q", generation, 1, [*failed, Fail(found[-1], dead=True)])
    return generation


def test_a_hook_decides_about_the_failures_of_a_claim_that_is_closed(broker: Broker) -> None:
    generation = fail_in_claim(broker, messages=300, failures=250)
    before = calls(broker)
    assert broker.consumers.close("etl", "q", generation, 1).settled == {
        "retry": 250,
        "dead": 1,
        "completed": 49,
    }
    assert calls(broker) - before == 250 > OUTCOMES_STEP, (
        "each failure is asked about once, an instruction never"
    )
    assert broker.stats("q").waiting == 250
    assert broken_laws(broker.engine) == []


@pytest.mark.parametrize("default_outcome", ["release", "complete"])
def test_no_failure_is_asked_about_before_the_step_that_moves_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, default_outcome: Literal["release", "complete"]
) -> None:
    """Where a step is filled by instructions and by members that nobody spoke of."""
    monkeypatch.setattr(consumer_steps, "OUTCOMES_STEP", 4)
    monkeypatch.setattr(consumer_steps, "RELEASE_STEP", 3)
    broker.enqueue_many("q", [NewMessage(b"x") for _ in range(60)])
    generation = broker.consumers.register("etl", "q", default_outcome=default_outcome).generation
    broker.consumers.claim("etl", "q", generation, 1)
    found = list(broker.consumers.read("etl", "q", generation, 1))
    said = [Fail(one, dead=at % 3 == 1) for at, one in enumerate(found) if at % 3]
    broker.consumers.record("etl", "q", generation, 1, said)
    before = calls(broker)
    settled = broker.consumers.close("etl", "q", generation, 1).settled
    assert (settled["retry"], settled["dead"]) == (20, 20)
    assert calls(broker) - before == 20
    assert broken_laws(broker.engine) == []


def test_the_timer_asks_about_a_claim_whose_close_a_crash_broke_off(clock: ManualClock) -> None:
    data = DictionaryData()
    store = FaultyStore(DictionaryStore(data))
    broker = Broker(store, clock=clock)
    broker.engine.hooking.hooks = Always()  # type: ignore[assignment]
    broker.create_queue("q", on_failure="x", retry="none")
    generation = fail_in_claim(broker, messages=150, failures=140)
    store.arm(2, "die_after", only=("write",))
    with pytest.raises(Killed):
        broker.consumers.close("etl", "q", generation, 1)
    again = Broker(DictionaryStore(data), clock=clock)
    again.engine.hooking.hooks = Always()  # type: ignore[assignment]
    again.run_due()
    assert (again.stats("q").waiting, again.stats("q").leased) == (140, 0)
    assert calls(again) == 140 - OUTCOMES_STEP, "those of the first step were asked about before the crash"
    assert broken_laws(again.engine) == []


def test_a_dead_letter_goes_through_the_hook_of_its_queue_when_it_is_retried(broker: Broker) -> None:
    message_id = broker.enqueue("q", b"x", fairness_key="a")
    broker.bury("q", [message_id])
    hooks = StandInHooks()
    hooks.on_enqueue = lambda queue_id, queue, messages: [  # type: ignore[method-assign]
        EnqueueDecision("ran", "again", 5, (), None) for _ in messages
    ]
    broker.engine.hooking.hooks = hooks  # type: ignore[assignment]
    broker.retry("q", [message_id])
    (found,) = broker.claim("q")
    assert broken_laws(broker.engine) == []
    assert broker.stats("q", keys=True).leased == 1
    assert found.id == message_id


def test_a_script_is_checked_before_a_queue_has_it_and_runs_again_after_a_reopening() -> None:
    store = DictionaryStore()
    broker = Broker(store, clock=ManualClock())
    with pytest.raises(HookInvalid):
        broker.create_queue("q", on_failure="this is not Lua")
    assert broker.queues() == []
    broker.create_queue("q", on_failure=SCRIPT)
    broker.close()
    with Broker(DictionaryStore(store.data), clock=ManualClock()) as again:
        again.enqueue("q", b"x")
        (found,) = again.claim("q")
        (failed,) = again.settle([Fail(found)])
        assert failed.rule == "on_failure"
        assert [hook.calls for hook in again.stats("q").hooks] == [1]


def test_a_dry_run_counts_for_no_breaker(clock: ManualClock) -> None:
    with Broker(DictionaryStore(), clock=clock) as broker:
        breaker = {"failures": 2, "within": "1m", "pause": "5m"}
        broker.create_queue("q", retry="immediate", failure_breaker=breaker)
        broker.enqueue_many("q", [NewMessage(b"x"), NewMessage(b"y")])
        first, second = broker.claim("q", limit=2)
        for _ in range(3):
            broker.fail("q", [first.id], dry_run=True)
        assert broker.settle([Fail(first)])[0].rule == "retry.immediate"
        assert broker.settle([Fail(second)])[0].rule == "retry.immediate + failure_breaker"
        assert broker.stats("q").waiting == 1


def test_a_lease_that_no_hook_is_asked_about_ends_before_a_slow_script_is_asked(
    broker: Broker, clock: ManualClock
) -> None:
    broker.enqueue("q", b"x")
    broker.enqueue("plain", b"y")
    broker.claim("q")
    broker.claim("plain")
    ready: list[int] = []
    hooks = Always(lambda: ready.append(broker.stats("plain").ready))
    broker.engine.hooking.hooks = hooks  # type: ignore[assignment]
    clock.advance(ms=10_000)
    assert ready == [1]
