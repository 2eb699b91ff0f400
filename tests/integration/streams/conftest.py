"""In all of these tests a failed message of a stream waits for a minute."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _a_minute_after_a_failure(request: pytest.FixtureRequest) -> None:
    if "world" in request.fixturenames:
        request.getfixturevalue("world").broker.update_queue("q", retry_in_stream={"cooldown": "1m"})
