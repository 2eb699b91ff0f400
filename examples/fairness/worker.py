"""What a consumer looks like: claim a few, work on each, settle them together. The payments it handles go
wrong in five ways.
"""

from __future__ import annotations

import json
import threading
import time

import fairlead
from examples.fairness.ledger import Ledger
from fairlead import Complete, Delivery, Fail

QUEUE = "payments"
BATCH = 5


class Vanished(Exception):
    """Stands for a worker that dies in the middle: nothing is settled, the lease just runs out."""


class Handler:
    def __init__(self) -> None:
        self.reads_commas = False
        self.default_currency = ""

    def deploy_the_fix(self) -> None:
        self.reads_commas = True
        self.default_currency = "EUR"

    def handle(self, delivery: Delivery) -> Complete | Fail:
        payment = json.loads(delivery.payload)
        trouble = payment["trouble"]
        if trouble == "crash" and delivery.attempts == 0:
            raise Vanished
        if trouble == "connection" and delivery.attempts == 0:
            return Fail(delivery, error="connection reset by peer", reason="transport_unavailable")
        if trouble == "busy bank" and delivery.attempts < 2:
            return Fail(
                delivery,
                error="503 from the bank, come back later",
                reason="dependency_failure",
                retry_in="1s",
            )
        if not (payment["currency"] or self.default_currency):
            return Fail(delivery, error="currency is missing", reason="validation_failure", dead=True)
        amount = payment["amount"].replace(",", ".") if self.reads_commas else payment["amount"]
        try:
            float(amount)
        except ValueError as error:
            return Fail(delivery, error=str(error), reason="serialization_error")
        return Complete(delivery)


class Worker(threading.Thread):
    def __init__(
        self, name: str, broker: fairlead.Broker, handler: Handler, ledger: Ledger, seconds_per_batch: float
    ) -> None:
        super().__init__(name=name)
        self._broker = broker
        self._handler = handler
        self._ledger = ledger
        self._seconds_per_batch = seconds_per_batch
        self._leave = threading.Event()

    def leave(self) -> None:
        self._leave.set()

    def run(self) -> None:
        while not self._leave.is_set():
            deliveries = self._broker.claim(QUEUE, limit=BATCH, wait="200ms", consumer=self.name)
            if deliveries:
                self._ledger.claimed(deliveries, now_ms=time.time_ns() // 1_000_000)
                self._work(deliveries)
        self._broker.goodbye(self.name)

    def _work(self, deliveries: list[Delivery]) -> None:
        time.sleep(self._seconds_per_batch)  # the bank takes its time
        worked = []
        for delivery in deliveries:
            try:
                worked.append((delivery, self._handler.handle(delivery)))
            except Vanished:
                self._ledger.vanished(delivery)
        self._ledger.settled(worked, self._broker.settle([outcome for _, outcome in worked]))
