"""Who is next: keys take turns by weight, and lanes of a key go by the age of their heads."""

from __future__ import annotations

import random
from collections import deque

import pytest

from fairlead.records.chunk import LaneName
from fairlead.schedule.draft import Draft
from fairlead.schedule.drr import Scheduler
from fairlead.schedule.throttle import Bucket, Buckets


def scheduler(**options: int) -> Scheduler:
    return Scheduler(lambda number: number, Buckets(), **options)


def take(scheduler: Scheduler, limit: int, now_ms: int = 0) -> list[int]:
    plan = scheduler.plan(limit, now_ms)
    scheduler.apply(plan)
    return list(plan.numbers)


def test_keys_take_turns() -> None:
    queue = scheduler()
    queue.add(("a",), 1, [1, 2, 3])
    queue.add(("b",), 1, [4, 5])
    assert take(queue, 10) == [1, 4, 2, 5, 3]
    assert take(queue, 10) == []


def test_the_turn_goes_on_where_the_last_claim_ended() -> None:
    queue = scheduler()
    for place, key in enumerate("abc"):
        queue.add((key,), 1, range(10 * place + 1, 10 * place + 9))
    assert [take(queue, 2) for _ in range(3)] == [[1, 11], [21, 2], [12, 22]]
    assert take(queue, 4) == [3, 13, 23, 4]
    assert queue.ring() == ["b", "c", "a"]


def test_a_key_that_gets_its_first_message_joins_at_the_end() -> None:
    queue = scheduler()
    queue.add(("a",), 1, [1, 2, 3])
    queue.add(("b",), 1, [4])
    assert take(queue, 2) == [1, 4]
    queue.add(("c",), 1, [5])
    queue.add(("b",), 1, [6])
    assert take(queue, 9) == [2, 5, 6, 3]


def test_a_key_that_lost_its_messages_keeps_its_place_if_it_gets_one_before_its_turn() -> None:
    queue = scheduler()
    queue.add(("a",), 1, [1])
    queue.add(("b",), 1, [2])
    queue.remove(("a",), 1)
    assert queue.ring() == ["a", "b"]
    queue.add(("a",), 1, [3])
    assert take(queue, 9) == [3, 2]


def test_weights_are_messages_a_turn() -> None:
    queue = scheduler()
    queue.add(("a",), 2, range(1, 7))
    queue.add(("b",), 1, range(11, 17))
    assert take(queue, 7) == [1, 2, 11, 3, 4, 12, 5]
    assert take(queue, 2) == [6, 13]


def test_the_quantum_makes_turns_longer() -> None:
    queue = scheduler(quantum=2)
    queue.add(("a",), 1, [1, 2, 3])
    queue.add(("b",), 1, [4, 5, 6])
    assert take(queue, 9) == [1, 2, 4, 5, 3, 6]


def test_the_latest_message_sets_the_weight_from_the_next_turn_on() -> None:
    queue = scheduler()
    queue.add(("a",), 1, range(1, 9))
    queue.add(("b",), 1, range(11, 19))
    queue.add(("a",), 3, [9])
    assert take(queue, 5) == [1, 2, 3, 11, 4]
    queue.add(("a",), 1, [10])
    assert take(queue, 5) == [5, 6, 12, 7, 13]


def test_the_configured_weight_of_a_key_beats_that_of_its_messages() -> None:
    weights = {"a": 2}
    queue = Scheduler(lambda number: number, Buckets(), weight_of=weights.get)
    queue.add(("a",), 9, [1, 2, 3])
    queue.add(("b",), 1, [4, 5])
    assert take(queue, 9) == [1, 2, 4, 3, 5]


def test_a_weight_set_by_the_configuration_holds_for_the_backlog() -> None:
    queue = scheduler()
    queue.add(("a",), 1, range(1, 9))
    queue.add(("b",), 1, range(11, 19))
    assert take(queue, 2) == [1, 11]
    queue.reweigh("b", 3)
    assert take(queue, 8) == [2, 12, 13, 14, 3, 15, 16, 17]


def test_a_message_that_was_given_back_goes_first_in_its_lane() -> None:
    queue = scheduler()
    queue.add(("a",), 1, [1, 2, 3, 4])
    assert take(queue, 3) == [1, 2, 3]
    queue.insert(("a",), 1, 2)
    queue.insert(("a",), 1, 1)
    assert queue.lanes() == {("a",): [1, 2, 4]}
    assert take(queue, 9) == [1, 2, 4]


def test_a_message_with_a_new_place_goes_behind_the_others_and_sets_the_weight() -> None:
    places = {1: 1, 2: 2, 3: 3, 9: 9}
    queue = Scheduler(places.__getitem__, Buckets())
    queue.add(("a",), 1, [1])
    queue.add(("a",), 2, [2, 3])
    queue.add(("b",), 1, [9])
    assert take(queue, 1) == [1]
    places[1] = 10
    queue.insert(("a",), 1, 1, is_latest=True)
    assert take(queue, 9) == [2, 9, 3, 1]


def test_lanes_of_a_key_go_by_the_age_of_their_heads() -> None:
    queue = scheduler()
    queue.add(("a", "t"), 1, [1, 4])
    queue.add(("a",), 1, [2, 3, 6])
    queue.add(("a", "u"), 1, [5])
    assert take(queue, 4) == [1, 2, 3, 4]
    queue.insert(("a", "t"), 1, 1)
    assert take(queue, 9) == [1, 5, 6]


def test_a_key_whose_only_lane_waits_for_tokens_keeps_what_is_left_of_its_turn() -> None:
    queue = scheduler()
    queue._state.parking.buckets.set("t", Bucket(1.0, 1.0, 1.0, 0))
    queue.add(("a", "t"), 3, [1, 2, 3, 4])
    queue.add(("b",), 1, range(11, 19))
    assert take(queue, 3) == [1, 11, 12]
    assert queue.parked(5) == [("t", 1)]
    assert queue.next_wake_ms() == 1000
    assert take(queue, 2, 999) == [13, 14]
    assert take(queue, 2, 1000) == [15, 2]
    assert queue._state.key("a").deficit == 1


def test_a_removed_message_does_not_go_out_and_its_lane_ends_with_it() -> None:
    queue = scheduler()
    queue.add(("a", "t"), 1, [1])
    queue.add(("a",), 1, [2, 3])
    queue.remove(("a",), 2)
    queue.remove(("a", "t"), 1)
    assert queue.lanes() == {("a",): [3]}
    assert queue.held == 1
    assert take(queue, 9) == [3]


def test_a_parked_lane_that_loses_its_last_message_leaves_the_ring_of_its_bucket() -> None:
    queue = scheduler()
    queue._state.parking.buckets.set("t", Bucket(1.0, 1.0, 0.0, 0))
    queue.add(("a", "t"), 1, [1])
    queue.add(("b", "t"), 1, [2])
    assert take(queue, 9) == []
    queue.remove(("a", "t"), 1)
    assert queue.parked_lanes == 1
    queue.remove(("b", "t"), 2)
    assert (queue.parked_lanes, queue.lanes(), queue._state.keys) == (0, {}, {})


def test_a_run_longer_than_the_turn_of_its_key_is_paid_for_by_turns_it_sits_out() -> None:
    queue = scheduler()
    queue.add(("a",), 1, [1, 2])
    queue.add(("b",), 1, range(11, 19))
    plan = queue.plan(3, 0, followers=lambda head, room: [(("a",), 101), (("a",), 102)] if head == 1 else [])
    queue.apply(plan)
    assert plan.numbers == [1, 101, 102]
    assert take(queue, 4) == [11, 12, 13, 2]


def claim_with_followers(queue: Scheduler, limit: int, followers: list[tuple[LaneName, int]]) -> list[int]:
    plan = queue.plan(limit, 0, followers=lambda head, room: followers)
    queue.apply(plan)
    return list(plan.numbers)


def test_a_key_that_had_only_a_run_owes_for_it_when_it_comes_back() -> None:
    queue = scheduler()
    queue.add(("a",), 1, [1])
    queue.add(("b",), 1, range(11, 19))
    assert claim_with_followers(queue, 3, [(("a",), 101), (("a",), 102)]) == [1, 101, 102]
    queue.add(("a",), 1, [2])
    assert take(queue, 4) == [11, 12, 13, 2]


def test_debts_of_several_claims_add_up() -> None:
    queue = scheduler()
    queue.add(("b",), 1, range(11, 19))
    assert claim_with_followers(queue, 2, [(("a",), 101)]) == [11, 101]
    assert claim_with_followers(queue, 2, [(("a",), 102)]) == [12, 102]
    queue.add(("a",), 1, [1])
    assert take(queue, 4) == [13, 14, 15, 1]


def test_a_debt_is_forgiven_when_nobody_else_wants_anything() -> None:
    queue = scheduler()
    queue.add(("a",), 1, [1])
    assert claim_with_followers(queue, 3, [(("a",), 101), (("a",), 102)]) == [1, 101, 102]
    assert take(queue, 1) == []
    queue.add(("a",), 1, [2])
    queue.add(("b",), 1, range(11, 19))
    assert take(queue, 2) == [2, 11]


def test_a_key_whose_throttled_lanes_have_ended_is_plain_again() -> None:
    queue = scheduler()
    queue.add(("a",), 1, [1, 3, 4])
    queue.add(("a", "t"), 1, [2])
    assert queue._state.special == {"a"}
    assert take(queue, 2) == [1, 2]
    assert queue._state.special == set()
    assert take(queue, 2) == [3, 4]


def test_keys_that_all_owe_pay_at_once() -> None:
    queue = scheduler()
    queue.add(("a",), 1, [1, 2])
    queue.add(("b",), 1, [11, 12])
    # Turn by turn this would take for ever.
    queue._state.key("a").deficit = -(10**12)
    queue._state.key("b").deficit = -(10**12) - 1
    queue._state.special |= {"a", "b"}
    assert take(queue, 9) == [1, 2, 11, 12]


def test_a_follower_without_its_token_stays_with_those_behind_it() -> None:
    queue = scheduler()
    queue._state.parking.buckets.set("t", Bucket(1.0, 2.0, 2.0, 0))
    queue.add(("a", "t"), 1, [1])
    plan = queue.plan(
        9, 0, followers=lambda head, room: [(("a", "t"), 101), (("a", "t"), 102), (("a",), 103)]
    )
    assert plan.numbers == [1, 101]
    assert plan.buckets["t"].tokens == 0.0


def test_no_key_has_more_unsettled_messages_than_allowed() -> None:
    queue = scheduler(max_unsettled_per_key=2)
    queue.add(("a",), 1, range(1, 6))
    queue.add(("b",), 1, [11])
    assert take(queue, 9) == [1, 11, 2]
    assert take(queue, 9) == []
    queue.settled("a")
    assert take(queue, 9) == [3]
    queue.settled("b")
    assert "b" not in queue._state.keys


def test_messages_behind_a_place_stay_and_their_keys_join_again_at_the_end() -> None:
    queue = scheduler()
    queue.add(("a",), 1, [5, 6])
    queue.add(("b",), 1, [1, 7])
    queue.add(("c",), 1, [2])
    plan = queue.plan(9, 0, up_to=5)
    queue.apply(plan)
    assert plan.numbers == [5, 1, 2]
    assert take(queue, 9) == [6, 7]


class SlowRounds:
    """Keys of weight 1, one message a turn."""

    def __init__(self, lanes: dict[str, list[int]]) -> None:
        self.lanes = {key: deque(numbers) for key, numbers in lanes.items()}
        self.ring = deque(lanes)

    def take(self, limit: int) -> list[int]:
        taken: list[int] = []
        while self.ring and len(taken) < limit:
            key = self.ring.popleft()
            taken.append(self.lanes[key].popleft())
            if self.lanes[key]:
                self.ring.append(key)
        return taken


@pytest.mark.parametrize("seed", range(40))
def test_whole_rounds_are_the_same_as_turn_by_turn(seed: int) -> None:
    chance = random.Random(seed)
    keys = chance.choice([1, 2, 7, 60])
    lanes = {f"k{n}": [1000 * n + m for m in range(chance.randint(1, 150))] for n in range(keys)}
    queue, turn_by_turn, slow = scheduler(), scheduler(), SlowRounds(lanes)
    for key, numbers in lanes.items():
        queue.add((key,), 1, numbers)
        turn_by_turn.add((key,), 1, numbers)
    while slow.ring:
        limit = chance.choice([1, 3, keys, 100, 1000])
        plan = queue.plan(limit, 0)
        assert not isinstance(plan.change, Draft)
        queue.apply(plan)
        draft = Draft(turn_by_turn._state, 0)
        draft.take(limit)
        draft.apply(turn_by_turn._state)
        assert list(plan.numbers) == draft.numbers == slow.take(limit)
        assert queue.ring() == turn_by_turn.ring() == list(slow.ring)
        assert queue.lanes() == turn_by_turn.lanes()
        assert queue.held == turn_by_turn.held
    assert queue._state.keys == {}


def test_a_claim_touches_as_many_keys_as_it_has_messages() -> None:
    queue = scheduler()
    buckets = queue._state.parking.buckets
    buckets.set("t", Bucket(10.0, 7.0, 7.0, 0))
    for number in range(1, 5_001):
        lane: LaneName = (f"k{number}", "t")
        queue.add(lane, 1, [number, 10_000 + number])
    take(queue, 5_000)
    for turn in range(1, 5):
        plan = queue.plan(5_000, 700 * turn)
        assert len(plan.numbers) == 7
        assert isinstance(plan.change, Draft)
        assert len(plan.change.keys) <= 2 * 7
        assert len(plan.change.lanes) <= 2 * 7
        queue.apply(plan)
    plan = queue.plan(5_000, 700 * 4 + 1)
    assert isinstance(plan.change, Draft)
    assert (list(plan.numbers), plan.change.lanes) == ([], {})


def test_a_limit_of_unsettled_messages_can_be_set_changed_and_removed() -> None:
    queue = scheduler()
    queue.add(("a",), 3, [1, 2, 3, 4, 5])
    queue.add(("b",), 1, [6, 7])
    queue.limit_unsettled(2, {"a": 1})
    assert take(queue, 9) == [1, 6, 7]
    assert take(queue, 9) == []
    queue.limit_unsettled(4, {"a": 2, "b": 2})
    assert take(queue, 9) == [2, 3]
    queue.limit_unsettled(0, {"a": 4, "b": 2})
    assert take(queue, 9) == [4, 5]


def test_a_lease_found_at_open_leaves_the_weight_of_its_key_alone() -> None:
    queue = scheduler(max_unsettled_per_key=9)
    queue.add(("a",), 3, [1, 2, 3])
    queue.add(("b",), 1, [4, 5, 6])
    queue.note_unsettled("a")
    assert take(queue, 4) == [1, 2, 3, 4]
