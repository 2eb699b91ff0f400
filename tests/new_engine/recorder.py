"""A pytest plugin: runs only the tests that are listed, or adds those that pass to the list."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from fairlead import Broker
from tests.new_engine.__main__ import LIST

#: How often this process opened the old engine. A test that does so says nothing about the new one.
_opened = 0


def _count_old_engines() -> None:
    begin = Broker.__init__

    def counted(self: Broker, *arguments: Any, **options: Any) -> None:
        global _opened
        _opened += 1
        begin(self, *arguments, **options)

    Broker.__init__ = counted  # type: ignore[method-assign]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--only-listed", action="store_true")


def pytest_configure(config: pytest.Config) -> None:
    _count_old_engines()
    config.pluginmanager.register(Recorder(config))


def function_of(node_id: str) -> str:
    """A test by its file and name; all its parameters count together."""
    return node_id.partition("[")[0].partition("@")[0]


class Recorder:
    def __init__(self, config: pytest.Config) -> None:
        self._only_listed = bool(config.getoption("--only-listed"))
        self._is_worker = hasattr(config, "workerinput")
        self._opened_before = 0
        self._outcomes: dict[str, set[bool]] = defaultdict(set)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._only_listed:
            listed = set(LIST.read_text().split())
            lost = listed - {function_of(item.nodeid) for item in items}
            if lost:
                raise pytest.UsageError(f"{LIST.name} names tests that do not exist: {sorted(lost)}")
            items[:] = [item for item in items if function_of(item.nodeid) in listed]

    def pytest_runtest_logstart(self) -> None:
        self._opened_before = _opened

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self) -> Any:
        outcome = yield
        outcome.get_result().user_properties.append(("on the old engine", _opened > self._opened_before))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not self._is_worker and not report.skipped:
            is_new = ("on the old engine", True) not in report.user_properties
            self._outcomes[function_of(report.nodeid)].add(report.passed and is_new)

    def pytest_sessionfinish(self) -> None:
        if self._is_worker or self._only_listed:
            return
        passing = {name for name, outcomes in self._outcomes.items() if outcomes == {True}}
        listed = set(LIST.read_text().split()) if LIST.exists() else set()
        LIST.write_text("".join(f"{name}\n" for name in sorted(listed | passing)))
