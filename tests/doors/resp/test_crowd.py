"""Thousands of connections that do nothing, at a server in a process of its own."""

from __future__ import annotations

import resource
from pathlib import Path

from bench.doors.waiting import measure_crowds


def test_thousands_wait_or_stay_open_without_a_thread_and_all_are_answered(tmp_path: Path) -> None:
    """Each claim gets its message, and each connection its answer: `measure_crowds` raises otherwise."""
    waiting, idle = measure_crowds(tmp_path, 2_000, 10_000)
    assert waiting.waited
    assert waiting.connections == 2_000
    # Fewer only where the system lets a process open less than 13,500 files.
    assert idle.connections == min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] * 3 // 4 - 100)
    assert waiting.threads == waiting.threads_before
    assert idle.threads == idle.threads_before
