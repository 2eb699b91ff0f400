"""The broker kills the driver, its JVM and its Python processes, in each window between two calls; then the
query starts again. `tests/crash/pipeline/test_windows.py` tests more windows, without Spark.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.pipeline.lives import run_pipeline
from tests.crash.pipeline.switch import EVENTS, SETTLE_EVENTS, Window

from .rounds import BATCH, spark_command

#: Each ends one run. The first run has no checkpoint yet. With two slices to read or stage, a later call
#: belongs to another batch.
PRODUCING = (
    Window("claim", "after", 1),
    Window("claim", "before", 2),
    Window("read", "before", 1),
    Window("read", "after", 4),
    Window("stage", "after", 1),
    Window("stage", "before", 3),
    Window("publish", "after", 1),
    Window("publish", "before", 2),
    Window("close", "after", 2),
    Window("close", "before", 1),
)
#: In a run that repeats a batch, the source makes the first choice, which clears the choice of the run
#: before.
SETTLING = (
    Window("record", "before", 1),
    Window("choose", "after", 2),
    Window("record", "after", 3),
    Window("choose", "before", 2),
)


@pytest.mark.parametrize(("events", "windows"), [(EVENTS, PRODUCING), (SETTLE_EVENTS, SETTLING)])
def test_every_window_is_walked_through(events: tuple[str, ...], windows: tuple[Window, ...]) -> None:
    assert {(w.event, w.when) for w in windows} == {
        (event, when) for event in events for when in ("before", "after")
    }


def test_a_query_killed_in_every_window_publishes_each_message_once(tmp_path: Path) -> None:
    with run_pipeline(tmp_path, spark_command("local[2]")) as pipeline:
        for window in PRODUCING:
            pipeline.feed(3 * BATCH)
            pipeline.die_at(window)
        pipeline.finish()
        assert pipeline.audit() == []


def test_a_query_killed_in_every_window_settles_each_message_as_it_said(tmp_path: Path) -> None:
    with run_pipeline(tmp_path, spark_command("local[2]", operation="settle"), settles=True) as pipeline:
        for window in SETTLING:
            pipeline.feed(3 * BATCH)
            pipeline.die_at(window)
        pipeline.finish()
        assert pipeline.audit() == []


def test_a_source_and_a_sink_that_break_their_word_are_found_out(tmp_path: Path) -> None:
    with run_pipeline(tmp_path, spark_command("local[2]", sink="token_by_chance", slices=1)) as pipeline:
        pipeline.feed(3 * BATCH)
        pipeline.die_at(Window("publish", "after", 1))
        pipeline.command = spark_command("local[2]", source="closes_early", slices=1)
        pipeline.finish()
        problems = pipeline.audit()
        assert [problem for problem in problems if "published 2 times" in problem]
        assert [problem for problem in problems if "completed before it was published" in problem]
