"""How many messages the next claim of a Spark worker asks for, and how many of one stream.

A job costs some tenths of a second however little it does, so claims are to be large. But what failed is
tried again only when its claim is closed, and a stop waits for the one under way, so they are not to take
long. A few seconds are a fair middle.

A stream goes on only when its message before is settled, one round trip to the broker for each; so a claim is
quick if it has many streams, and short runs of each.
"""

from __future__ import annotations

FIRST = 1_000
FIRST_RUN = 4
#: What a claim is to take.
_GOAL_S = 3.0
_MOST_CHANGE = 4


def next_size(asked: int, done: int, took_s: float, *, least: int, most: int) -> int:
    """From the last claim: what was asked for, what was done of it, and how long its tasks have worked.

    One in which little was done says little about speed, only whether it was too much.
    """
    if 2 * done >= asked or took_s > _GOAL_S:
        fitting = int(done * _GOAL_S / max(took_s, 0.001))
        asked = min(max(fitting, asked // _MOST_CHANGE), asked * _MOST_CHANGE)
    return max(least, min(asked, most))


def next_run(run: int, asked: int, claimed: int, *, most: int) -> int:
    """How many of one stream: as few as fill a claim. One that was not full may have had too few streams."""
    return max(1, run // 2) if claimed >= asked else min(run * _MOST_CHANGE, most)
