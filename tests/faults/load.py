"""The crash tests' workload through clients: threads that share one, so that calls are gathered, in several
processes.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import fairlead
from fairlead import Client, Complete
from fairlead.client.consume import Consumption
from fairlead.errors import AnswerLost, InvalidRequest, Rejected, ServerUnreachable, Unavailable
from tests.crash import workload
from tests.crash.journal import Journal, Line, RecordedBroker, tell_delivery

#: Its leases outlast every outage: what is held through one is still held, and is completed under the same
#: lease.
PATIENT = "patient"
QUEUES = workload.QUEUES | {PATIENT: {"visibility_timeout": "600s"}}
#: Producers rest while so many are ready in a queue, so that draining a round stays short.
BACKLOG_LIMIT = 500

#: What the threads of each process do. Their heartbeats differ: none, until 400 ms after a claim, all the
#: time.
PARTS: tuple[tuple[str | None, tuple[str, ...]], ...] = (
    (None, ("produce", "operate", "consume", "consume", "work_patiently")),
    ("400ms", ("produce", "produce", "consume", "loop")),
    ("10m", ("consume", "work_patiently", "loop", "loop")),
)


class RecordedClient(RecordedBroker):
    """What a client may do about trouble, it has done: what it still raises is a refusal, or a fate that
    nobody knows.
    """

    def begin_take(self, **told: Any) -> int:
        return self.journal.begin("claim", started=True, **told)

    def take(self, number: int, deliveries: Consumption) -> fairlead.Delivery:
        """The next of a loop, told as a claim of one. Raises StopIteration when the loop was closed."""
        try:
            delivery = next(deliveries)
        except StopIteration as closed:
            self.journal.refused(number, closed)
            raise
        self.journal.done(number, deliveries=[tell_delivery(delivery)])
        return delivery

    def leave(self, number: int) -> None:
        """Nothing is taken after all."""
        self.journal.done(number, deliveries=[])

    def _run(self, do: str, call: Callable[[], Any], answer: Callable[[Any], Line], **told: Any) -> Any:
        number = self.journal.begin(do, **told)
        try:
            result = call()
        except AnswerLost:
            self.journal.unknown(number)
            return None
        except (InvalidRequest, ServerUnreachable):
            raise  # Neither has a place here: requests are right, and the server always comes back.
        except (Rejected, Unavailable) as error:
            self.journal.refused(number, error)
            return None
        self.journal.done(number, **answer(result))
        return result


class ClientLoad(workload.Workload):
    recorded: RecordedClient

    def __init__(self, client: Client, journal: Journal, *, seed: int, life: int) -> None:
        super().__init__(RecordedClient(client, journal), seed=seed, life=life)  # type: ignore[arg-type]  # it has the same verbs
        self._client = client
        self._over = threading.Event()
        self._loops: dict[str, Consumption] = {}

    def run_until(self, told: Callable[[], None], jobs: tuple[str, ...]) -> None:
        """Comes to an end when `told` returns. Raises what a thread met that nobody expects."""
        threads = [
            threading.Thread(target=self._forever, args=(getattr(self, job), n)) for n, job in enumerate(jobs)
        ]
        for thread in threads:
            thread.start()
        told()
        self._over.set()
        for loop in list(self._loops.values()):
            loop.close()
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure

    def produce(self, rng: random.Random, name: str) -> None:
        if rng.random() < 0.1:
            while not self._over.is_set() and any(
                self._client.stats(queue).ready > BACKLOG_LIMIT for queue in workload.MAIN
            ):
                time.sleep(0.05)
        self.backlog = 0
        super().produce(rng, name)

    def loop(self, rng: random.Random, name: str) -> None:
        """Takes a few and leaves, now and then: what it had fetched ahead goes back."""
        queue = rng.choice((*workload.MAIN, [*workload.MAIN]))
        with self._client.consume(queue, prefetch=rng.choice((1, 10, 50)), consumer=name) as deliveries:
            self._loops[name] = deliveries
            first = number = self.recorded.begin_take(queue=queue, consumer=name)
            try:
                for _ in range(rng.choice((1, 20, 200))):
                    delivery = self.recorded.take(number, deliveries)
                    # The start of the next may travel with the settle of this one.
                    number = self.recorded.begin_take(queue=queue, consumer=name, since=first)
                    self._settle(rng, name, [delivery])
            except StopIteration:
                return
            self.recorded.leave(number)

    def work_patiently(self, rng: random.Random, name: str) -> None:
        self.recorded.enqueue(PATIENT, [self._draft(rng, "", name) for _ in range(rng.choice((1, 10)))])
        deliveries = self.recorded.claim(PATIENT, limit=20, consumer=name)
        time.sleep(rng.choice((0, 0.01, 0.05)))
        self.recorded.settle([Complete(delivery) for delivery in deliveries])

    def _forever(self, job: Callable[[random.Random, str], None], number: int) -> None:
        name = f"t{number}"
        rng = random.Random(f"{self.seed}-{self.life}-{number}")
        try:
            while not self._over.is_set():
                job(rng, name)
        except BaseException as error:
            self.failure = error
            raise
