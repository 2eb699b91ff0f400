"""The store's own time, the timer thread, waiting claims and forks of the engine."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from fairlead import Complete, NewMessage
from fairlead.clock import SystemClock
from fairlead.engine.broker import Broker
from fairlead.engine.laws import broken_laws
from fairlead.errors import BrokenInvariant, BrokerClosed, BrokerForked, StoreFailed
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.testing import ManualClock
from fairlead.testing.faulty import FaultyStore


def open_again(broker: Broker, clock: ManualClock) -> Broker:
    broker.close()
    store = broker.engine.store
    assert isinstance(store, DictionaryStore)
    return Broker(DictionaryStore(store.data), clock=clock)


def kill(broker: Broker, clock: ManualClock) -> Broker:
    store = broker.engine.store
    assert isinstance(store, DictionaryStore)
    return Broker(DictionaryStore(store.data), clock=clock)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(clock: ManualClock) -> Broker:
    broker = Broker(DictionaryStore(), clock=clock)
    broker.create_queue("q", visibility_timeout="30s")
    return broker


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_a_step_of_the_wall_clock_moves_no_lease_and_is_shown(
    broker: Broker, clock: ManualClock, step_ms: int
) -> None:
    broker.enqueue("q", b"x")
    (before,) = broker.claim("q", token="t")
    clock.jump(ms=step_ms)
    (after,) = broker.claim("q", token="t")
    assert after.lease_until - before.lease_until == step_ms
    assert after.lease_until - broker.now_ms() == 30_000
    clock.advance(ms=29_999)
    assert broker.stats("q").leased == 1
    clock.advance(ms=1)
    assert broker.stats("q").leased == 0
    assert broken_laws(broker.engine) == []


@pytest.mark.parametrize("leave", [open_again, kill])
def test_time_away_counts_and_a_step_meanwhile_does_not(
    broker: Broker, clock: ManualClock, leave: Callable[[Broker, ManualClock], Broker]
) -> None:
    broker.enqueue("q", b"x")
    broker.claim("q")
    broker.engine.stop_working()
    clock.advance(ms=10_000)
    clock.jump(ms=7_000_000)
    again = leave(broker, clock)
    clock.advance(ms=19_999)
    assert again.stats("q").leased == 1
    clock.advance(ms=1)
    assert again.stats("q").leased == 0


def test_no_lease_gets_longer_by_a_reboot_with_a_clock_that_was_set_back(
    broker: Broker, clock: ManualClock
) -> None:
    # The mark is that of the first commit; the lease was granted later.
    clock.advance(ms=9_000)
    broker.enqueue("q", b"x")
    broker.claim("q")
    broker.engine.stop_working()
    rebooted = ManualClock(now_ms=clock.now_ms() - 3_600_000)
    again = kill(broker, rebooted)
    rebooted.advance(ms=30_000)
    assert again.stats("q").leased == 0


def test_new_ids_sort_behind_stored_ones_after_a_reboot_with_a_clock_that_was_set_back(
    broker: Broker, clock: ManualClock
) -> None:
    clock.advance(ms=9_000)
    first = broker.enqueue("q", b"x")
    again = kill(broker, ManualClock(now_ms=clock.now_ms() - 3_600_000))
    assert first < again.enqueue("q", b"y")


def test_a_bucket_is_empty_after_a_reboot_under_an_open_store_and_not_after_a_close(
    broker: Broker, clock: ManualClock
) -> None:
    broker.config.set("throttle.api", "0.001,3")
    broker.enqueue_many("q", [NewMessage(b"", throttle_keys=["api"]) for _ in range(6)])
    again = open_again(broker, ManualClock(now_ms=clock.now_ms()))
    assert len(again.claim("q")) == 1
    after = kill(again, ManualClock(now_ms=clock.now_ms()))
    assert after.claim("q", limit=6) == []
    assert broken_laws(after.engine) == []


class Waiting:
    def __init__(self, call: Callable[[], Any]) -> None:
        self.answer: list[Any] = []

        def run() -> None:
            try:
                self.answer.append(call())
            except Exception as error:
                self.answer.append(error)

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def result(self) -> Any:
        self.thread.join(20)
        assert self.answer, "the call did not return"
        return self.answer[0]


def wait_in_line(broker: Broker, count: int) -> list[Waiting]:
    queue_id = broker.engine.memory.by_name["q"].record.queue_id
    claims: list[Waiting] = []
    for at in range(count):
        claims.append(Waiting(lambda at=at: broker.claim("q", wait="1h", consumer=f"c{at}")))
        while len(broker.engine.waiters.of(queue_id)) <= at:
            threading.Event().wait(0.001)
    return claims


def test_the_claim_that_waits_longest_is_woken_and_the_others_sleep_on(broker: Broker) -> None:
    looks = 0
    transact = broker.engine._transact

    def counted(request: Any, *rest: Any) -> Any:
        nonlocal looks
        looks += request.verb_name == "claim"
        return transact(request, *rest)

    broker.engine._transact = counted  # type: ignore[method-assign]
    first, second, third = wait_in_line(broker, 3)
    assert looks == 3
    broker.enqueue("q", b"1")
    assert [one.payload for one in first.result()] == [b"1"]
    assert looks == 4
    broker.enqueue_many("q", [NewMessage(b"2"), NewMessage(b"3")])
    assert sorted(one.payload for claim in (second, third) for one in claim.result()) == [b"2", b"3"]


def test_a_settle_lets_a_claim_go_on_where_unsettled_messages_are_limited(broker: Broker) -> None:
    broker.update_queue("q", max_unsettled_per_consumer=1)
    broker.enqueue_many("q", [NewMessage(b"1"), NewMessage(b"2")])
    (held,) = broker.claim("q", consumer="c0")
    (claim,) = wait_in_line(broker, 1)
    broker.settle([Complete(held)])
    assert [one.payload for one in claim.result()] == [b"2"]


def test_waiting_claims_hear_of_an_interruption_a_close_and_a_failed_store(clock: ManualClock) -> None:
    for end, expected in (
        (lambda broker, store: broker.interrupt_waits(), list),
        (lambda broker, store: broker.close(), BrokerClosed),
        (lambda broker, store: fail_a_write(broker, store), StoreFailed),
    ):
        store = FaultyStore(DictionaryStore())
        broker = Broker(store, clock=clock)
        broker.create_queue("q")
        (claim,) = wait_in_line(broker, 1)
        end(broker, store)
        assert isinstance(claim.result(), expected)
        broker.engine.stop_working()


def fail_a_write(broker: Broker, store: FaultyStore) -> None:
    store.arm(1, "fail", only=["write"], error=StoreFailed("the disk is gone"))
    with pytest.raises(StoreFailed):
        broker.pause("q")
    with pytest.raises(StoreFailed):
        broker.stats("q")


def test_work_that_is_due_at_the_open_runs_once_the_engine_is_complete(broker: Broker) -> None:
    store = broker.engine.store
    assert isinstance(store, DictionaryStore)
    for _ in range(20):
        broker.engine.stop_working()
        with Broker(DictionaryStore(store.data), clock=SystemClock(), durability="os") as ticking:
            ticking.enqueue_many("q", [NewMessage(b"x", delay="1ms") for _ in range(5)])
            assert len(ticking.claim("q", limit=5, wait="20s")) > 0
            assert broken_laws(ticking.engine) == []
        broker = ticking


def test_a_commit_whose_number_the_store_has_already_stops_the_engine(broker: Broker) -> None:
    broker.engine._commit -= 1
    with pytest.raises(BrokenInvariant):
        broker.enqueue("q", b"x")
    with pytest.raises(BrokenInvariant):
        broker.stats("q")


def test_an_error_after_the_write_loses_no_later_commit(broker: Broker) -> None:
    tally = broker.engine.tally
    note = tally.note

    def fail_once(facts: Any, memory: Any) -> None:
        tally.note = note  # type: ignore[method-assign]
        raise RuntimeError

    tally.note = fail_once  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        broker.enqueue("q", b"x")
    broker.enqueue("q", b"y")
    assert broken_laws(broker.engine) == []
    assert broker.stats("q").ready == 2


def test_the_timer_thread_sleeps_until_the_next_event_and_is_told_of_earlier_ones() -> None:
    before = set(threading.enumerate())
    with Broker(DictionaryStore(), clock=SystemClock()) as broker:
        broker.create_queue("q")
        broker.enqueue("q", b"later", delay="1h")
        broker.enqueue("q", b"soon", delay="30ms")
        (found,) = broker.claim("q", wait="20s")
        assert found.payload == b"soon"
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name == "fairlead-timer"]


def test_a_forked_child_is_told_and_its_parent_goes_on(broker: Broker) -> None:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            broker.enqueue("q", b"x")
            os.write(write_end, b"done")
        except BrokerForked as told:
            os.write(write_end, told.code.encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read_end, 100) == b"broker_forked"
    broker.enqueue("q", b"x")
    assert broker.stats("q").ready == 1
