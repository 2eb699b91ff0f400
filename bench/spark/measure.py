"""Rows a second through the data source, beside a Python source that does nothing, and beside Parquet for
orientation.

Reading is a stream into a sink that drops everything: each micro-batch claims so many messages, reads them,
and closes the claim before, so a closed claim is in the time of each. The first micro-batches are left out:
they start Python and warm the JVM up. Writing is `df.write` of so many rows from memory, staged and
published. All of them have a kilobyte of payload, half of which does not compress. The server is a process of
its own, on the same cores.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import fairlead
from bench.rates import Spread, per_second, ratio, spread
from fairlead.testing import run_server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming import DataStreamReader, StreamingQuery

QUEUE = "bench"
#: Micro-batches, and writes, that are not counted.
_WARM = 2


class Shape(msgspec.Struct, frozen=True):
    cores: int
    rows: int


class Plan(msgspec.Struct, frozen=True):
    """`batches` of so many rows are counted in each round."""

    rounds: int = 3
    batches: int = 5
    shapes: tuple[Shape, ...] = (Shape(2, 10_000), Shape(2, 50_000), Shape(1, 50_000))


QUICK = Plan(rounds=1, batches=3)


class Measured(msgspec.Struct, frozen=True):
    """`of_bare` is round by round."""

    direction: str
    cores: int
    rows: int
    rate: Spread
    bare: Spread
    parquet: Spread
    of_bare: Spread


def steps(plan: Plan) -> int:
    return len(plan.shapes) * plan.rounds * 6


def measure(plan: Plan, home: Path, tick: Callable[[str], None]) -> list[Measured]:
    measured: list[Measured] = []
    for cores in sorted({shape.cores for shape in plan.shapes}):
        with session_of(cores) as spark:
            for shape in [shape for shape in plan.shapes if shape.cores == cores]:
                measured += _Bench(spark, shape, plan, home / f"{cores}-{shape.rows}").run(tick)
    return sorted(measured, key=lambda one: (one.direction, -one.cores, one.rows))


@contextmanager
def session_of(cores: int) -> Iterator[SparkSession]:
    from pyspark import cloudpickle

    import bench.spark.bare
    import bench.spark.worker
    from fairlead.spark import session

    # The workers need not find this folder.
    cloudpickle.register_pickle_by_value(bench.spark.bare)
    cloudpickle.register_pickle_by_value(bench.spark.worker)
    spark = session("fairlead bench", f"local[{cores}]")
    spark.dataSource.register(bench.spark.bare.BareDataSource)
    try:
        yield spark
    finally:
        spark.stop()


class _Bench:
    def __init__(self, spark: SparkSession, shape: Shape, plan: Plan, home: Path) -> None:
        self._spark = spark
        self._shape = shape
        self._plan = plan
        self._home = home
        home.mkdir(parents=True)

    def run(self, tick: Callable[[str], None]) -> list[Measured]:
        rows, rounds = self._shape.rows, range(self._plan.rounds)
        self._rows = self._make_rows(rows)
        with (
            run_server(self._home / "data", settings={"durability": "os"}) as server,
            fairlead.connect(server.address) as client,
        ):
            self._address = server.address
            runs: dict[str, Callable[[], float]] = {
                "write": lambda: self._write(client),
                "write bare": lambda: self._time_writes(
                    lambda: self._rows.write.format("bare").mode("append").save()
                ),
                "write parquet": lambda: self._time_writes(
                    lambda: self._rows.write.mode("overwrite").parquet(str(self._home / "written"))
                ),
                "read": lambda: self._read(client),
                "read bare": lambda: self._rate_of(self._bare_source()),
                "read parquet": self._read_parquet,
            }
            rates: dict[str, list[float]] = {name: [] for name in runs}
            for turn in rounds:
                for name, run in runs.items() if turn % 2 == 0 else reversed(runs.items()):
                    tick(f"{name}, {rows:,} rows, {self._shape.cores} cores")
                    rates[name].append(run())
        return [
            Measured(
                way,
                self._shape.cores,
                rows,
                spread(rates[way]),
                spread(rates[f"{way} bare"]),
                spread(rates[f"{way} parquet"]),
                ratio(rates[way], rates[f"{way} bare"]),
            )
            for way in ("read", "write")
        ]

    # Writing

    def _make_rows(self, rows: int) -> DataFrame:
        """In memory, so that making them is nobody's time. Digits of digests: half of the bytes do not
        compress, as in text.
        """
        made = self._spark.range(0, rows, 1, self._shape.cores).selectExpr(
            "cast(concat("
            + ", ".join(f"sha2(concat(id, '-{part}'), 512)" for part in range(8))
            + ") as binary) as payload",
            "concat('tenant-', id % 10) as fairness_key",
        )
        made = made.cache()
        assert made.count() == rows
        return made

    def _write(self, client: fairlead.Client) -> float:
        self._new_queue(client)
        sink = self._rows.write.format("fairlead").option("endpoint", self._address).mode("append")
        rate = self._time_writes(lambda: sink.save(QUEUE))
        found, wanted = client.stats(QUEUE).ready, self._shape.rows * (self._plan.batches + _WARM)
        assert found == wanted, f"{found} messages of {wanted}"
        return rate

    def _time_writes(self, write: Callable[[], None]) -> float:
        for _ in range(_WARM):
            write()

        def all_writes() -> None:
            for _ in range(self._plan.batches):
                write()

        return per_second(self._shape.rows * self._plan.batches, all_writes)

    # Reading

    @property
    def _batches(self) -> int:
        return self._plan.batches + _WARM

    def _read(self, client: fairlead.Client) -> float:
        self._new_queue(client)
        for _ in range(self._batches):
            self._rows.write.format("fairlead").option("endpoint", self._address).mode("append").save(QUEUE)
        source = (
            self._spark.readStream.format("fairlead").option("endpoint", self._address).option("queue", QUEUE)
        )
        rate = self._rate_of(
            source.option("consumer", "bench").option("maxMessagesPerTrigger", self._shape.rows)
        )
        stats = client.stats(QUEUE)
        assert stats.ready == 0, f"{stats.ready} messages left"
        client.consumers.drop("bench", QUEUE)
        return rate

    def _bare_source(self) -> DataStreamReader:
        source = self._spark.readStream.format("bare").option("rows", self._shape.rows)
        return source.option("batches", self._batches).option("slices", self._shape.cores)

    def _rate_of(self, source: DataStreamReader) -> float:
        """By Spark's own account of each micro-batch."""
        with tempfile.TemporaryDirectory(dir=self._home) as checkpoint:
            query = source.load().writeStream.format("noop").option("checkpointLocation", checkpoint).start()
            try:
                counted = self._await_batches(query)[_WARM:]
            finally:
                query.stop()
        taken_ms = sum(batch["durationMs"]["triggerExecution"] for batch in counted)
        return 1000 * sum(batch["numInputRows"] for batch in counted) / taken_ms

    def _await_batches(self, query: StreamingQuery) -> list[dict]:  # type: ignore[type-arg]
        while True:
            failed = query.exception()
            if failed is not None:
                raise failed
            seen = {batch["batchId"]: batch for batch in query.recentProgress if batch["numInputRows"]}
            if len(seen) >= self._batches:
                return [seen[number] for number in sorted(seen)]
            time.sleep(0.05)

    def _read_parquet(self) -> float:
        path = str(self._home / "read")
        self._rows.write.mode("overwrite").parquet(path)
        source: DataFrameReader = self._spark.read
        return self._time_writes(lambda: source.parquet(path).write.format("noop").mode("append").save())

    def _new_queue(self, client: fairlead.Client) -> None:
        if any(known.name == QUEUE for known in client.queues(QUEUE)):
            client.delete_queue(QUEUE)
        client.create_queue(QUEUE)
