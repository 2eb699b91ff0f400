from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT


def test_it_shows_its_guarantees_and_leaves_nothing_behind(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "examples.fairness", "--quick"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "✗" not in ran.stdout
    assert ran.stderr == ""
    assert list(tmp_path.iterdir()) == []
