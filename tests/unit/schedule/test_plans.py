"""A plan changes nothing, says what it needs from disk, and is carried out once."""

from __future__ import annotations

import pytest

from fairlead.schedule.drr import Scheduler
from fairlead.schedule.throttle import Bucket, Buckets
from tests.property.planned_queue import content, snapshot


class Broken(Exception):
    pass


class Places:
    """Places of messages, which cannot be read from the `fail_at`-th question on."""

    def __init__(self) -> None:
        self.asked = 0
        self.fail_at = 0

    def __call__(self, number: int) -> int:
        self.asked += 1
        if 0 < self.fail_at <= self.asked:
            raise Broken
        return number


def busy(places: Places) -> Scheduler:
    """Weights, several lanes a key, tokens for some messages, and messages that came back."""
    buckets = Buckets()
    buckets.set("t", Bucket(1.0, 3.0, 3.0, 0))
    buckets.set("u", Bucket(2.0, 2.0, 2.0, 0))
    queue = Scheduler(places, buckets)
    queue.add(("a",), 2, [1, 2, 3])
    queue.add(("a", "t"), 2, [4, 5, 6])
    queue.add(("b", "t", "u"), 1, [7, 8, 9])
    queue.add(("c",), 1, range(10, 20))
    queue.apply(queue.plan(4, 0))
    queue.insert(("a",), 2, 1)
    return queue


def test_a_plan_that_raises_leaves_no_trace_wherever_it_does() -> None:
    places = Places()
    queue = busy(places)
    before = snapshot(queue)
    places.asked = 0
    plan = queue.plan(12, 0)
    for fail_at in range(1, places.asked + 1):
        places.asked, places.fail_at = 0, fail_at
        with pytest.raises(Broken):
            queue.plan(12, 0)
        assert snapshot(queue) == before
    places.fail_at = 0
    assert content(queue.plan(12, 0)) == content(plan)
    queue.apply(plan)


def test_a_callback_that_raises_leaves_no_trace() -> None:
    queue = busy(Places())
    before = snapshot(queue)

    def followers(head: int, room: int) -> list[tuple[tuple[str, ...], int]]:
        if head == 11:
            raise Broken
        return [(("a",), 100 + head)]

    with pytest.raises(Broken):
        queue.plan(12, 0, followers=followers)
    assert snapshot(queue) == before


def test_a_plan_for_fewer_messages_is_the_beginning_of_a_plan_for_more() -> None:
    queue = busy(Places())
    numbers = list(queue.plan(20, 0).numbers)
    for limit in range(len(numbers)):
        assert list(queue.plan(limit, 0).numbers) == numbers[:limit]


def test_a_plan_names_the_buckets_it_takes_from_as_they_will_be() -> None:
    buckets = Buckets()
    buckets.set("t", Bucket(1.0, 3.0, 2.0, 0))
    buckets.set("u", Bucket(1.0, 3.0, 3.0, 0))
    queue = Scheduler(lambda number: number, buckets)
    queue.add(("a", "t"), 1, [1, 2, 3, 4, 5])
    plan = queue.plan(2, 500)
    assert plan.buckets == {"t": Bucket(1.0, 3.0, 0.5, 500)}
    assert buckets.get("t") == Bucket(1.0, 3.0, 2.0, 0)
    queue.apply(plan)
    assert buckets.get("t") == Bucket(1.0, 3.0, 0.5, 500)
    assert list(queue.plan(9, 500).numbers) == []


def test_a_plan_of_an_earlier_state_is_not_carried_out() -> None:
    queue = busy(Places())
    plan = queue.plan(3, 0)
    queue.add(("d",), 1, [99])
    before = snapshot(queue)
    with pytest.raises(AssertionError, match="present state"):
        queue.apply(plan)
    assert snapshot(queue) == before


def test_a_plan_is_carried_out_once() -> None:
    queue = busy(Places())
    plan = queue.plan(3, 0)
    queue.apply(plan)
    with pytest.raises(AssertionError, match="present state"):
        queue.apply(plan)


def cold(weight: int = 1) -> Scheduler:
    """Two messages of each key in memory, the others on disk."""
    queue = Scheduler(lambda number: number, Buckets())
    for key, first in (("a", 1), ("b", 101), ("c", 201)):
        queue.add((key,), weight, [first, first + 1])
        queue.add_cold((key,), weight, first + 2)
    return queue


def test_a_plan_that_memory_can_meet_needs_nothing_from_disk() -> None:
    queue = cold()
    plan = queue.plan(3, 0)
    assert (list(plan.numbers), plan.needs) == ([1, 101, 201], {})
    queue.apply(plan)
    assert queue.ring() == ["a", "b", "c"]


@pytest.mark.parametrize("weight", [1, 2])
def test_a_plan_that_leaves_a_lane_dry_needs_to_know_whether_it_has_a_next_message(weight: int) -> None:
    queue = cold(weight)
    assert queue.plan(6, 0).needs == {("a",): 1, ("b",): 1, ("c",): 1}
    for key in "abc":
        queue.end_cold((key,))
    queue.apply(queue.plan(6, 0))
    assert (queue.ring(), queue.lanes()) == ([], {})


@pytest.mark.parametrize("weight", [1, 2])
def test_a_plan_says_at_once_what_it_needs_of_all_lanes(weight: int) -> None:
    queue = cold(weight)
    plan = queue.plan(12, 0)
    assert plan.needs == {("a",): 3, ("b",): 3, ("c",): 3}
    with pytest.raises(AssertionError, match="without needs"):
        queue.apply(plan)
    for lane, first in ((("a",), 3), (("b",), 103), (("c",), 203)):
        queue.promote(lane, [first, first + 1, first + 2], first + 3)
    assert queue.plan(12, 0).needs == {}
    assert len(queue.plan(12, 0).numbers) == 12


def test_a_lane_that_has_nothing_on_disk_after_all_ends() -> None:
    queue = cold()
    queue.apply(queue.plan(3, 0))
    for key in "abc":
        queue.end_cold((key,))
    plan = queue.plan(6, 0)
    assert (list(plan.numbers), plan.needs) == ([2, 102, 202], {})
    queue.apply(plan)
    assert (queue.ring(), queue.lanes(), queue.cold_lanes) == ([], {}, 0)


def test_a_message_that_came_back_behind_those_on_disk_waits_for_them() -> None:
    queue = Scheduler(lambda number: number, Buckets())
    queue.add_cold(("a",), 1, 1)
    queue.insert(("a",), 1, 5)
    assert queue.plan(9, 0).needs == {("a",): 9}
    queue.promote(("a",), [1, 2], 6)
    assert queue.plan(3, 0).needs == {("a",): 1}
    queue.promote(("a",), [6], 7)
    plan = queue.plan(3, 0)
    assert (list(plan.numbers), plan.needs) == ([1, 2, 5], {})
    queue.apply(plan)
    assert queue.cold_from(("a",)) == 7


def test_a_cold_lane_stands_where_its_first_message_on_disk_does() -> None:
    queue = Scheduler(lambda number: number, Buckets())
    queue.add(("a", "t"), 1, [4])
    queue.add_cold(("a",), 1, 2)
    assert queue.plan(1, 0).needs == {("a",): 1}
    queue.promote(("a",), [5], 0)
    assert list(queue.plan(2, 0).numbers) == [4, 5]


def test_a_lane_joins_before_its_messages_are_known() -> None:
    queue = Scheduler(lambda number: number, Buckets())
    queue.join(("a",), 1)
    queue.join(("b",), 1)
    queue.add(("b",), 1, [1])
    queue.add(("a",), 1, [2])
    assert queue.ring() == ["a", "b"]
    assert list(queue.plan(9, 0).numbers) == [2, 1]
