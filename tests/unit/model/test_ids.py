from __future__ import annotations

import random
import uuid
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.ids import IdSource, find_id, first_id_of, id_time_ms, short_id, show_id

NOW = 1_700_000_000_000
times = st.integers(NOW - 100_000, NOW + 100_000)


@given(st.lists(st.tuples(times, st.integers(0, 20)), max_size=30))
def test_ids_only_ever_grow_whatever_the_clock_does(calls: list[tuple[int, int]]) -> None:
    source = IdSource()
    ids = [raw for now_ms, count in calls for raw in source.next(now_ms, count)]
    assert all(earlier < later for earlier, later in pairwise(ids))


def test_more_ids_than_one_millisecond_holds_run_into_the_next_and_stay_in_order() -> None:
    source = IdSource()
    ids = source.next(NOW, 10_000) + source.next(NOW, 10_000) + source.next(NOW - 1, 3)
    assert ids == sorted(set(ids))
    assert id_time_ms(ids[-1]) - NOW <= 20_000 // 4095 + 1


def test_two_processes_at_the_same_instant_make_different_ids() -> None:
    assert not set(IdSource().next(NOW, 1000)) & set(IdSource().next(NOW, 1000))


def test_a_seeded_source_repeats_itself() -> None:
    assert IdSource(random.Random(7).randbytes).next(NOW, 50) == IdSource(random.Random(7).randbytes).next(
        NOW, 50
    )


@given(times, times)
def test_a_source_told_to_skip_ahead_makes_no_earlier_id_and_never_goes_back(ms: int, now_ms: int) -> None:
    source = IdSource()
    (before,) = source.next(NOW, 1)
    source.skip_to(ms)
    (after,) = source.next(now_ms, 1)
    assert after > before
    assert after > first_id_of(ms)


@given(times)
def test_an_id_is_a_uuid_of_version_7_that_tells_its_time(now_ms: int) -> None:
    (raw,) = IdSource().next(now_ms, 1)
    shown = show_id(raw)
    known = uuid.UUID(shown)
    assert str(known) == shown
    assert known.version == 7
    assert known.variant == uuid.RFC_4122
    assert id_time_ms(raw) == now_ms


@given(st.binary(min_size=16, max_size=16))
def test_a_shown_id_reads_back(raw: bytes) -> None:
    assert find_id(show_id(raw)) == raw
    assert find_id(show_id(raw).upper()) == raw
    assert show_id(raw).endswith(short_id(show_id(raw)))
    assert len(short_id(show_id(raw))) == 8


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "018bcfe5-6800-7000-8000",
        "018bcfe568007000800000000000001a",
        " 018bcfe5-6800-7000-8000-00000000001a",
        7,
        None,
        b"x",
    ],
)
def test_what_is_not_a_full_id_is_found_to_be_none(text: object) -> None:
    assert find_id(text) is None


def test_asking_for_no_ids_gives_none() -> None:
    assert IdSource().next(NOW, 0) == []
