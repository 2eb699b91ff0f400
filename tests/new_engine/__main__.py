from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

LIST = Path(__file__).with_name("passing.txt")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.new_engine", description=__doc__)
    parser.add_argument("--find", nargs="+", metavar="PATH", help="add what passes there to the list")
    parser.add_argument("--jobs", default="2", help="processes side by side (2)")
    given = parser.parse_args()
    os.environ["TEST_ENGINE"] = "new"
    common = ["-q", "-p", "tests.new_engine.recorder", "-p", "no:cacheprovider", "-n", given.jobs]
    common += ["--dist", "worksteal", "-m", "not rounds", "-o", "faulthandler_timeout=120"]
    if given.find:
        common += ["--tb=no", "--no-summary", *given.find]
    else:
        # Tests are chosen by the recorder: thousands of names would not fit on a command line.
        common += ["--only-listed", *sorted({line.split("::")[0] for line in LIST.read_text().split()})]
    import pytest

    return int(pytest.main(common))


if __name__ == "__main__":
    sys.exit(main())
