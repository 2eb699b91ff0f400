"""Two checkouts are measured in turns, each by its own Python."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.console import Console

from bench import compare
from bench.compare import Compared, Run

HERE = Path(sys.executable).parents[2]


def runs(*cpu_us: float) -> list[Run]:
    return [Run(client=us, server=0.0, rate=1.0) for us in cpu_us]


def test_each_way_gives_the_cpu_time_of_its_processes() -> None:
    cases = {("in process", 1): 5, ("server", 500): 500}
    found = compare.compare(HERE, HERE, cases, 1, Console(quiet=True))
    (in_process,), (through_server,) = (compared.after for compared in found.values())
    assert in_process.client > 0
    assert in_process.server == 0
    assert through_server.client > 0
    assert through_server.server > 0


def test_the_checkouts_take_turns_to_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    order: list[str] = []

    def noted(checkout: Path, case: compare.Case, messages: int) -> Run:
        order.append(checkout.name)
        return Run(1.0, 0.0, 1.0)

    monkeypatch.setattr(compare, "run_once", noted)
    compare.compare(first, second, {("in process", 1): 1}, 3, Console(quiet=True))
    assert order == ["a", "b", "b", "a", "a", "b"]


def test_disturbed_rounds_leave_the_ratio_as_it_is() -> None:
    ratio = Compared(runs(*[100.0] * 31), runs(*[110.0] * 28, 900.0, 900.0, 900.0)).ratio()
    assert (ratio.low, ratio.median, ratio.high) == pytest.approx((1.1, 1.1, 1.1))


def test_of_few_rounds_all_are_shown() -> None:
    ratio = Compared(runs(100.0, 100.0, 100.0), runs(90.0, 100.0, 130.0)).ratio()
    assert (ratio.low, ratio.median, ratio.high) == pytest.approx((0.9, 1.0, 1.3))
