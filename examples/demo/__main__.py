"""The whole story in about two minutes: `make demo`, or `python -m examples.demo --quick`.

A broker, a runbook, orders from Parquet by Spark, a worker on Spark, failures of several kinds, a fix, a
redrive, and an audit. Everything it starts is over when it ends, also by Ctrl-C, and everything it writes is
in one folder, which it removes.
"""

from __future__ import annotations

import argparse
import signal
import sys

_INTERRUPTED = 130


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo", description="Orders of five shops, worked on Spark."
    )
    parser.add_argument("--quick", action="store_true", help="a twentieth of the orders")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="leave the folder with the orders and the data, and say where it is",
    )
    parser.add_argument(
        "--fairness",
        action="store_true",
        help="another one: five tenants share a queue in process, without Spark (30 s)",
    )
    given = parser.parse_args()
    # Whoever closes the terminal or ends it from outside means what Ctrl-C means.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        return _fairness(given.quick) if given.fairness else _story(given.quick, given.keep)
    except KeyboardInterrupt:
        print("\nStopped; nothing is left running.")
        return _INTERRUPTED


def _story(quick: bool, keep: bool) -> int:
    # Here, because libraries take a second to load, in which Ctrl-C should do what it does later.
    from examples.demo.scratch import Scratch
    from examples.demo.screen import INDENT, Screen
    from examples.demo.story import FULL, QUICK, Story, StoryBroken

    screen = Screen()
    with Scratch(keep=keep, columns=screen.console.width - INDENT) as scratch:
        try:
            told = Story(QUICK if quick else FULL, scratch, screen).tell()
        except StoryBroken as broken:
            screen.broken(str(broken))
            told = False
    if keep:
        screen.kept(scratch.path)
    return 0 if told else 1


def _fairness(quick: bool) -> int:
    from examples.fairness.__main__ import main as fairness

    sys.argv = ["python -m examples.fairness", *(["--quick"] if quick else [])]
    return fairness()


if __name__ == "__main__":
    sys.exit(main())
