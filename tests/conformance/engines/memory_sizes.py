"""How much the engine holds in memory, by seed: everything, a few messages, or nothing that it need not hold.

With large windows a defect of reading on stays invisible, so they have a few messages too.
"""

from __future__ import annotations

from contextlib import nullcontext
from random import Random
from typing import Any
from unittest.mock import patch

from fairlead.engine import cold


def memory_sizes(seed: int) -> Any:
    """A context in which every third run has the default sizes."""
    return nullcontext() if seed % 3 == 0 else small_sizes(seed)


def small_sizes(seed: int) -> Any:
    random = Random(f"sizes of {seed}")
    hot = 0 if seed % 3 == 1 else random.choice((1, 7, 20))
    return patch.multiple(
        cold,
        HOT_MESSAGES=hot,
        CACHED_MESSAGES=random.choice((0, 5)),
        WINDOW_MESSAGES=random.randint(3, 7),
        STREAM_MESSAGES=random.choice((1, 3, 16)),
        MOST_READY_TIMES_LANES=random.choice((0, 20, cold.MOST_READY_TIMES_LANES)),
    )
