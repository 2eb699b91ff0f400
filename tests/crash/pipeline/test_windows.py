"""A driver that keeps Spark's order of calls is killed in every window between it and the broker, without
Spark.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from .driver import Breach, Life
from .lives import Command, run_pipeline
from .switch import BEFORE_AND_AFTER, EVENTS, SETTLE_EVENTS, Window

BATCH = 10


#: Two slices of each batch are read, staged and recorded.
LATER = {"claim": 2, "read": 4, "stage": 3, "publish": 2, "record": 4, "choose": 2, "close": 2}


def windows(events: tuple[str, ...]) -> list[Window]:
    """Of the first call in a life, and of a later one."""
    return [
        Window(event, when, nth) for event in events for nth in (1, LATER[event]) for when in BEFORE_AND_AFTER
    ]


def imitate(**options: object) -> Command:
    def command(home: Path, address: str) -> list[str]:
        life = msgspec.convert({"home": str(home), "address": address, "batch": BATCH, **options}, Life)
        return [sys.executable, "-m", "tests.crash.pipeline.driver", msgspec.json.encode(life).decode()]

    return command


def test_a_driver_killed_in_every_window_publishes_each_message_once(tmp_path: Path) -> None:
    with run_pipeline(tmp_path, imitate()) as pipeline:
        for window in windows(EVENTS):
            pipeline.feed(3 * BATCH)
            pipeline.die_at(window)
        pipeline.finish()
        assert pipeline.audit() == []


def test_a_driver_killed_in_every_window_settles_each_message_as_it_said(tmp_path: Path) -> None:
    with run_pipeline(tmp_path, imitate(operation="settle"), settles=True) as pipeline:
        for window in windows((*SETTLE_EVENTS, "close")):
            pipeline.feed(3 * BATCH)
            pipeline.die_at(window)
        pipeline.finish()
        assert pipeline.audit() == []


@pytest.mark.parametrize(
    ("breach", "window", "problem"),
    [
        ("closes early", Window("stage", "before", 1), "completed before it was published"),
        ("token by chance", Window("publish", "after", 1), "published 2 times"),
        ("forgets its offsets", Window("publish", "after", 2), "lost"),
    ],
)
def test_a_driver_that_breaks_its_word_is_found_out(
    breach: Breach, window: Window, problem: str, tmp_path: Path
) -> None:
    with run_pipeline(tmp_path, imitate(breach=breach)) as pipeline:
        pipeline.feed(4 * BATCH)
        pipeline.die_at(window)
        pipeline.start()
        pipeline.wait()
        problems = pipeline.audit()
        assert any(problem in one for one in problems), problems
