from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead.hooks import Hooks, HookSettings
from fairlead.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def hosted() -> Iterator[Hooks]:
    """One set of hooks for a whole module: what one test leaves behind would be met by the next.

    With the limits of a server, for scripts that go beyond them.
    """
    running = Hooks(HookSettings(), ManualClock())
    yield running
    running.close()


@pytest.fixture
def hooks(clock: ManualClock) -> Iterator[Hooks]:
    """One host for the test; the manual clock moves breakers only, never the watch over the process.

    The time of a call is generous: on a shared machine CPU time also contains time that others took.
    """
    running = Hooks(HookSettings(default_timeout_ms=1000), clock)
    yield running
    running.close()
