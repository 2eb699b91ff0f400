"""Closed throttle keys: nothing until a time, then one probe and twice as many at each stage."""

from __future__ import annotations

import pytest

from fairlead.schedule.closed import MAX_PROBES, ClosedKey
from fairlead.schedule.throttle import Bucket, Buckets, BucketsDraft


def test_a_closed_key_has_room_for_one_probe_once_its_time_is_over() -> None:
    closed = ClosedKey(1000)
    assert [closed.room(now_ms) for now_ms in (0, 999, 1000, 9000)] == [0, 0, 1, 1]
    closed.probes.add(7)
    assert closed.room(1000) == 0


def test_a_stage_ends_when_as_many_probes_were_answered_as_it_lets_out() -> None:
    closed, stages = ClosedKey(0), []
    while not closed.is_open:
        stages.append(closed.at_once)
        for number in range(closed.at_once):
            # One at a time, as with a single worker.
            closed.probes.add(number)
            assert closed.ended([number], is_answer=True)
    assert stages == [1, 2, 4, 8, 16, 32, MAX_PROBES]


def test_only_probes_count_and_one_without_an_answer_makes_room_alone() -> None:
    closed = ClosedKey(0)
    assert not closed.ended([1, 2], is_answer=True)
    closed.probes.add(3)
    assert closed.ended([3], is_answer=False)
    assert (closed.at_once, closed.answered, closed.room(0)) == (1, 0, 1)


def test_a_draft_lets_out_as_many_as_there_is_room_and_tokens_for() -> None:
    buckets = Buckets()
    buckets.close("closed", 1000)
    buckets.set("t", Bucket(1.0, 2.0, 2.0, 0))
    draft = BucketsDraft(buckets, 1000)
    assert draft.slowest_first(("a", "closed", "t")) == ["closed", "t"]
    assert (draft.whole_tokens("closed"), draft.whole_tokens("t"), draft.whole_tokens("a")) == (1, 2, None)
    assert draft.take(("closed", "t")) is None
    assert draft.take(("closed", "t")) == "closed"
    assert draft.take(("t",)) is None
    assert [*draft.charged()] == ["t"], "what is refused pays nothing, and a closed key has no bucket"


@pytest.mark.parametrize(
    ("now_ms", "need", "at_ms"), [(500, 1, 1000), (1000, 1, 1000), (1000, 2, None)], ids=str
)
def test_a_closed_key_is_ready_at_its_time_and_then_by_the_end_of_probes(
    now_ms: int, need: int, at_ms: int | None
) -> None:
    buckets = Buckets()
    buckets.close("closed", 1000)
    assert BucketsDraft(buckets, now_ms).ready_at("closed", need) == at_ms


def test_closing_again_forgets_the_probes_that_are_out() -> None:
    buckets = Buckets()
    buckets.close("closed", 0)
    buckets.closed["closed"].probes.add(1)
    assert not buckets.closed["closed"].room(0)
    buckets.close("closed", 5)
    assert buckets.closed["closed"].room(5) == 1
    buckets.close("closed", None)
    assert (buckets.closed, buckets.slowest_first(("closed",))) == ({}, [])
