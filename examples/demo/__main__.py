"""The whole story in about two minutes: `make demo`, or `python -m examples.demo --quick`.

A broker, a runbook, orders from Parquet by Spark, a worker on Spark, failures of several kinds, a fix, a redrive, and an audit.
Everything it starts is over when it ends, also by Ctrl-C, and everything it writes is in one folder, which it removes.
"""

from __future__ import annotations

import argparse
import signal
import sys

from examples.demo.scratch import Scratch
from examples.demo.screen import INDENT, Screen
from examples.demo.story import FULL, QUICK, Story, StoryBroken


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description="Orders of five shops, worked on Spark.")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the orders")
    parser.add_argument("--keep", action="store_true", help="leave the folder with the orders and the data")
    parser.add_argument("--fairness", action="store_true", help="another demo: five tenants share a queue in process, without Spark (30 s)")
    given, others = parser.parse_known_args()
    if given.fairness:
        return _fairness([*(["--quick"] if given.quick else []), *others])
    if others:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    # Whoever closes the terminal or ends it from outside means what Ctrl-C means.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    screen = Screen()
    scratch = Scratch(keep=given.keep, columns=screen.console.width - INDENT)
    try:
        with scratch:
            return Story(QUICK if given.quick else FULL, scratch, screen).tell()
    except StoryBroken as broken:
        screen.broken(str(broken))
        return 1
    except KeyboardInterrupt:
        screen.stopped()
        return 130
    finally:
        if scratch.is_left:
            screen.kept(scratch.path)


def _fairness(arguments: list[str]) -> int:
    from examples.fairness.__main__ import main as fairness

    sys.argv = ["python -m examples.fairness", *arguments]
    return fairness()


if __name__ == "__main__":
    sys.exit(main())
