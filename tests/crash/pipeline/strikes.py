"""SIGKILL at moments drawn by lot: to a driver, to a part of it, or to the broker, while there is work."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .kinds import find, kill_one
from .ledger import count_lines
from .lives import PATIENCE_S, Lives

#: After these a new life must be started. What a JVM leaves behind ends by itself, and the next life does not
#: wait for it.
ENDS_THE_LIFE = ("driver", "jvm")


@dataclass(frozen=True, slots=True)
class Kill:
    """So long after so many more lines in the ledger. `chosen` decides among several of a kind."""

    kind: str
    after_lines: int
    delay_ms: int
    chosen: int


def draw_kills(rng: random.Random, kinds: Iterable[str], *, most_lines: int) -> tuple[Kill, ...]:
    return tuple(
        Kill(kind, rng.randint(1, most_lines), rng.randint(0, 150), rng.getrandbits(8)) for kind in kinds
    )


def kill_again_and_again(
    victim: Lives, kills: Iterable[Kill], killed: Counter[str], *, before: Callable[[], object] = int
) -> None:
    """Starts the first life, and leaves the last one running. `before` is called before each kill is waited
    for.
    """
    victim.start()
    for kill in kills:
        before()
        _wait_for_lines(victim, count_lines(victim.ledger) + kill.after_lines)
        # Not to make time pass: it is part of what is drawn by lot.
        time.sleep(kill.delay_ms / 1000)
        _strike(victim, kill)
        killed[kill.kind] += 1
        if kill.kind in ENDS_THE_LIFE:
            victim.start()


def _wait_for_lines(victim: Lives, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while count_lines(victim.ledger) < count:
        assert victim.driver is not None
        assert victim.driver.poll() is None, (
            f"life {victim.lives} ended with {victim.driver.returncode} before its time:\n{victim.said()}"
        )
        assert time.monotonic() < deadline, f"life {victim.lives} stands still:\n{victim.said()}"
        time.sleep(0.02)


def _strike(victim: Lives, kill: Kill) -> None:
    """A process that comes and goes is waited for."""
    if kill.kind == "driver":
        victim.kill()
        return
    if kill.kind == "broker":
        victim.server.restart(kill=True)
        return
    deadline = time.monotonic() + PATIENCE_S
    while not kill_one(find(victim.home, kill.kind), kill.chosen):
        assert victim.driver is not None
        assert victim.driver.poll() is None, (
            f"life {victim.lives} ended before a {kill.kind} was seen:\n{victim.said()}"
        )
        assert time.monotonic() < deadline, f"no {kill.kind} to kill in life {victim.lives}"
        time.sleep(0.002)
    if kill.kind == "jvm":
        victim.wait()
