"""How many messages the next claim of a Spark worker asks for, and how many of one stream.

A Spark job takes some tenths of a second however little it does, so claims should be large. But failed
messages are retried only when their claim is closed, and a stop waits for the claim in hand, so a claim
should take a few seconds at most.

The next message of a stream waits until the one before is settled, one round trip to the broker each. So a
claim is quick if it has many streams, and a short run of each.
"""

from __future__ import annotations

FIRST_SIZE = 1_000
FIRST_RUN = 4
#: How long the work on a claim should take.
_GOAL_S = 3.0
_MAX_CHANGE = 4


def next_size(asked: int, done: int, took_s: float, *, at_least: int, at_most: int) -> int:
    """Choose from the last claim: the messages it asked for, those it settled, and the time its tasks worked.

    A claim that settled little of what it asked for says nothing about speed, only whether it took too long.
    """
    if 2 * done >= asked or took_s > _GOAL_S:
        fitting = int(done * _GOAL_S / max(took_s, 0.001))
        asked = min(max(fitting, asked // _MAX_CHANGE), asked * _MAX_CHANGE)
    return max(at_least, min(asked, at_most))


def next_run(run: int, asked: int, claimed: int, *, at_most: int) -> int:
    """Choose how many messages of one stream a claim takes: as few as fill the claim. A claim that was not
    full may have had too few streams.
    """
    return max(1, run // 2) if claimed >= asked else min(run * _MAX_CHANGE, at_most)
