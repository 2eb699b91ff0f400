"""A pytest plugin that notes how a run ended, and which tests failed in it, for `tests.ci.again`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_KEY = "fairlead/last_run"


@dataclass(frozen=True)
class LastRun:
    """`ended`: pytest's exit code; None for a run that was cut off."""

    ended: int | None
    failed: tuple[str, ...]


def read_last_run(root: Path) -> LastRun:
    try:
        noted = json.loads((root / ".pytest_cache" / "v" / _KEY).read_text())
    except FileNotFoundError:
        return LastRun(None, ())
    return LastRun(noted["ended"], tuple(noted["failed"]))


def pytest_sessionstart(session: pytest.Session) -> None:
    # A run that is killed must not leave the outcome of the run before it.
    _note(session.config, None, [])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    _note(config, int(exitstatus), sorted(failed_in(terminalreporter)))


def failed_in(terminalreporter: pytest.TerminalReporter) -> set[str]:
    stats: dict[str, list[Any]] = terminalreporter.stats
    return {report.nodeid for outcome in ("failed", "error") for report in stats.get(outcome, [])}


def _note(config: pytest.Config, ended: int | None, failed: list[str]) -> None:
    is_worker_of_xdist = hasattr(config, "workerinput")
    if not is_worker_of_xdist and config.pluginmanager.hasplugin("cacheprovider"):
        config.cache.set(_KEY, {"ended": ended, "failed": failed})  # type: ignore[union-attr]
