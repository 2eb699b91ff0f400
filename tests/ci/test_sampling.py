"""With `--sample`, sweeps run in part; without it, in full."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

SWEEP = """
import pytest
from hypothesis import given, strategies as st
from tests.sampling import sampled

NUMBER = sampled(3, of=12)
examples = []

@pytest.mark.sample(5)
@pytest.mark.parametrize("seed", range(30))
def test_swept(seed):
    pass

@pytest.mark.parametrize("case", range(4))
def test_that_has_no_mark(case):
    pass

@pytest.mark.sample(4)
@pytest.mark.parametrize("door", "abcde")
@pytest.mark.parametrize("verb", "vwxyz")
def test_of_two_parameters(door, verb):
    pass

@given(st.integers())
def test_drawn(n):
    examples.append(n)

def test_told():
    print(f"examples {len(examples)}, number {NUMBER}")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = sample(cases): so many\n")
    (tmp_path / "test_sweep.py").write_text(SWEEP)
    return tmp_path


def run(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "pytest", "-v", "-s", "-p", "tests.sampling", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def seeds(printed: str) -> list[str]:
    return sorted(set(re.findall(r"test_swept\[\d+\]", printed)))


def test_without_the_option_everything_runs(folder: Path) -> None:
    printed = run(folder)
    assert "61 passed" in printed
    assert "examples 100, number 12" in printed


def test_with_the_option_only_marked_tests_run_in_part(folder: Path) -> None:
    printed = run(folder, "--sample")
    assert {*"abcde", *"vwxyz"} == set("".join(re.findall(r"test_of_two_parameters\[(.-.)\]", printed))) - {
        "-"
    }
    assert "examples 25, number 3" in printed
    # Processes side by side choose the same five, and each run chooses anew.
    beside = run(folder, "--sample", "-n", "2")
    assert len(seeds(beside)) == len(seeds(printed)) == 5
    assert seeds(beside) != seeds(printed)
