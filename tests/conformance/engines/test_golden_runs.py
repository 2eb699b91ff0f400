"""The engine answers as it did when the runs were recorded."""

from __future__ import annotations

import pytest

from tests.conformance.engines.golden import recording
from tests.conformance.engines.memory_sizes import eager_evacuation, evacuate

RECORD_ANEW = "python -m tests.conformance.engines --record"


@pytest.mark.parametrize("first_seed", recording.FIRST_SEEDS)
def test_recorded_runs_give_the_same_answers_and_order_of_delivery(first_seed: int) -> None:
    recorded = recording.file_of(first_seed).read_text().splitlines()
    assert recording.record_file(first_seed).splitlines() == recorded, f"if that is wanted: {RECORD_ANEW}"


def test_recorded_runs_in_which_every_chunk_is_written_anew_give_the_same_answers() -> None:
    first_seed = recording.FIRST_SEEDS[0]
    recorded = recording.file_of(first_seed).read_text().splitlines()
    with eager_evacuation():
        assert recording.record_file(first_seed, evacuate).splitlines() == recorded


@pytest.mark.parametrize("seed", recording.SEEDS_IN_FULL)
def test_runs_that_are_recorded_in_full_give_the_same_answers(seed: int) -> None:
    recorded = recording.file_in_full(seed).read_text().splitlines()
    assert recording.record_in_full(seed).splitlines() == recorded, f"if that is wanted: {RECORD_ANEW}"


def test_two_hundred_runs_are_recorded() -> None:
    lines = [
        line for first in recording.FIRST_SEEDS for line in recording.file_of(first).read_text().splitlines()
    ]
    assert sum(line.startswith("seed ") for line in lines) == 200
