"""Rates of interleaved rounds, and what may be said about them."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter, process_time

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


class Timed(msgspec.Struct, frozen=True):
    """One run: messages a second, and the CPU time of this whole process for one message, in microseconds."""

    rate: float
    cpu_us: float


def timed(count: int, work: Callable[[], object]) -> Timed:
    began, cpu = perf_counter(), process_time()
    work()
    return Timed(count / (perf_counter() - began), (process_time() - cpu) / count * 1e6)


def per_second(count: int, work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    return count / (perf_counter() - began)
