"""A small sample of the sweep, drawn anew on every run; `make test-crash` has a large one, `make torture` all of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .victim import ROOT


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.rounds)])
def test_a_damaged_file_gives_exact_data_or_a_refusal_that_names_it(count: int) -> None:
    sweep("--sample", str(count))


@pytest.mark.parametrize("count", [15, pytest.param(300, marks=pytest.mark.rounds)])
def test_a_damaged_file_of_a_checkpoint_gives_exact_data_or_a_refusal_that_names_it(count: int) -> None:
    sweep("--of", "checkpoint", "--sample", str(count))


@pytest.mark.parametrize("count", [10, pytest.param(300, marks=pytest.mark.rounds)])
def test_a_damaged_table_of_many_gives_exact_data_or_a_refusal_that_names_it(count: int) -> None:
    sweep("--of", "tables", "--sample", str(count))


@pytest.mark.parametrize("system", ["restarted", "no-boot-id"])
@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.rounds)])
def test_after_a_power_cut_only_what_no_sync_covered_is_missing(count: int, system: str) -> None:
    sweep("--power", system, "--sample", str(count))


def sweep(*arguments: str) -> None:
    """In a process that has never opened RocksDB, because it forks."""
    command = [sys.executable, "-m", "tests.crash.damage", *arguments]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "150"}
    )
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
