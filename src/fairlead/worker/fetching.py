"""How much is claimed ahead, and when there is nothing more to claim."""

from __future__ import annotations

import time

from fairlead.worker.estimates import SLOW_US, Estimates
from fairlead.worker.hands import Hands
from fairlead.worker.job import Job
from fairlead.worker.outbox import Outbox
from fairlead.worker.pool import Pool
from fairlead.worker.voice import Ask, Claimed, Voice

#: Expected work fetched ahead.
_AHEAD_US = 100_000
_MOST_AHEAD = 2000
_LONGEST_RUN = 64
_POLL = "1s"
#: In a burst, after a claim that found nothing while something was still under way.
_BURST_PAUSE_S = 0.05


class Fetcher:
    """One claim at a time. In a burst claims do not wait, and one that finds nothing when nothing is in hand is the last."""

    def __init__(self, hands: Hands, pool: Pool, outbox: Outbox, estimates: Estimates, *, burst: bool) -> None:
        self._hands = hands
        self._pool = pool
        self._outbox = outbox
        self._estimates = estimates
        self._burst = burst
        self._clean = False
        self._not_before = 0.0
        self.asking = False
        #: Nothing is ready, and nothing that we do will make it so.
        self.drained = False

    def claimed(self, event: Claimed) -> None:
        self.asking = False
        if event.deliveries:
            self._hands.claim(event.deliveries)
        elif self._burst:
            self.drained = self._clean
            self._not_before = time.monotonic() + _BURST_PAUSE_S

    def fetch(self, job: Job, voice: Voice) -> None:
        if self.asking or self.drained:
            return
        hands, size, ahead = self._hands, self._pool.size, self._wanted(job)
        room = ahead + max(0, size - len(hands.busy)) - hands.ahead
        if room < 1 or hands.ahead > ahead // 2:
            return
        self._clean = not hands.held and self._outbox.is_empty
        if not self._clean and time.monotonic() < self._not_before:
            return
        self.asking = True
        voice.ask(Ask(min(room, _MOST_AHEAD), max(1, min(_LONGEST_RUN, ahead // size)), None if self._burst else _POLL))

    def _wanted(self, job: Job) -> int:
        """One for each slot, and of quick work as much as keeps them busy until the next claim is answered."""
        if job.spec.prefetch is not None:
            return job.spec.prefetch
        each_us = sum(self._estimates.of(step.name) for step in job.plan.steps)
        size = self._pool.size
        return size if each_us >= SLOW_US else max(size, min(_MOST_AHEAD, size * _AHEAD_US // max(1, each_us)))
