"""The load of `workload.py` with many live logs: column families are flushed all the time, beside batches of
megabytes.

A flush starts a new log, and every family that was not flushed keeps the earlier logs alive. So a kill may
fall between the end of one log and the first record of the next, into a record of many blocks, or into the
deletion of logs.
"""

from __future__ import annotations

import random
import time

from fairlead import NewMessage
from fairlead.testing.engine import families_of, start_new_log

from .journal import make_payload
from .workload import Job, Workload

LARGE_BYTES = 100_000
#: Large batches of one life; later ones would only make the drain longer.
LARGE_BATCHES = 20


class ManyLogs(Workload):
    def jobs(self) -> list[Job]:
        return [*super().jobs(), self.start_log, self.produce_large]

    def start_log(self, rng: random.Random, name: str) -> None:
        time.sleep(rng.uniform(0, 0.02))
        broker = self.recorded.broker
        start_new_log(broker, rng.choice(families_of(broker)), wait=rng.random() < 0.5)

    def produce_large(self, rng: random.Random, name: str) -> None:
        number = next(self._numbers[name])
        if number >= LARGE_BATCHES:
            time.sleep(1)
            return
        tags = [f"{self.life}-{name}-{number}-{part}" for part in range(rng.choice((1, 5, 40)))]
        self.recorded.enqueue("main", [(tag, NewMessage(make_payload(tag, LARGE_BYTES))) for tag in tags])
        time.sleep(rng.uniform(0, 0.02))
