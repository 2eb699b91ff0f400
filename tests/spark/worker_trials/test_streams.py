"""The order within streams, from the ledger of the steps."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import fairlead
from tests.crash.worker.audit import check_order
from tests.crash.worker.fates import QUEUE, Fate, Sent, write_runbook

from .conftest import Burst

STREAMS, LENGTH = 1000, 100
SEED = 20_262


def test_a_thousand_streams_that_fail_at_random_keep_their_order_at_every_call(
    burst: Callable[[Path], Burst], client: fairlead.Client, tmp_path: Path
) -> None:
    work = burst(write_runbook(tmp_path / "book", retain=False, steps=["mail"], cooldown="0s"))
    chance = random.Random(SEED)
    sent = [
        Sent(
            f"{n}-{stream}",
            f"s{stream}",
            n,
            Fate("fails", "mail", chance.randint(1, 2)) if chance.random() < 0.02 else None,
        )
        for n in range(LENGTH)
        for stream in chance.sample(range(STREAMS), STREAMS)
    ]
    work.send(sent)
    summary = work.run()

    lines = work.lines()
    assert list(check_order(sent, lines)) == []
    done = defaultdict[str, list[int]](list)
    for line in lines:
        if line["ev"] == "end":
            done[line["stream"]].append(line["n"])
    assert len(done) == STREAMS
    assert [stream for stream, ns in done.items() if ns != list(range(LENGTH))] == []
    failures = sum(one.fate.times for one in sent if one.fate is not None)
    assert sum(line["ev"] == "failed" for line in lines) == failures == summary.failed > STREAMS
    assert len({line["pid"] for line in lines}) > 1
    stats = client.stats(QUEUE)
    assert (stats.ready, stats.waiting, stats.leased, stats.dead) == (0, 0, 0, 0)
    assert summary.completed == STREAMS * LENGTH
