"""`python -m tests.mutants [--only TEXT] [--suite SUITE]`: which bugs do the tests catch?"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.table import Table

from .bugs import BUGS, SUITES, Bug

ROOT = Path(__file__).parents[2]
#: A bug may make a test wait for ever: that is a failure too. A suite with a bug has three times as long as without,
#: and this long at least.
LIMIT_S = 300
#: A suite without a bug ends within that time also on a busy machine.
LONGEST_S = 1800


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="bugs whose names contain this text")
    parser.add_argument("--suite", choices=[*SUITES], help="bugs of this suite")
    parser.add_argument("--jobs", default="2", help="processes of one suite (default 2)")
    options = parser.parse_args()
    console, table = Console(), Table("bug", "suite", "result", "by")
    chosen = [bug for bug in BUGS if options.only in bug.name and options.suite in (None, bug.suite)]
    survived, limits = 0, dict[str, float]()
    with tempfile.TemporaryDirectory(prefix="fairlead-mutants-") as home:
        for suite in {bug.suite for bug in chosen}:
            source = make_copy(Path(home), None)
            began = monotonic()
            failed = run_suite(suite, source, options.jobs, LONGEST_S)
            limits[suite] = max(LIMIT_S, 3 * (monotonic() - began))
            if failed is not None:
                console.print(f"the suite {suite!r} fails without a bug: {failed}", markup=False)
                return 1
        for bug in chosen:
            console.print(bug.name, markup=False)
            failed = run_suite(bug.suite, make_copy(Path(home), bug), options.jobs, limits[bug.suite])
            survived += failed is None
            table.add_row(bug.name, bug.suite, "survived" if failed is None else "caught", failed or "")
    console.print(table)
    console.print(f"{len(chosen) - survived} of {len(chosen)} bugs caught")
    return 1 if survived else 0


def make_copy(home: Path, bug: Bug | None) -> Path:
    """The sources with the bug in them."""
    source = home / "src"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    if bug is not None:
        file = source / "fairlead" / bug.file
        file.write_text(with_bug(bug, file.read_text()))
    return source


def with_bug(bug: Bug, text: str) -> str:
    if text.count(bug.before) != 1:
        raise ValueError(
            f"{bug.name}: expected its text once in {bug.file}, got {text.count(bug.before)} times"
        )
    return text.replace(bug.before, bug.after)


def run_suite(suite: str, source: Path, jobs: str, limit_s: float) -> str | None:
    """The first test that fails; None: all pass."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-n",
        jobs,
        "-p",
        "no:cacheprovider",
        *SUITES[suite],
    ]
    environment = {**os.environ, "PYTHONPATH": f"{source}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return f"no end within {limit_s:.0f} s"
    if ended.returncode == 0:
        return None
    failures = [
        line for line in ended.stdout.splitlines() if line.startswith(("FAILED tests", "ERROR tests"))
    ]
    if not failures:
        raise RuntimeError(
            f"pytest ended with {ended.returncode}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}"
        )
    return failures[0].partition(" ")[2].partition(" - ")[0].rpartition("/")[2]


if __name__ == "__main__":
    sys.exit(main())
