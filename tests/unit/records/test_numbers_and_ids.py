"""A message's number and its id stand for each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.ids import find_id, id_time_ms, show_id
from fairlead.records.ids import COMMIT_SHIFT, find_number, id_of, id_prefix, ids_of, ids_of_run, shown_ids

NUMBERS = st.integers(min_value=0, max_value=(1 << 61) - 1)
RAW_IDS = st.binary(min_size=16, max_size=16)


@given(NUMBERS, st.integers(min_value=0, max_value=(1 << 48) - 1), st.integers(min_value=0))
def test_an_id_is_a_uuid7_that_leads_back_to_its_number(number: int, now_ms: int, counter: int) -> None:
    raw = id_of(id_prefix(now_ms, counter), number)
    assert find_number(raw) == number
    assert id_time_ms(raw) == now_ms
    assert raw[6] >> 4 == 7
    assert raw[8] >> 6 == 2
    assert find_id(show_id(raw)) == raw


@given(RAW_IDS)
def test_an_id_from_elsewhere_is_no_number_or_one_that_has_this_id(raw: bytes) -> None:
    number = find_number(raw)
    assert number is None or id_of(raw[:8], number) == raw


@given(st.sets(NUMBERS, min_size=2, max_size=20))
def test_different_numbers_have_different_ids(numbers: set[int]) -> None:
    prefix = id_prefix(1_700_000_000_000, 1)
    assert len({id_of(prefix, number) for number in numbers}) == len(numbers)


def test_ids_of_one_commit_sort_as_they_were_enqueued() -> None:
    first, prefix = (7 << COMMIT_SHIFT) + 3, id_prefix(1_700_000_000_000, 7)
    ids = shown_ids(prefix, range(first, first + 5000))
    assert ids == [show_id(id_of(prefix, first + n)) for n in range(5000)]
    assert ids == sorted(ids)


@given(NUMBERS.map(lambda number: number & ~0xFFF), st.integers(1, 40))
def test_ids_of_a_run_are_those_of_its_numbers(first: int, count: int) -> None:
    prefix, numbers = id_prefix(5, 7), range(first, first + count)
    assert (
        [*ids_of_run(prefix, numbers)] == ids_of(prefix, numbers) == [id_of(prefix, one) for one in numbers]
    )


@given(NUMBERS.map(lambda number: number & ~0xFFF), st.lists(st.integers(0, 4095), min_size=1, unique=True))
def test_ids_of_numbers_in_any_order_are_those_of_each(first: int, indexes: list[int]) -> None:
    prefix, numbers = id_prefix(5, 7), [first + index for index in indexes]
    assert ids_of(prefix, numbers) == [id_of(prefix, one) for one in numbers]


def test_numbers_between_the_first_and_the_last_may_be_in_another_order() -> None:
    prefix, first = id_prefix(5, 7), 7 << COMMIT_SHIFT
    numbers = [first, first + 2, first + 1, first + 3]
    assert ids_of(prefix, numbers) == [id_of(prefix, one) for one in numbers]


@given(NUMBERS.map(lambda number: number & ~0xFFF), st.integers(1, 600))
def test_ids_as_text_are_those_of_the_numbers(first: int, count: int) -> None:
    prefix, numbers = id_prefix(1_700_000_000_000, 7), range(first, first + count)
    assert shown_ids(prefix, numbers) == [show_id(id_of(prefix, one)) for one in numbers]
