"""A server, a client and a new queue for tests that write and settle, and streams that run until the queue is
empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fairlead
from fairlead.testing import ServerProcess, run_server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

PATIENCE_S = 240


class Scene:
    def __init__(self, server: ServerProcess, client: fairlead.Client) -> None:
        self.server = server
        self.client = client
        self._numbers = count(1)

    def new_queue(self, **settings: Any) -> str:
        name = f"orders-{next(self._numbers)}"
        self.client.create_queue(name, **settings)
        return name

    def options(self, queue: str, **more: object) -> dict[str, str]:
        return {
            "endpoint": self.server.address,
            "queue": queue,
            **{name: str(value) for name, value in more.items()},
        }

    def payloads(self, queue: str) -> list[bytes]:
        """The payloads in the order of delivery. The messages stay leased."""
        return [
            delivery.payload for delivery in self.client.claim(queue, limit=100_000, max_per_stream=100_000)
        ]

    def staged(self) -> list[Any]:
        return [write for write in self.client.staging.list() if not write.published]

    def reads(self, spark: SparkSession, queue: str, consumer: str, **more: object) -> DataFrame:
        return (
            spark.readStream.format("fairlead")
            .options(**self.options(queue, consumer=consumer, **more))
            .load()
        )


@contextmanager
def set_up(folder: Path) -> Iterator[Scene]:
    with (
        run_server(folder / "data", settings={"durability": "os"}) as server,
        fairlead.connect(server.address) as client,
    ):
        yield Scene(server, client)


def run(
    writer: DataStreamWriter, checkpoint: Path, sink: str | None = "fairlead", **options: str
) -> StreamingQuery:
    """Run a query over all messages that are there now. Raises the error of the query."""
    if sink is not None:
        writer = writer.format(sink).options(**options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(PATIENCE_S), "the query still runs"
    finally:
        query.stop()
    return query


def forget_commit(checkpoint: Path, batch: int) -> None:
    """Undo Spark's entry in the commit log, as if the driver had died after the sink's commit: the batch runs
    again.
    """
    assert (checkpoint / "commits" / str(batch)).exists()
    for name in (f"{batch}", f".{batch}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
