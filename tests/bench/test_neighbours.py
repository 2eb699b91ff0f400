from __future__ import annotations

import pytest

from bench.doors import neighbours
from bench.doors.neighbours import Neighbours


class Street(Neighbours):
    """Others use a hundred seconds of CPU each time somebody works, as often as told."""

    def __init__(self, patience_s: float, noisy: int) -> None:
        super().__init__([], patience_s)
        self.noisy = noisy
        self.done = 0
        self._others = 0.0

    def work(self) -> int:
        self.done += 1
        if self.done <= self.noisy:
            self._others += 100.0
        return self.done

    def _others_cpu_s(self) -> float:
        return self._others


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_LOOK_S", 0.0)


def test_what_nobody_disturbed_is_done_once() -> None:
    street = Street(patience_s=60.0, noisy=0)
    assert (street.undisturbed(street.work), street.pieces, street.disturbed) == (1, 1, 0)


def test_what_was_disturbed_is_done_again_until_it_was_not() -> None:
    street = Street(patience_s=60.0, noisy=3)
    assert (street.undisturbed(street.work), street.pieces, street.disturbed) == (4, 1, 0)


def test_without_patience_it_is_kept_and_counted() -> None:
    street = Street(patience_s=0.0, noisy=3)
    assert (street.undisturbed(street.work), street.pieces, street.disturbed) == (1, 1, 1)
