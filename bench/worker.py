"""A pipeline that does nothing beside a bare client that claims and completes: what does running steps cost?

One server process, one client process. The same messages are enqueued while the queue is paused; then the
time is taken from its resumption until all are completed. The worker is running and has worked before, as a
worker has. The bare client claims 500 at a time and completes them, in one thread. Batch steps take 1,000 at
a time.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow

import fairlead
from bench.lifecycle import PAYLOAD_BYTES
from bench.rates import Spread, per_second, ratio, spread
from fairlead import Complete, NewMessage
from fairlead.runbook.model import PipelineSpec, QueueSpec, Runbook, StepSpec, WorkerSpec
from fairlead.testing import run_server
from fairlead.worker.workers import Workers

_BATCH = 500
_BARE = "bare client"
_FUNCTIONS = {"": "noop", "list": "noop_list", "Arrow": "noop_arrow"}


class Shape(msgspec.Struct, frozen=True):
    """`batch` names what a step for many takes: a list, or Arrow."""

    isolate: str
    concurrency: int
    steps: int = 1
    batch: str = ""

    @property
    def label(self) -> str:
        slots = f"{self.concurrency} {self.isolate}" + ("es" if self.isolate == "process" else "s") * (
            self.concurrency > 1
        )
        return (
            f"{self.steps} {self.batch}{' batch ' * bool(self.batch)}step{'s' * (self.steps > 1)} in {slots}"
        )


class Plan(msgspec.Struct, frozen=True):
    rounds: int = 7
    messages: int = 30_000
    shapes: tuple[Shape, ...] = tuple(
        Shape(isolate, concurrency, steps, batch)
        for steps, concurrency, batch in ((1, 1, ""), (1, 2, ""), (2, 2, ""), (1, 1, "list"), (1, 1, "Arrow"))
        for isolate in ("process", "thread")
    )


QUICK = Plan(rounds=3, messages=10_000)


class Measured(msgspec.Struct, frozen=True):
    """Messages a second from claimed to completed; `of_bare` is round by round."""

    shape: str
    messages: int
    rate: Spread
    bare: Spread
    of_bare: Spread


def steps(plan: Plan) -> int:
    return plan.rounds * (len(plan.shapes) + 1)


def measure(plan: Plan, home: Path, tick: Callable[[str], None]) -> list[Measured]:
    rates: dict[str, list[float]] = {}
    with (
        run_server(home / "worker", settings={"durability": "os"}) as server,
        fairlead.connect(server.address) as client,
    ):
        for turn in range(plan.rounds):
            runs: list[tuple[str, Callable[[], float]]] = [(_BARE, lambda: _bare(client, plan.messages))]
            runs += [
                (shape.label, lambda shape=shape: _worker(client, shape, plan.messages))
                for shape in plan.shapes
            ]  # type: ignore[misc]
            for label, run in runs if turn % 2 else reversed(runs):
                rates.setdefault(label, []).append(run())
                tick(label)
    bare = rates.pop(_BARE)
    return [
        Measured(
            shape.label,
            plan.messages,
            spread(rates[shape.label]),
            spread(bare),
            ratio(rates[shape.label], bare),
        )
        for shape in plan.shapes
    ]


def _bare(client: fairlead.Client, messages: int) -> float:
    _fill(client, "bare", messages)

    def drain() -> None:
        left = messages
        while left:
            deliveries = client.claim("bare", limit=_BATCH, wait="1s", started=False)
            client.settle([Complete(delivery) for delivery in deliveries])
            left -= len(deliveries)

    return per_second(messages, drain)


def _worker(client: fairlead.Client, shape: Shape, messages: int) -> float:
    queue = f"worker-{os.getpid()}"
    run = f"bench.worker:{_FUNCTIONS[shape.batch]}"
    pipeline = PipelineSpec(
        "noop", tuple(StepSpec(f"step {n}", run=run, batch=bool(shape.batch)) for n in range(shape.steps))
    )
    spec = WorkerSpec("worker", queue, "noop", concurrency=shape.concurrency, isolate=shape.isolate)  # type: ignore[arg-type]
    workers = Workers(
        client,
        Runbook(None, {queue: QueueSpec(queue)}, {"noop": pipeline}, {"worker": spec}),
        base=Path(__file__).parents[1],
    )
    _fill(client, queue, messages // 4)
    workers.start()
    try:
        await_completed(workers, messages // 4)
        _fill(client, queue, messages)
        return per_second(messages, lambda: await_completed(workers, messages // 4 + messages))
    finally:
        workers.stop()
        workers.wait(60)
        workers.check()


def await_completed(workers: Workers, completed: int) -> None:
    while workers.counts.completed < completed:
        time.sleep(0.002)
        workers.check()


def _fill(client: fairlead.Client, queue: str, messages: int) -> None:
    """Returns at the moment the messages may be claimed."""
    if queue not in [known.name for known in client.queues(queue)]:
        client.create_queue(queue, visibility_timeout="10m")
    client.pause(queue)
    for at in range(0, messages, _BATCH):
        # Random hexadecimal digits: half of the bytes do not compress, as in text.
        drafts = [
            json.dumps({"n": n, "text": os.urandom(PAYLOAD_BYTES // 2 - 20).hex()}).encode()
            for n in range(at, min(at + _BATCH, messages))
        ]
        client.enqueue_many(queue, [NewMessage(draft) for draft in drafts])
    client.resume(queue)


def noop(item: object) -> None: ...


def noop_list(items: list[object]) -> None: ...


def noop_arrow(batch: pyarrow.RecordBatch) -> None: ...
