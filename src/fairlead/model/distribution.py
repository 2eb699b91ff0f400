"""A histogram: the number of values between bounds, and their sum."""

from __future__ import annotations

from bisect import bisect_left


class Distribution:
    """A histogram that adds many equal values at once. `counts` has one more entry than `bounds`, for values
    above the last bound.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times
