"""How many messages are claimed ahead, and when nothing is left to claim."""

from __future__ import annotations

import time

from fairlead.worker.broker_threads import BrokerThreads, ClaimAnswered, ClaimRequest
from fairlead.worker.estimates import SLOW_US, Estimates
from fairlead.worker.in_flight import InFlight
from fairlead.worker.job import Job
from fairlead.worker.outbox import Outbox
from fairlead.worker.pool import SlotPool

#: Expected work that is fetched ahead.
_AHEAD_US = 100_000
_MAX_AHEAD = 2000
#: With batch steps more messages may be fetched ahead, up to this many bytes by the mean size seen so far.
_MAX_AHEAD_BYTES = 64 * 1024 * 1024
_MAX_RUN = 64
_CLAIM_WAIT = "1s"
#: The pause after a claim of a burst that found nothing while work was under way.
_BURST_PAUSE_S = 0.05


class Fetcher:
    """Makes one claim at a time.

    In a burst claims do not wait, and a claim that finds nothing while the worker holds nothing is the last
    one.
    """

    def __init__(
        self, in_flight: InFlight, pool: SlotPool, outbox: Outbox, estimates: Estimates, *, burst: bool
    ) -> None:
        self._in_flight = in_flight
        self._pool = pool
        self._outbox = outbox
        self._estimates = estimates
        self._burst = burst
        #: Whether the worker held nothing when the claim was made.
        self._held_nothing = False
        self._not_before = 0.0
        self._asked = 0
        self._run = 1
        self._mean_bytes = 1024.0
        #: Whether a claim is under way.
        self.is_claiming = False
        #: Whether a burst is over: nothing is ready, and no work under way can make a message ready.
        self.drained = False

    def claimed(self, event: ClaimAnswered) -> None:
        self.is_claiming = False
        if event.deliveries:
            self._in_flight.claim(event.deliveries)
            self._learn(event)
        elif self._burst:
            self.drained = self._held_nothing
            self._not_before = time.monotonic() + _BURST_PAUSE_S

    def fetch(self, job: Job, broker: BrokerThreads) -> None:
        """Claim more if less than half of what should be fetched ahead is left."""
        if self.is_claiming or self.drained:
            return
        in_flight, at_once, ahead = self._in_flight, self._pool.size * job.plan.max_rows, self._wanted(job)
        room = ahead + max(0, at_once - len(in_flight.busy)) - in_flight.ahead
        if room < 1 or in_flight.ahead > ahead // 2:
            return
        self._held_nothing = not in_flight.held and self._outbox.is_empty
        if not self._held_nothing and time.monotonic() < self._not_before:
            return
        run = self._run if job.plan.max_rows > 1 else max(1, min(_MAX_RUN, ahead // at_once))
        self.is_claiming = True
        self._asked = min(room, max(_MAX_AHEAD, job.plan.max_rows))
        broker.claim(ClaimRequest(self._asked, run, None if self._burst else _CLAIM_WAIT))

    def _learn(self, event: ClaimAnswered) -> None:
        """Adjust the length of runs for batch steps, and the mean size.

        Only the first message of a run can be in the next batch, so runs are just long enough to find enough
        messages.
        """
        count = len(event.deliveries)
        if count >= self._asked:
            self._run = max(1, self._run // 2)
        else:
            self._run = min(_MAX_RUN, self._run * 2)
        mean = sum(len(delivery.message.payload) for delivery in event.deliveries) / count
        self._mean_bytes += (mean - self._mean_bytes) / 2

    def _wanted(self, job: Job) -> int:
        """How many messages to have ahead.

        One for each slot; of quick steps as many as keep the slots busy until the next claim is answered; of
        batch steps one more batch for each slot.
        """
        if job.spec.prefetch is not None:
            return job.spec.prefetch
        size = self._pool.size
        if job.plan.max_rows > 1:
            return max(size, min(size * job.plan.max_rows, int(_MAX_AHEAD_BYTES / self._mean_bytes)))
        each_us = sum(self._estimates.of(step.name) for step in job.plan.steps)
        if each_us >= SLOW_US:
            return size
        return max(size, min(_MAX_AHEAD, size * _AHEAD_US // max(1, each_us)))
