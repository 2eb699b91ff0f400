"""`make demo` with fewer orders."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.examples.test_demo import end, processes_in


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "TMPDIR": str(folder), "CI": "true"}
    return subprocess.Popen(
        [sys.executable, "-m", "examples.demo", "--quick", *arguments],
        cwd=ROOT,
        env=environment,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_it_goes_as_told_and_leaves_nothing_behind(tmp_path: Path) -> None:
    demo = start(tmp_path)
    try:
        printed = demo.communicate(timeout=600)[0]
    finally:
        left = ended(demo, tmp_path)
    assert demo.returncode == 0, printed
    assert "✗" not in printed
    assert printed.count("✓") == 7
    assert "Traceback" not in printed
    assert promised_by_the_readme() == [in_words(line) for line in printed.splitlines() if "✓" in line]
    assert left == []
    assert list(tmp_path.iterdir()) == []


def ended(demo: subprocess.Popen[str], folder: Path) -> list[int]:
    """The processes that are left."""
    demo.kill()
    demo.wait()
    left = processes_in(folder)
    end(left)
    return left


def promised_by_the_readme() -> list[str]:
    return [in_words(line) for line in (ROOT / "README.md").read_text().splitlines() if "✓" in line]


def in_words(line: str) -> str:
    """The output without its numbers, which are larger in the full demo."""
    return re.sub(r"[\d,]*\d", "N", line).strip()


@pytest.mark.parametrize("moment", ["$ fairlead serve", "$ python ingest.py", "$ fairlead worker run"])
def test_ctrl_c_ends_it_at_any_moment_with_nothing_left_behind(tmp_path: Path, moment: str) -> None:
    demo = start(tmp_path)
    try:
        assert demo.stdout is not None
        while moment not in (line := demo.stdout.readline()):
            assert line, f"it ended before {moment}"
        demo.send_signal(signal.SIGINT)
        printed = demo.communicate(timeout=600)[0]
    finally:
        left = ended(demo, tmp_path)
    assert demo.returncode == 130, printed
    assert "Traceback" not in printed
    assert printed.endswith("Stopped; nothing is left running.\n")
    assert left == []
    assert list(tmp_path.iterdir()) == []
