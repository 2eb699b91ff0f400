"""The lock of the engine: steps of long work let those go first who wait for it."""

from __future__ import annotations

import threading

import pytest

from fairlead.engine.engine import Engine
from fairlead.engine.fair_lock import FairLock
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.testing import ManualClock


def start_waiting(lock: FairLock, count: int, order: list[str]) -> list[threading.Thread]:
    """Threads that wait for the lock, which the caller holds."""

    def take() -> None:
        with lock:
            order.append("waiter")

    threads = [threading.Thread(target=take) for _ in range(count)]
    for thread in threads:
        thread.start()
    while lock.waiting < count:
        threading.Event().wait(0.001)
    return threads


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("count", [1, 5])
def test_those_who_wait_when_a_step_ends_go_before_the_next_step(count: int) -> None:
    lock, order = FairLock(), list[str]()
    with lock:
        threads = start_waiting(lock, count, order)
    lock.let_waiters_pass()
    with lock:
        order.append("step")
    join(threads)
    assert order == ["waiter"] * count + ["step"]
    assert lock.waiting == 0


def test_a_step_of_the_engine_lets_waiting_callers_go_first() -> None:
    engine, order = Engine(DictionaryStore(), clock=ManualClock()), list[str]()
    with engine.lock:
        threads = start_waiting(engine.lock, 3, order)
    with engine.transaction():
        order.append("step")
    join(threads)
    assert order == ["waiter"] * 3 + ["step"]


def test_nobody_is_waited_for_when_nobody_waits() -> None:
    lock = FairLock()
    lock.let_waiters_pass()
    with lock:
        assert lock.is_owned
        lock.let_waiters_pass()
    assert not lock.is_owned


def test_the_thread_that_has_the_lock_waits_for_nobody() -> None:
    lock, order = FairLock(), list[str]()
    with lock:
        threads = start_waiting(lock, 1, order)
        lock.let_waiters_pass()
        order.append("holder")
    join(threads)
    assert order == ["holder", "waiter"]


@pytest.mark.parametrize("options", [{"timeout": 0.001}, {"blocking": False}], ids=str)
def test_a_caller_that_gives_up_is_no_longer_waited_for(options: dict[str, float]) -> None:
    lock, taken = FairLock(), list[bool]()
    with lock:
        thread = threading.Thread(target=lambda: taken.append(lock.acquire(**options)))  # type: ignore[arg-type]
        thread.start()
        thread.join()
        assert taken == [False]
        assert lock.waiting == 0
    lock.let_waiters_pass()


def test_two_steps_do_not_wait_for_each_other() -> None:
    lock, steps = FairLock(), list[int]()

    def run(number: int) -> None:
        for _ in range(500):
            lock.let_waiters_pass()
            with lock:
                steps.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    join(threads)
    assert len(steps) == 2000


@pytest.mark.parametrize("times", [1, 3])
def test_a_condition_gives_the_lock_back_while_it_waits_and_takes_it_as_often_as_before(times: int) -> None:
    lock, order = FairLock(), list[str]()
    condition = threading.Condition(lock)  # type: ignore[arg-type]

    def wake() -> None:
        with lock:
            order.append("woken")
            condition.notify_all()

    for _ in range(times):
        lock.acquire()
    thread = threading.Thread(target=wake)
    thread.start()
    while not order:
        condition.wait()
    order.append("went on")
    for _ in range(times):
        assert lock.is_owned
        lock.release()
    assert not lock.is_owned
    thread.join()
    assert order == ["woken", "went on"]
