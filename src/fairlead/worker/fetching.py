"""How much is claimed ahead, and when there is nothing more to claim."""

from __future__ import annotations

import time

from fairlead.worker.broker_threads import BrokerThreads, ClaimAnswered, ClaimRequest
from fairlead.worker.estimates import SLOW_US, Estimates
from fairlead.worker.in_flight import InFlight
from fairlead.worker.job import Job
from fairlead.worker.outbox import Outbox
from fairlead.worker.pool import SlotPool

#: Expected work fetched ahead.
_AHEAD_US = 100_000
_MAX_AHEAD = 2000
#: With batches more than that may be in hand, but not more bytes than these, by the size of those that were
#: seen.
_MAX_AHEAD_BYTES = 64 * 1024 * 1024
_MAX_RUN = 64
_POLL = "1s"
#: In a burst, after a claim that found nothing while something was still under way.
_BURST_PAUSE_S = 0.05


class Fetcher:
    """One claim at a time. In a burst claims do not wait, and one that finds nothing when nothing is in hand
    is the last.
    """

    def __init__(
        self, in_flight: InFlight, pool: SlotPool, outbox: Outbox, estimates: Estimates, *, burst: bool
    ) -> None:
        self._in_flight = in_flight
        self._pool = pool
        self._outbox = outbox
        self._estimates = estimates
        self._burst = burst
        self._clean = False
        self._not_before = 0.0
        self._asked = 0
        self._run = 1
        self._mean_bytes = 1024.0
        self.asking = False
        #: Nothing is ready, and nothing that we do will make it so.
        self.drained = False

    def claimed(self, event: ClaimAnswered) -> None:
        self.asking = False
        if event.deliveries:
            self._in_flight.claim(event.deliveries)
            self._learn(event)
        elif self._burst:
            self.drained = self._clean
            self._not_before = time.monotonic() + _BURST_PAUSE_S

    def fetch(self, job: Job, broker: BrokerThreads) -> None:
        if self.asking or self.drained:
            return
        in_flight, at_once, ahead = self._in_flight, self._pool.size * job.plan.max_rows, self._wanted(job)
        room = ahead + max(0, at_once - len(in_flight.busy)) - in_flight.ahead
        if room < 1 or in_flight.ahead > ahead // 2:
            return
        self._clean = not in_flight.held and self._outbox.is_empty
        if not self._clean and time.monotonic() < self._not_before:
            return
        self.asking = True
        run = self._run if job.plan.max_rows > 1 else max(1, min(_MAX_RUN, ahead // at_once))
        self._asked = min(room, max(_MAX_AHEAD, job.plan.max_rows))
        broker.claim(ClaimRequest(self._asked, run, None if self._burst else _POLL))

    def _learn(self, event: ClaimAnswered) -> None:
        """For batches, of which only the first of a run can be in the next: runs only as long as it takes to
        find enough.
        """
        count = len(event.deliveries)
        self._run = max(1, self._run // 2) if count >= self._asked else min(_MAX_RUN, self._run * 2)
        self._mean_bytes += (
            sum(len(delivery.message.payload) for delivery in event.deliveries) / count - self._mean_bytes
        ) / 2

    def _wanted(self, job: Job) -> int:
        """One for each slot, and of quick work as much as keeps them busy until the next claim is answered.
        Of batches one more for each.
        """
        if job.spec.prefetch is not None:
            return job.spec.prefetch
        if job.plan.max_rows > 1:
            return max(
                self._pool.size,
                min(self._pool.size * job.plan.max_rows, int(_MAX_AHEAD_BYTES / self._mean_bytes)),
            )
        each_us = sum(self._estimates.of(step.name) for step in job.plan.steps)
        size = self._pool.size
        return size if each_us >= SLOW_US else max(size, min(_MAX_AHEAD, size * _AHEAD_US // max(1, each_us)))
