"""Durations for metrics. No decision depends on them."""

from __future__ import annotations

from typing import Literal

import msgspec

TimedWork = Literal["commit", "sync", "on_enqueue", "on_failure"]


class Timing(msgspec.Struct, frozen=True, gc=False):
    """`queue_id` and the counts describe one batch of hook calls, including the wait for its turn; otherwise
    they are 0.
    """

    what: TimedWork
    seconds: float
    queue_id: int = 0
    ran: int = 0
    failed: int = 0
    bypassed: int = 0
