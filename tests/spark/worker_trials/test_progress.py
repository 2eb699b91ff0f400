"""Confirmed steps do not run again, neither in retries nor after a redrive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import fairlead
from tests.crash.worker.fates import QUEUE, STEPS, Fate, Sent, write_runbook

from .conftest import Burst

COUNT, TRIES = 900, 3


def test_where_the_second_of_three_steps_fails_the_first_is_run_once_for_each_message(
    burst: Callable[[Path], Burst], client: fairlead.Client, tmp_path: Path
) -> None:
    fixed = tmp_path / "fixed"
    work = burst(write_runbook(tmp_path / "book", retain=True, cooldown="0s", attempts=TRIES))
    sent = [
        Sent(f"m{n}", fate=Fate("fails", "charge", until=str(fixed)) if n % 3 == 1 else None)
        for n in range(COUNT)
    ]
    ids = work.send(sent)

    summary = work.run()
    assert (summary.completed, summary.dead, client.stats(QUEUE).dead) == (
        COUNT * 2 // 3,
        COUNT // 3,
        COUNT // 3,
    )
    dead = [client.find(ids[one.tag]) for one in sent if one.fate is not None]
    assert {(info.source, info.attempts, len(info.failures)) for info in dead} == {(QUEUE, TRIES, TRIES)}

    fixed.touch()
    assert client.redrive(QUEUE).matched == COUNT // 3
    assert work.run().completed == COUNT // 3
    calls = Counter((line["tag"], line["step"]) for line in work.lines() if line["ev"] == "begin")
    for one in sent:
        expected = (1, TRIES + 1, 1) if one.fate is not None else (1, 1, 1)
        assert tuple(calls[one.tag, step] for step in STEPS) == expected, one
    assert client.stats(QUEUE).done == COUNT
