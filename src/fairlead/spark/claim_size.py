"""How many messages the next claim of a Spark worker asks for.

A job costs some tenths of a second however little it does, so claims are to be large. But what failed is tried again only when its
claim is closed, and a stop waits for the one under way, so they are not to take long. A few seconds are a fair middle.
"""

from __future__ import annotations

FIRST = 1_000
#: What a claim is to take.
_GOAL_S = 3.0
_MOST_CHANGE = 4


def next_size(asked: int, done: int, took_s: float, *, least: int, most: int) -> int:
    """From the last claim: what was asked for, what was done of it, and how long it took until it was closed.

    One in which little was done says little about speed, only whether it was too much.
    """
    if 2 * done >= asked or took_s > _GOAL_S:
        fitting = int(done * _GOAL_S / max(took_s, 0.001))
        asked = min(max(fitting, asked // _MOST_CHANGE), asked * _MOST_CHANGE)
    return max(least, min(asked, most))
