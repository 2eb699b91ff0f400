"""The engine in this process: what the doors are measured against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import fairlead
from bench.doors.contender import cycle_for, in_batches, ping, threads_for
from fairlead.engine.broker import Durability

KEYS = 10
QUEUE = "work"
WAIT = "30s"


class Verbs:
    """Works on a `Broker` as on a `Client`, because both have the same verbs."""

    def __init__(self, broker: Any) -> None:
        self._broker = self._consumer = broker
        broker.create_queue(QUEUE, visibility_timeout="10m")

    def prepare(self, bodies: Sequence[bytes], batch: int) -> list[Any]:
        return in_batches(
            [fairlead.NewMessage(body, fairness_key=f"k{n % KEYS}") for n, body in enumerate(bodies)], batch
        )

    def lifecycles(self, batches: list[Any], seconds: float) -> int:
        return cycle_for(batches, seconds, self._one if len(batches[0]) == 1 else self._some)

    def latencies_ms(self, bodies: Sequence[bytes], way: str) -> list[float]:
        def receive() -> Callable[[], object]:
            (delivery,) = self._consumer.claim(QUEUE, wait=WAIT)
            return lambda: self._consumer.settle([fairlead.Complete(delivery)])

        return ping(self._send, receive, bodies)

    def singles(self, bodies: Sequence[bytes], style: str, producers: int, seconds: float) -> int:
        return threads_for([self._send] * producers, bodies, seconds)

    def clear(self) -> None:
        self._broker.purge(QUEUE)

    def close(self) -> None:
        self._broker.close()

    def _send(self, body: bytes) -> object:
        return self._broker.enqueue(QUEUE, body)

    def _one(self, batch: list[fairlead.NewMessage]) -> int:
        self._broker.enqueue(QUEUE, batch[0].payload, fairness_key=batch[0].fairness_key)
        (delivery,) = self._broker.claim(QUEUE)
        self._broker.settle([fairlead.Complete(delivery)])
        return 1

    def _some(self, batch: list[fairlead.NewMessage]) -> int:
        self._broker.enqueue_many(QUEUE, batch)
        left = len(batch)
        while left:
            deliveries = self._broker.claim(QUEUE, limit=left)
            if not deliveries:
                raise AssertionError(f"{left} messages are not there")
            self._broker.settle([fairlead.Complete(delivery) for delivery in deliveries])
            left -= len(deliveries)
        return len(batch)


class InProcess(Verbs):
    name = "in process"
    ways = ("claim",)
    styles = ("threads",)
    settings = f"fairlead {fairlead.__version__}, RocksDB in this process, {KEYS} fairness keys"

    def __init__(self, home: Path, durability: str) -> None:
        if durability not in get_args(Durability):
            raise ValueError(durability)
        super().__init__(fairlead.open(home, durability=durability))

    def server_cpu_s(self) -> float:
        return 0.0
