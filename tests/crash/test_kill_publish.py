"""A publish killed inside its steps: after the next opening all of it is there, or nothing; in order; and
doing it over changes nothing.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import fairlead
from fairlead import Broker, Complete
from fairlead.testing import Durability, ManualClock

from .rounds import PATIENCE_S, ROOT, _kill_later
from .staged import CHUNKS, COMMITS, LISTED, TOKEN, Victim, payloads, stage_all

#: By chunk, (seq, payload) as they came.
Found = dict[str, list[tuple[int, bytes]]]


def live_and_die(victim: Victim, stderr: Path) -> None:
    command = [sys.executable, "-m", "tests.crash.staged", msgspec.json.encode(victim).decode()]
    with (
        stderr.open("wb") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT
        ) as child,
    ):
        watchdog = _kill_later(child, PATIENCE_S)
        assert child.stdout is not None
        said = child.stdout.read()
        watchdog()
    assert child.returncode == -signal.SIGKILL, stderr.read_text()[-3000:]
    assert said in (b"", b"ready\n"), "it was to die on the way"


def contents(broker: Broker) -> Found:
    found: Found = {}
    for queue in ("q", "q.dlq"):
        while deliveries := broker.claim(queue, limit=5000, max_per_stream=5000):
            for delivery in deliveries:
                found.setdefault(delivery.payload.decode().split("/")[0], []).append(
                    (delivery.seq, delivery.payload)
                )
            broker.settle([Complete(delivery) for delivery in deliveries])
    return found


def check_order(found: Found) -> None:
    """All of each chunk, once; plain ones in the order staged, and those of the stream too."""
    assert {chunk: len(got) for chunk, got in found.items()} == CHUNKS
    for chunk, got in found.items():
        wanted = payloads(chunk)
        assert sorted(payload for _, payload in got) == sorted(wanted)
        in_stream = {payload for n, payload in enumerate(wanted) if n % 100 == 0 and chunk != "dead"}
        plain = [payload for _, payload in got if payload not in in_stream]
        assert plain == [payload for payload in wanted if payload not in in_stream]
        ordered = [payload for seq, payload in sorted(got) if payload in in_stream]
        assert ordered == [payload for payload in wanted if payload in in_stream]


@pytest.mark.sample(5)
@pytest.mark.parametrize("die_before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("die_at", range(1, COMMITS + 1))
def test_a_publish_killed_at_any_of_its_commits_is_whole_or_not_at_all(
    die_at: int, die_before: bool, tmp_path: Path
) -> None:
    durability: Durability = "os" if die_at % 2 else "fsync"
    data = tmp_path / "data"
    live_and_die(Victim(str(data), durability, "publish", die_at, die_before), tmp_path / "stderr.txt")
    assert fairlead.verify(data).problems == []
    decided = die_at > 1 or not die_before
    with fairlead.open(data, durability="os", clock=ManualClock()) as broker:
        broker.run_due()
        assert [write.published for write in broker.staging.list()] == [decided]
        assert broker.stats("q").ready == (sum(CHUNKS.values()) - CHUNKS["dead"] if decided else 0)
        stage_all(broker)
        again = broker.staging.publish(TOKEN, "q", [*CHUNKS])
        assert (again.outcome, again.count) == ("already" if decided else "published", sum(CHUNKS.values()))
        check_order(contents(broker))
        assert broker.staging.list()[0].published
    assert fairlead.verify(data).problems == []


def test_a_publish_killed_again_and_again_on_its_way_is_finished_in_the_end(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for life in range(4):
        # The first life dies behind the decision, each later one at the first step it makes, be it the
        # timer's or its own.
        live_and_die(
            Victim(str(data), "os", "publish", 1 if life else 2, life == 2), tmp_path / f"stderr-{life}.txt"
        )
        assert fairlead.verify(data).problems == []
    with fairlead.open(data, durability="os", clock=ManualClock()) as broker:
        broker.run_due()
        check_order(contents(broker))


@pytest.mark.sample(4)
@pytest.mark.parametrize("die_before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("die_at", [3, 5, 6, len(LISTED)])
def test_a_victim_killed_while_it_stages_leaves_whole_chunks_that_nobody_sees(
    die_at: int, die_before: bool, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    live_and_die(Victim(str(data), "os", "stage", die_at, die_before), tmp_path / "stderr.txt")
    assert fairlead.verify(data).problems == []
    with fairlead.open(data, durability="os", clock=ManualClock()) as broker:
        assert [write.chunks for write in broker.staging.list()] == [
            LISTED[die_at - (2 if die_before else 1)]
        ]
        assert contents(broker) == {}
        stage_all(broker)
        assert broker.staging.publish(TOKEN, "q", [*CHUNKS]).outcome == "published"
        check_order(contents(broker))
