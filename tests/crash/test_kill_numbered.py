"""A numbered claim killed inside its pieces and steps: what was answered reads the same afterwards, and what
was closed is finished.
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
from fairlead.clock import SystemClock
from fairlead.errors import ClaimReleased
from fairlead.testing import ManualClock

from .numbered import (
    CHOSEN,
    ENDED,
    FLIPPED,
    IN_STREAM,
    LIMIT,
    MESSAGES,
    PIECE,
    REGISTERED,
    SEALED,
    Victim,
    digest,
)
from .rounds import PATIENCE_S, ROOT, _kill_later

DEAD = len(range(0, LIMIT, 30))


def live_and_die(victim: Victim, stderr: Path, module: str = "tests.crash.numbered") -> list[str]:
    """What it said before it died."""
    command = [sys.executable, "-m", module, msgspec.json.encode(victim).decode()]
    with (
        stderr.open("wb") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT
        ) as child,
    ):
        watchdog = _kill_later(child, PATIENCE_S)
        assert child.stdout is not None
        said = child.stdout.read().decode().splitlines()
        watchdog()
    assert child.returncode == -signal.SIGKILL, stderr.read_text()[-3000:]
    assert victim.end not in said, "it was to die on the way"
    assert fairlead.verify(victim.data).problems == []
    return said


def say_all(victim: Victim, module: str) -> list[str]:
    """What it says when it is not killed after all."""
    command = [sys.executable, "-m", module, msgspec.json.encode(victim).decode()]
    # The end of its standard input is the end of whoever started it.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as child:
        watchdog = _kill_later(child, PATIENCE_S)
        assert child.stdout is not None
        said = child.stdout.read().decode().splitlines()
        watchdog()
    assert child.returncode == 0
    return said


def rest(broker: Broker) -> list[bytes]:
    """All that is ready, in the order in which it goes out."""
    found: list[bytes] = []
    while deliveries := broker.claim("q", limit=MESSAGES, max_per_stream=MESSAGES):
        found += [delivery.payload for delivery in deliveries]
        broker.settle([Complete(delivery) for delivery in deliveries])
    return found


def check_closed(broker: Broker) -> None:
    """The outcomes that were chosen, and completion for all others; what was not claimed is left."""
    info = broker.consumers.show("etl", "q")
    assert (info.last_closed, info.open, info.lost) == (1, 0, 0)
    stats = broker.stats("q")
    assert (stats.ready, stats.leased, stats.dead) == (MESSAGES - LIMIT, 0, DEAD)
    assert {dead.failures[-1].error for dead in broker.peek("q.dlq", limit=1000)} == {"bad"}
    assert rest(broker) == [b"%d" % n for n in range(LIMIT, MESSAGES)]


@pytest.mark.sample(12)
@pytest.mark.parametrize("die_before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("die_at", range(1, ENDED + 1))
def test_a_reader_killed_at_any_commit_of_its_claim_or_close_does_it_over_and_nothing_is_lost_or_done_twice(
    die_at: int, die_before: bool, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    said = live_and_die(
        Victim(str(data), "os" if die_at % 2 else "fsync", "close", die_at, die_before),
        tmp_path / "stderr.txt",
    )
    made = die_at - 1 if die_before else die_at
    with fairlead.open(data, durability="os", clock=ManualClock()) as broker:
        broker.run_due()
        known = broker.consumers.list()
        assert len(known) == (1 if made >= REGISTERED else 0)
        if made >= FLIPPED:
            check_closed(broker)
            return
        assert not known or known[0].open == (1 if made > REGISTERED else 0)
        assert broker.stats("q").ready + broker.stats("q").leased == MESSAGES
        generation = broker.consumers.register("etl", "q").generation
        claimed = broker.consumers.claim("etl", "q", generation, 1, limit=LIMIT)
        assert claimed.count == LIMIT
        if said:
            assert said[0] == f"claimed {digest(broker, generation)}"
        taken = list(broker.consumers.read("etl", "q", generation, 1))
        assert [delivery.payload for delivery in taken if delivery.stream] == [
            b"%d" % n for n in range(IN_STREAM)
        ]
        assert len({delivery.id for delivery in taken}) == LIMIT
        broker.consumers.choose("etl", "q", generation, 1, ["1"])
        settled = broker.consumers.close("etl", "q", generation, 1).settled
        dead = DEAD if made >= CHOSEN - 1 else 0
        assert settled == {"completed": LIMIT - dead} | ({"dead": dead} if dead else {})
        assert rest(broker) == [b"%d" % n for n in range(LIMIT, MESSAGES)]
    assert fairlead.verify(data).problems == []


@pytest.mark.parametrize(
    ("die_at", "die_before"), [(FLIPPED, True), (FLIPPED, False), (FLIPPED + 1, False), (ENDED, True)]
)
def test_a_release_killed_at_any_of_its_commits_is_whole_or_not_at_all(
    die_at: int, die_before: bool, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    live_and_die(Victim(str(data), "fsync", "release", die_at, die_before), tmp_path / "stderr.txt")
    with fairlead.open(data, durability="os", clock=ManualClock()) as broker:
        broker.run_due()
        generation = broker.consumers.register("etl", "q").generation
        if die_at == FLIPPED and die_before:
            assert broker.consumers.show("etl", "q").open == 1
            assert broker.consumers.release("etl", "q") == LIMIT
        with pytest.raises(ClaimReleased):
            broker.consumers.read("etl", "q", generation, 1)
        assert broker.stats("q").ready == MESSAGES
        assert rest(broker) == [b"%d" % n for n in range(MESSAGES)]
    assert fairlead.verify(data).problems == []


def test_a_reader_killed_again_and_again_comes_to_its_end(tmp_path: Path) -> None:
    """Each life dies one commit further on than it began; what one of them was answered, the next one is too.

    The lives have the system's clock, and a look in between must not set the wall clock back: the next life
    would see years pass.
    """
    data, answers, closed = tmp_path / "data", set[str](), False
    for life in range(12):
        # Its first commit is to register; the others go on with what the one before it left.
        victim = Victim(str(data), "os", "close", 3 if life < 5 else 6 if life < 7 else 3, life % 2 == 1)
        said = live_and_die(victim, tmp_path / f"stderr-{life}.txt")
        answers |= {line for line in said if line.startswith("claimed")}
        with fairlead.open(data, durability="os", clock=ManualClock(SystemClock().now_ms())) as broker:
            closed = broker.consumers.show("etl", "q").last_closed == 1
        if closed:
            break
    assert len(answers) <= 1
    with fairlead.open(data, durability="os", clock=ManualClock(SystemClock().now_ms())) as broker:
        broker.run_due()
        generation = broker.consumers.register("etl", "q").generation
        if not closed:
            claimed = broker.consumers.claim("etl", "q", generation, 1, limit=LIMIT)
            assert claimed.count == LIMIT
            assert not answers or answers == {f"claimed {digest(broker, generation)}"}
            broker.consumers.close("etl", "q", generation, 1)
        assert rest(broker) == [b"%d" % n for n in range(LIMIT, MESSAGES)]


def test_the_windows_are_where_they_are_said_to_be() -> None:
    assert (REGISTERED, SEALED, CHOSEN, FLIPPED, ENDED) == (
        1,
        1 + -(-LIMIT // PIECE),
        SEALED + 3,
        CHOSEN + 1,
        CHOSEN + -(-LIMIT // PIECE),
    )
