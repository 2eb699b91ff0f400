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
    """One set of hooks for a whole module, with the limits of a server. State that one test leaves affects
    the next.
    """
    running = Hooks(HookSettings(), ManualClock())
    yield running
    running.close()


@pytest.fixture
def hooks(clock: ManualClock) -> Iterator[Hooks]:
    """One host for the test. The manual clock moves breakers only, never the watch over the process.

    The time of a call is generous: on a shared machine its CPU time includes time that other machines took.
    """
    running = Hooks(HookSettings(default_timeout_ms=1000), clock)
    yield running
    running.close()
