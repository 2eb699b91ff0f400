"""The engine's lock: long operations let those pass who wait for it."""

from __future__ import annotations

import threading
import time

import pytest

from fairlead.broker.engine_lock import EngineLock


def waiters_of(lock: EngineLock, count: int, order: list[str]) -> list[threading.Thread]:
    """Threads that wait for the lock, which somebody holds."""

    def take() -> None:
        with lock:
            order.append("waiter")

    threads = [threading.Thread(target=take) for _ in range(count)]
    for thread in threads:
        thread.start()
    give_up_at = time.monotonic() + 30
    while lock.waiting < count and time.monotonic() < give_up_at:
        time.sleep(0.001)
    return threads


@pytest.mark.parametrize("count", [1, 5])
def test_those_who_wait_when_a_step_ends_go_before_the_next_step(count: int) -> None:
    lock, order = EngineLock(), list[str]()
    with lock:
        threads = waiters_of(lock, count, order)
    lock.let_waiters_pass()
    with lock:
        order.append("step")
    for thread in threads:
        thread.join()
    assert order == ["waiter"] * count + ["step"]


def test_nobody_is_waited_for_when_nobody_waits() -> None:
    lock = EngineLock()
    lock.let_waiters_pass()
    with lock:
        assert lock.locked()
        lock.let_waiters_pass()
    assert not lock.locked()


def test_a_caller_that_gives_up_is_no_longer_waited_for() -> None:
    lock = EngineLock()
    with lock:
        assert not lock.acquire(timeout=0.001)
        assert not lock.acquire(blocking=False)
        assert lock.waiting == 0
        lock.let_waiters_pass()


def test_two_steps_do_not_wait_for_each_other() -> None:
    lock, steps = EngineLock(), list[int]()

    def run(number: int) -> None:
        for _ in range(500):
            lock.let_waiters_pass()
            with lock:
                steps.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(steps) == 2000


def test_a_condition_on_the_lock_gives_it_back_while_it_waits() -> None:
    lock, order = EngineLock(), list[str]()
    condition = threading.Condition(lock)  # type: ignore[arg-type]

    def wake() -> None:
        with lock:
            order.append("woken")
            condition.notify_all()

    with lock:
        thread = threading.Thread(target=wake)
        thread.start()
        while not order:
            condition.wait()
        order.append("went on")
    thread.join()
    assert order == ["woken", "went on"]
