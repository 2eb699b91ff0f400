from __future__ import annotations

import threading

import pytest

from fairlead.client.patience import Patience, Pauses
from fairlead.errors import ClientClosed


class QuickClock:
    """Every wait is over at once, and is remembered."""

    ticks = True

    def __init__(self) -> None:
        self.now = 0
        self.waits: list[int] = []

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now

    def wait(self, condition: threading.Condition, timeout_ms: int | None) -> None:
        assert timeout_ms is not None
        self.waits.append(timeout_ms)
        self.now += timeout_ms


FAR_MS = 1 << 40


def tries(retry_for_ms: int, chance: float = 1.0, ends_ms: int = FAR_MS) -> list[int]:
    clock = QuickClock()
    patience = Patience(Pauses(clock, chance=lambda: chance), retry_for_ms, ends_ms)  # type: ignore[arg-type]
    while patience.wait():
        pass
    return clock.waits


def test_pauses_double_up_to_a_second() -> None:
    assert tries(10_000)[:9] == [25, 50, 100, 200, 400, 800, 1000, 1000, 1000]


def test_chance_takes_up_to_half_of_a_pause() -> None:
    assert tries(10_000, chance=0.0)[:4] == [12, 25, 50, 100]


def test_all_pauses_together_are_the_time_allowed() -> None:
    assert sum(tries(30_000)) == 30_000


def test_the_end_of_the_call_ends_its_pauses() -> None:
    assert sum(tries(30_000, ends_ms=5000)) == 5000


def test_no_attempt_is_left_at_the_end_of_the_call() -> None:
    clock = QuickClock()
    patience = Patience(Pauses(clock, chance=lambda: 1.0), 10_000, 60)  # type: ignore[arg-type]
    assert patience.wait()
    assert patience.left_ms() == 35
    assert not patience.wait()
    assert patience.left_ms() == 0


def test_no_time_allowed_means_one_try() -> None:
    assert tries(0) == []


def test_the_time_allowed_counts_from_the_first_trouble() -> None:
    clock = QuickClock()
    patience = Patience(Pauses(clock, chance=lambda: 1.0), 100, FAR_MS)  # type: ignore[arg-type]
    clock.now = 1_000_000
    assert patience.wait()


def test_a_server_may_ask_for_a_longer_pause() -> None:
    clock = QuickClock()
    assert Patience(Pauses(clock), 10_000, FAR_MS).wait(at_least_ms=700)  # type: ignore[arg-type]
    assert clock.waits == [700]


def test_closing_ends_a_pause() -> None:
    clock = QuickClock()
    pauses = Pauses(clock)  # type: ignore[arg-type]
    pauses.close()
    with pytest.raises(ClientClosed):
        Patience(pauses, 10_000, FAR_MS).wait()
