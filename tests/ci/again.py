"""Run the few tests that failed in the last run again, alone, three times each.

The machine that runs all tests is shared and noisy, and a run of 12,000 tests takes a quarter of an hour. A
test that fails beside others and passes three times alone is reported at the end of the run, not hidden, and
does not stop it. A random example that failed is replayed first, because Hypothesis keeps it: a bug that only
some examples show fails again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tests.ci.last_run import LastRun, read_last_run

MAX_UNSTABLE = 3
REPETITIONS = 3


def find_objection(run: LastRun) -> str:
    """Why the failures of this run cannot be noise; "" when they may be."""
    if run.ended is None:
        return "the last run was cut off, or there was none"
    if run.ended != 1:
        return f"the last run did not end with failing tests, but with pytest's exit code {run.ended}"
    if not run.failed or not all("::" in test for test in run.failed):
        return "the last run failed outside of its tests"
    if len(run.failed) > MAX_UNSTABLE:
        return f"{len(run.failed)} tests failed in the last run, more than {MAX_UNSTABLE}"
    return ""


def passes_alone(test: str, root: Path, options: list[str]) -> bool:
    # Without the cache, which has the outcome of the run before.
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, test]
    return all(subprocess.run(command, cwd=root).returncode == 0 for _ in range(REPETITIONS))


def run_again(root: Path, note: Path | None, options: list[str]) -> str:
    """Why the run has failed after all; "" when all its failures were noise, which are then in `note`."""
    run = read_last_run(root)
    if objection := find_objection(run):
        return objection
    for test in run.failed:
        print(f"again, alone, {REPETITIONS} times: {test}", flush=True)
        if not passes_alone(test, root, options):
            return f"it fails alone, too: {test}"
        if note is not None:
            with note.open("a") as noted:
                noted.write(f"{test}\n")
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.ci.again", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="where the last run was started")
    parser.add_argument("--note", type=Path, help="a file to which the names of unstable tests are added")
    parser.add_argument("options", nargs="*", help="options for pytest, behind --")
    chosen = parser.parse_args()
    if failure := run_again(chosen.root, chosen.note, chosen.options):
        sys.exit(f"failed: {failure}")
    print("passed: each test that failed in the last run passes alone", flush=True)


if __name__ == "__main__":
    main()
