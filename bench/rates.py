"""Rates of interleaved rounds, and what may be said about them."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import msgspec


class Spread(msgspec.Struct, frozen=True):
    """Median, least and most of several rounds."""

    median: float
    low: float
    high: float

    def show(self, digits: int = 2) -> str:
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f}..{self.high:,.{digits}f})"


def spread(values: list[float]) -> Spread:
    return Spread(median(values), min(values), max(values))


def ratio(of: list[float], to: list[float]) -> Spread:
    """Round by round, so that what slows a whole round down cancels out."""
    return spread([a / b for a, b in zip(of, to, strict=True)])


def per_second(count: int, work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    return count / (perf_counter() - began)
