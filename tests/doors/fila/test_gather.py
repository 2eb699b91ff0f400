from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import pytest

from fairlead.server.fila.gather import Gather
from tests.doors.fila.servers import PATIENCE_S, eventually


class Counter:
    """Carries out batches of numbers: the answer to n is n * 10, to a negative one an error. The first batch
    of a lane waits.
    """

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[int]]] = []
        self.go_on = threading.Event()

    def carry_out(self, lane: str, items: list[int]) -> list[int | Exception]:
        self.batches.append((lane, items))
        if [name for name, _ in self.batches].count(lane) == 1:
            self.go_on.wait(PATIENCE_S)
        return [ValueError(item) if item < 0 else item * 10 for item in items]


def gathered(
    gather: Gather[int, int], counter: Counter, first: int, others: list[int]
) -> tuple[Future[int], list[Future[int]]]:
    """`first` is under way while all others come, one after the other."""
    with ThreadPoolExecutor(len(others) + 1) as callers:
        leader = callers.submit(gather.do, "lane", first)
        eventually(lambda: len(counter.batches) == 1)
        followers = []
        for number in others:
            before = gather.waiting("lane")
            followers.append(callers.submit(gather.do, "lane", number))
            eventually(lambda before=before: gather.waiting("lane") == before + 1)
        counter.go_on.set()
    return leader, followers


def test_a_lone_call_goes_at_once_and_alone() -> None:
    counter = Counter()
    counter.go_on.set()
    gather = Gather(counter.carry_out)
    assert [gather.do("lane", 1), gather.do("lane", 2)] == [10, 20]
    assert counter.batches == [("lane", [1]), ("lane", [2])]


def test_calls_that_come_while_one_is_under_way_go_together_in_the_order_they_came() -> None:
    counter = Counter()
    leader, followers = gathered(Gather(counter.carry_out), counter, 1, [2, 3, 4])
    assert leader.result() == 10
    assert [future.result() for future in followers] == [20, 30, 40]
    assert counter.batches == [("lane", [1]), ("lane", [2, 3, 4])]


def test_each_caller_gets_its_own_answer_or_error() -> None:
    counter = Counter()
    leader, followers = gathered(Gather(counter.carry_out), counter, -1, [2, -3, 4])
    with pytest.raises(ValueError, match="-1"):
        leader.result()
    assert [followers[0].result(), followers[2].result()] == [20, 40]
    with pytest.raises(ValueError, match="-3"):
        followers[1].result()


def test_a_batch_is_no_larger_than_it_may_be_in_items_or_bytes() -> None:
    by_items, by_bytes = Counter(), Counter()
    gathered(Gather(by_items.carry_out, most_items=2), by_items, 1, [2, 3, 4])
    assert [items for _, items in by_items.batches] == [[1], [2, 3], [4]]
    gathered(Gather(by_bytes.carry_out, most_bytes=10, size_of=lambda item: item), by_bytes, 1, [4, 6, 99, 5])
    assert [items for _, items in by_bytes.batches] == [[1], [4, 6], [99], [5]]


def test_one_lane_does_not_wait_for_another() -> None:
    counter = Counter()
    gather = Gather(counter.carry_out)
    with ThreadPoolExecutor(1) as callers:
        busy = callers.submit(gather.do, "busy", 1)
        eventually(lambda: len(counter.batches) == 1)
        free = threading.Thread(target=counter.go_on.wait)
        free.start()
        counter.batches.append(("free", []))  # so that this lane does not wait
        assert gather.do("free", 2) == 20
        assert not busy.done()
        counter.go_on.set()
        free.join()


def _fails(lane: str, items: list[int]) -> list[int | Exception]:
    raise RuntimeError("nothing works")


def _answers_too_little(lane: str, items: list[int]) -> list[int | Exception]:
    return []


@pytest.mark.parametrize("broken", [_fails, _answers_too_little])
def test_whatever_happens_to_a_batch_its_lane_goes_on(
    broken: Callable[[str, list[int]], list[int | Exception]],
) -> None:
    gather = Gather(broken)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            gather.do("lane", 1)


def test_many_callers_are_all_answered() -> None:
    counter = Counter()
    counter.go_on.set()
    gather = Gather(counter.carry_out, most_items=7)

    def call(number: int) -> int | None:
        with suppress(ValueError):
            return gather.do(f"lane-{number % 3}", number)
        return None

    with ThreadPoolExecutor(20) as callers:
        answers = list(callers.map(call, range(-50, 500)))
    assert answers == [None] * 50 + [number * 10 for number in range(500)]
    assert sorted(item for _, items in counter.batches for item in items) == list(range(-50, 500))
