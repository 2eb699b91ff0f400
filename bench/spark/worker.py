"""A pipeline that does nothing on Spark, message by message and in batches, beside the local worker and a
bare `mapInArrow`.

All take the same messages, JSON with a kilobyte of payload, half of which does not compress. The Spark
worker's claims have all the same size here; its time is from one closed claim to the next, and the first
claims, in which Python and step processes start, are left out. The local worker has as many step processes as
Spark has cores. `mapInArrow` loops over the same rows, cached in the JVM, and gives an outcome for each: no
queue, no process of its own for steps, nothing confirmed. The server is a process of its own, on the same
cores.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

import fairlead
from bench.lifecycle import PAYLOAD_BYTES
from bench.rates import Spread, per_second, ratio, spread
from bench.spark.measure import Shape, session_of
from bench.worker import await_completed
from fairlead import NewMessage
from fairlead.runbook.model import PipelineSpec, QueueSpec, Runbook, StepSpec, WorkerSpec
from fairlead.testing import run_server
from fairlead.worker.workers import Workers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fairlead.spark.worker.loop import SparkWorkerProgress

_BASE = Path(__file__).parents[2]
_WARM = 2
_AT_ONCE = 1_000


class Plan(msgspec.Struct, frozen=True):
    """`claims` of so many messages are counted in each round."""

    rounds: int = 2
    claims: int = 2
    shapes: tuple[Shape, ...] = (Shape(2, 10_000), Shape(2, 50_000), Shape(1, 10_000), Shape(1, 50_000))


QUICK = Plan(rounds=1, claims=2, shapes=(Shape(2, 10_000),))

_STEPS = {
    "message": StepSpec("noop", run="bench.spark.worker:noop"),
    "batch": StepSpec("noop", run="bench.spark.worker:noop_batch", batch=True),
}


class Measured(msgspec.Struct, frozen=True):
    """Messages a second; ratios are round by round. `step` is "message" or "batch"."""

    step: str
    cores: int
    claim: int
    rate: Spread
    local: Spread
    bare: Spread
    of_local: Spread
    of_bare: Spread


def steps(plan: Plan) -> int:
    return len(plan.shapes) * plan.rounds * (2 * len(_STEPS) + 1)


def measure(plan: Plan, home: Path, tick: Callable[[str], None]) -> list[Measured]:
    measured: list[Measured] = []
    for cores in sorted({shape.cores for shape in plan.shapes}):
        with session_of(cores) as spark:
            for shape in [shape for shape in plan.shapes if shape.cores == cores]:
                measured += _Bench(spark, shape, plan, home / f"worker-{cores}-{shape.rows}").run(tick)
    return sorted(measured, key=lambda one: (one.step == "batch", -one.cores, one.claim))


class _Bench:
    def __init__(self, spark: SparkSession, shape: Shape, plan: Plan, home: Path) -> None:
        self._spark = spark
        self._shape = shape
        self._plan = plan
        self._home = home

    def run(self, tick: Callable[[str], None]) -> list[Measured]:
        rates: dict[str, list[float]] = {}
        with (
            run_server(self._home, settings={"durability": "os"}) as server,
            fairlead.connect(server.address) as client,
        ):
            self._client, self._address = client, server.address
            rows = self._rows()
            runs: dict[str, Callable[[], float]] = {"bare": lambda: self._bare(rows)}
            for name in _STEPS:
                runs[f"spark {name}"] = lambda name=name: self._on_spark(name)  # type: ignore[misc]
                runs[f"local {name}"] = lambda name=name: self._local(name)  # type: ignore[misc]
            for turn in range(self._plan.rounds):
                for name, run in runs.items() if turn % 2 == 0 else reversed(runs.items()):
                    tick(f"{name}, claims of {self._shape.rows:,}, {self._shape.cores} cores")
                    rates.setdefault(name, []).append(run())
            rows.unpersist()
        bare = rates["bare"]
        return [
            Measured(
                name,
                self._shape.cores,
                self._shape.rows,
                spread(rates[f"spark {name}"]),
                spread(rates[f"local {name}"]),
                spread(bare),
                ratio(rates[f"spark {name}"], rates[f"local {name}"]),
                ratio(rates[f"spark {name}"], bare),
            )
            for name in _STEPS
        ]

    # The three

    def _on_spark(self, step: str) -> float:
        from fairlead.spark.options import read_options
        from fairlead.spark.worker.loop import RunSettings, SparkWorker
        from fairlead.worker.job import Job

        class Unlearning(SparkWorker):
            """Its claims stay as large as it is told, however long they take."""

            def _adjust_size(self, *seen: object) -> None:
                self._size = self._settings.max_messages

        closed: list[tuple[int, float]] = []

        def note(progress: SparkWorkerProgress) -> None:
            if progress.summary.claims > len(closed):
                closed.append((progress.summary.completed, progress.summary.elapsed_s))

        runbook = self._runbook(step)
        self._fill("spark", self._plan.claims + _WARM)
        worker = Unlearning(
            self._spark,
            Job.of(runbook, "noop", str(_BASE)),
            read_options({"endpoint": self._address}),
            RunSettings(
                consumer="bench",
                ttl="10m",
                slices=lambda: self._shape.cores,
                max_messages=self._shape.rows,
                burst=True,
                on_progress=note,
            ),
        )
        worker._adjust_size()
        worker.run()
        self._drop("spark")
        assert closed[-1][0] == (self._plan.claims + _WARM) * self._shape.rows, (
            f"{closed[-1][0]} messages completed"
        )
        (done_before, time_before), (done, time) = closed[_WARM - 1], closed[-1]
        return (done - done_before) / (time - time_before)

    def _local(self, step: str) -> float:
        runbook = self._runbook(step)
        workers = Workers(self._client, runbook, base=_BASE, concurrency=self._shape.cores)
        self._fill("spark", 1)
        workers.start()
        try:
            await_completed(workers, self._shape.rows)
            self._fill("spark", self._plan.claims)
            return per_second(
                self._plan.claims * self._shape.rows,
                lambda: await_completed(workers, (self._plan.claims + 1) * self._shape.rows),
            )
        finally:
            workers.stop()
            workers.wait(60)
            workers.check()
            self._drop("spark")

    def _bare(self, rows: DataFrame) -> float:
        def once() -> None:
            rows.mapInArrow(say_done, "id long, outcome string").write.format("noop").mode("append").save()

        for _ in range(_WARM):
            once()
        return per_second(
            self._plan.claims * self._shape.rows, lambda: [once() for _ in range(self._plan.claims)]
        )

    # What they work on

    def _rows(self) -> DataFrame:
        numbers = range(self._shape.rows)
        path = str(self._home.with_suffix(".parquet"))
        pq.write_table(
            pa.table(
                {
                    "id": pa.array(numbers, pa.int64()),
                    "payload": pa.array(map(_payload, numbers), pa.binary()),
                }
            ),
            path,
        )
        rows = self._spark.read.parquet(path).repartition(self._shape.cores).cache()
        assert rows.count() == self._shape.rows
        return rows

    def _runbook(self, step: str) -> Runbook:
        pipeline = PipelineSpec("noop", (_STEPS[step],))
        worker = WorkerSpec("noop", "spark", "noop", concurrency=1)
        return Runbook(None, {"spark": QueueSpec("spark")}, {"noop": pipeline}, {"noop": worker})

    def _fill(self, queue: str, claims: int) -> None:
        """Returns at the moment the messages may be claimed."""
        client = self._client
        if not any(known.name == queue for known in client.queues(queue)):
            client.create_queue(queue, visibility_timeout="10m")
        client.pause(queue)
        for at in range(0, claims * self._shape.rows, _AT_ONCE):
            client.enqueue_many(queue, [NewMessage(_payload(n)) for n in range(at, at + _AT_ONCE)])
        client.resume(queue)

    def _drop(self, queue: str) -> None:
        for consumer in self._client.consumers.list():
            self._client.consumers.drop(consumer.name, consumer.queue)
        self._client.delete_queue(queue)


def _payload(n: int) -> bytes:
    return json.dumps({"n": n, "text": os.urandom(PAYLOAD_BYTES // 2 - 20).hex()}).encode()


def noop(item: object) -> None: ...


def noop_batch(batch: pa.RecordBatch) -> None: ...


def say_done(batches: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        outcomes = ["done" if payload else "failed" for payload in batch.column("payload").to_pylist()]
        yield pa.RecordBatch.from_arrays(
            [batch.column("id"), pa.array(outcomes, pa.utf8())], ["id", "outcome"]
        )
