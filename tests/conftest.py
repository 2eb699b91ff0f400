"""Hypothesis profiles: `ci` digs deeper and prints what replays a failure; `dev` is quick. HYPOTHESIS_PROFILE
chooses another.
"""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# No deadline: a shared two-core machine stalls now and then, and a slow step is not a wrong one.
_SLOW_IS_FINE = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}

settings.register_profile("dev", print_blob=True, **_SLOW_IS_FINE)
settings.register_profile("ci", print_blob=True, derandomize=False, database=None, **_SLOW_IS_FINE)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))

# A process started in the background ignores SIGINT, and so would every child to which a test sends one.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    failed = [report for outcome in ("failed", "error") for report in terminalreporter.stats.get(outcome, [])]
    if failed and terminalreporter.config.pluginmanager.hasplugin("cacheprovider"):
        target = (
            "test-spark" if all(report.nodeid.startswith("tests/spark/") for report in failed) else "test"
        )
        terminalreporter.write_line(f"only what failed, once more and one by one: make {target} ARGS=--lf")
