"""How much the engine holds in memory, by seed: everything, a few messages, or nothing that it need not hold; and
evacuation of every chunk that has lost a byte.

With large windows a defect of reading on stays invisible, so they have a few messages too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from random import Random
from typing import Any
from unittest.mock import patch

from fairlead.engine import cold, demotion, evacuation, thinning
from fairlead.engine.demotion import may_be_demoted
from fairlead.engine.engine import Engine
from fairlead.records.facts import ChunkDemoted


def memory_sizes(seed: int) -> Any:
    """A context in which every third run has the default sizes."""
    return nullcontext() if seed % 3 == 0 else small_sizes(seed)


def make_some_cold(engine: Engine, random: Random) -> int:
    """Make hot chunks cold that may be, whether or not there is room. Returns how many."""
    made = 0
    with engine.transaction() as tx:
        hot = [chunk for chunk in tx.memory.chunks.values() if not chunk.is_cold]
        for chunk in sorted(hot, key=lambda chunk: -chunk.first):
            if random.random() < 0.5 and may_be_demoted(tx.memory, chunk):
                tx.add(ChunkDemoted(chunk))
                made += 1
    return made


@contextmanager
def small_sizes(seed: int) -> Iterator[None]:
    random = Random(f"sizes of {seed}")
    hot = 0 if seed % 3 == 1 else random.choice((1, 7, 20, 100))
    in_memory = patch.multiple(
        cold,
        HOT_MESSAGES=hot,
        CACHED_MESSAGES=random.choice((0, 5)),
        WINDOW_MESSAGES=random.randint(3, 7),
        STREAM_MESSAGES=random.choice((1, 3, 16)),
        MAX_READY_TIMES_LANES=random.choice((0, 20, cold.MAX_READY_TIMES_LANES)),
    )
    search = patch.multiple(
        demotion,
        IDLE_MS=random.choice((100, 1000)),
        STEP_COST=random.choice((100, 8000)),
        LONG_PAUSE_MS=0,
        MAX_BEHIND=random.choice((0, 3, 1000)),
    )
    with in_memory, search:
        yield


@contextmanager
def eager_evacuation() -> Iterator[None]:
    """Inside, `evacuate` finds every chunk that has lost a byte."""
    with (
        patch.multiple(thinning, MIN_DEAD_BYTES=1, MIN_RATIO=1),
        patch.multiple(evacuation, LOOK_MS=0, SCAN_MS=0),
    ):
        yield


def evacuate(engine: Engine) -> None:
    """Write anew every chunk that is worth it, as the timer would do in time. Called where looks follow each other at
    once.
    """
    while engine.evacuation.next_ms() is not None:
        engine.evacuation.run_step()
