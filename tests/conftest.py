"""Hypothesis profiles: `ci` digs deeper and prints what replays a failure; `dev` is quick. HYPOTHESIS_PROFILE
chooses another.
"""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.ci import last_run
from tests.ci.last_run import pytest_sessionstart  # noqa: F401 - a hook
from tests.sampling import (  # noqa: F401 - hooks
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
)

# No deadline: a shared two-core machine stalls now and then, and a slow step is not a wrong one.
_SLOW_IS_FINE = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}

settings.register_profile("dev", print_blob=True, **_SLOW_IS_FINE)
# CI keeps examples that failed, so that a test that is run again replays them.
settings.register_profile(
    "ci",
    print_blob=True,
    derandomize=False,
    database=DirectoryBasedExampleDatabase(".hypothesis/examples"),
    **_SLOW_IS_FINE,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))

# A process started in the background ignores SIGINT, and so would every child to which a test sends one.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    last_run.pytest_terminal_summary(terminalreporter, exitstatus, config)
    failed = last_run.failed_in(terminalreporter)
    if failed and config.pluginmanager.hasplugin("cacheprovider"):
        target = "test-spark" if all(test.startswith("tests/spark/") for test in failed) else "test"
        terminalreporter.write_line(f"only what failed, once more and one by one: make {target} ARGS=--lf")
