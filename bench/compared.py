"""One run of `bench.compare`, in a process of its own: `python -P bench/compared.py WAY BATCH MESSAGES`.

The Python of the measured checkout runs this file, so it imports nothing but the public API of fairlead,
which an older checkout has too. Prints a JSON object: CPU microseconds per message of the process that calls
(`client`) and of the server (0 in process), and messages per second (`rate`).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fairlead
from fairlead.testing import run_server

QUEUE = "compared"
KEYS = 10
PAYLOAD_BYTES = 1024
_WARM_SHARE = 5


@contextmanager
def opened(way: str, home: str) -> Iterator[tuple[Any, dict[str, int]]]:
    """A broker or a client, and the ids of the processes that work for it."""
    if way == "in process":
        with fairlead.open(home, durability="os") as broker:
            yield broker, {"client": os.getpid()}
        return
    with (
        run_server(home, settings={"durability": "os"}) as server,
        fairlead.connect(server.address) as client,
    ):
        yield client, {"client": os.getpid(), "server": server.pid}


def run_lifecycles(broker: Any, batch: int, messages: int) -> None:
    """Enqueue a batch, claim it, complete it, and so on. A batch of one takes the verb for one message."""
    noise = os.urandom(PAYLOAD_BYTES + messages)
    for first in range(0, messages, batch):
        drafts = [
            fairlead.NewMessage(noise[n : n + PAYLOAD_BYTES], fairness_key=f"k{n % KEYS}")
            for n in range(first, first + batch)
        ]
        if batch == 1:
            broker.enqueue(QUEUE, drafts[0].payload, fairness_key=drafts[0].fairness_key)
        else:
            broker.enqueue_many(QUEUE, drafts)
        left = batch
        while left:
            deliveries = broker.claim(QUEUE, limit=left)
            broker.settle([fairlead.Complete(delivery) for delivery in deliveries])
            left -= len(deliveries)


def cpu_ns(pid: int) -> int:
    """CPU time of all threads of a process. Linux has such a clock for every process (clock_getcpuclockid)."""
    return time.clock_gettime_ns(~pid << 3 | 2)


def main() -> None:
    way, batch, messages = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with tempfile.TemporaryDirectory(prefix="fairlead-compare-") as home, opened(way, home) as (broker, pids):
        broker.create_queue(QUEUE, visibility_timeout="10m")
        run_lifecycles(broker, batch, max(batch, messages // _WARM_SHARE))
        before = {name: cpu_ns(pid) for name, pid in pids.items()}
        began = time.perf_counter()
        run_lifecycles(broker, batch, messages)
        rate = messages / (time.perf_counter() - began)
        cpu_us = {name: (cpu_ns(pid) - before[name]) / messages / 1000 for name, pid in pids.items()}
    print(json.dumps({"client": 0.0, "server": 0.0, "rate": rate} | cpu_us))


if __name__ == "__main__":
    main()
