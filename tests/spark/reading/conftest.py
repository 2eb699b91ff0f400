"""One server for all tests of reads, a queue and a consumer for each test, and queries with a bounded wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fairlead
from fairlead.testing import ServerProcess, run_server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming import StreamingQuery

#: Long, for loaded machines. A wait that succeeds early takes no longer.
PATIENCE_S = 180

_numbers = count(1)

Each = Callable[["DataFrame", int], None]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with run_server(tmp_path_factory.mktemp("server") / "data", settings={"durability": "os"}) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: ServerProcess) -> Iterator[fairlead.Client]:
    with fairlead.connect(server.address) as connected:
        yield connected


@pytest.fixture
def queue(client: fairlead.Client) -> str:
    name = f"read-{next(_numbers)}"
    client.create_queue(name)
    return name


@pytest.fixture
def query(spark: SparkSession, server: ServerProcess, queue: str, tmp_path: Path) -> Iterator[Query]:
    made = Query(spark, server, queue, tmp_path / "checkpoint")
    yield made
    for running in made.started:
        running.stop()


class Query:
    """A streaming query on the test's queue, with a consumer of the queue's name. A second run continues with
    the checkpoint.
    """

    def __init__(self, spark: SparkSession, server: ServerProcess, queue: str, checkpoint: Path) -> None:
        self.spark, self.server, self.queue, self.checkpoint = spark, server, queue, checkpoint
        self.started: list[StreamingQuery] = []

    def frame(self, **options: object) -> DataFrame:
        given = {"endpoint": self.server.address, "consumer": self.queue, "numPartitions": 2, **options}
        return self.spark.readStream.format("fairlead").options(**given).load(self.queue)

    def start(
        self, each: Each, *, available_now: bool = False, frame: DataFrame | None = None, **options: object
    ) -> StreamingQuery:
        writer = (self.frame(**options) if frame is None else frame).writeStream.foreachBatch(each)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        started = (writer.trigger(availableNow=True) if available_now else writer).start()
        self.started.append(started)
        return started

    def run(self, each: Each | None = None, **options: object) -> list[list[Row]]:
        """Run over the messages that are there now. The query must succeed. Returns the rows of each batch."""
        batches: list[list[Row]] = []

        def collect(frame: DataFrame, batch: int) -> None:
            batches.append(frame.collect())
            if each is not None:
                each(frame, batch)

        ended = self._end(collect, **options)
        assert ended is None, ended
        return batches

    def fail(self, each: Each | None = None, **options: object) -> str:
        """Run a query that must fail, and return its error text."""
        ended = self._end(each or _ignore, **options)
        assert ended is not None, "the query ended well"
        return ended

    def _end(self, each: Each, **options: object) -> str | None:
        """The error of the query. Spark gives a Python process ten seconds to start, which a loaded machine
        may exceed: then the query runs once more.
        """
        from pyspark.errors import StreamingQueryException

        for _ in range(3):
            running = self.start(each, available_now=True, **options)
            try:
                assert running.awaitTermination(PATIENCE_S), "the query did not end"
                return None
            except StreamingQueryException as ended:
                said = str(ended)
            if "Python worker failed to connect back" not in said:
                break
        return said


def _ignore(frame: DataFrame, batch: int) -> None:
    frame.count()


def failure_of(query: StreamingQuery) -> str:
    from pyspark.errors import StreamingQueryException

    with pytest.raises(StreamingQueryException) as ended:
        assert query.awaitTermination(PATIENCE_S), "the query goes on"
    return str(ended.value)


def wait_until(what: str, condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"still not so: {what}"
        time.sleep(0.05)
