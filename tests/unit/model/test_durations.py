from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import InvalidRequest
from fairlead.model.durations import show_ms, to_ms
from fairlead.model.limits import MAX_DURATION_MS


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("30s", 30_000),
        ("250ms", 250),
        ("2m", 120_000),
        ("1h30m", 5_400_000),
        ("1.5s", 1500),
        ("7d", 604_800_000),
        (" 5s ", 5000),
        ("0s", 0),
        (timedelta(minutes=2), 120_000),
        (timedelta(milliseconds=3), 3),
        (timedelta(days=3650), MAX_DURATION_MS),
    ],
)
def test_a_duration_becomes_whole_milliseconds(value: object, ms: int) -> None:
    assert to_ms(value, "delay") == ms


@given(st.integers(0, MAX_DURATION_MS))
def test_a_shown_duration_reads_back_exactly(ms: int) -> None:
    assert to_ms(show_ms(ms), "delay") == ms


def test_a_duration_is_shown_in_its_shortest_form() -> None:
    assert show_ms(90_000) == "1m30s"
    assert show_ms(0) == "0s"


@pytest.mark.parametrize(
    "value", [30, 30.0, True, None, "", "30", "s", "-5s", "5 s", "5y", "1s,2s", b"5s", [], "nan", "1e3s"]
)
def test_what_has_no_unit_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        to_ms(value, "retry_in")
    assert refused.value.field == "retry_in"
    assert "retry_in" in str(refused.value)


@pytest.mark.parametrize("value", ["3651d", timedelta(days=-1), timedelta.max, "9" * 400 + "s"])
def test_a_duration_outside_its_bounds_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        to_ms(value, "delay")
    assert refused.value.field == "delay"
    assert "10 years" in refused.value.expected
