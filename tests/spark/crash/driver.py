"""The victim: a query that reads a queue, transforms each message and writes it into another queue, or
settles it where it is.

Started by the tests in a session of its own, with a `Life` as JSON; again and again on the same checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Literal

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import fairlead
import fairlead.spark
from tests.crash.pipeline.ledger import CONSUMER, DONE, SINK, SOURCE
from tests.crash.pipeline.switch import MARK, ROOT, tell_driver

from .breaches import BREACHES

#: A short-lived JVM is faster with one compiler and without threads for garbage collection.
QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"}
FAILURES = "failures.jsonl"


class Life(msgspec.Struct, frozen=True):
    """`patience` is how many queries may fail before the driver gives up: a query whose source process is
    killed is over, its session is not. `source` and `sink` are the formats, which a test may want to be some
    that break their word.
    """

    home: str
    address: str
    master: str = "local[2]"
    operation: Literal["produce", "settle"] = "produce"
    batch: int = 10
    slices: int = 2
    patience: int = 0
    source: str = "fairlead"
    sink: str = "fairlead"
    config: dict[str, str] = {}


def main(life: Life) -> None:
    tell_driver(Path(life.home))
    config = {**QUICK, **find_tests(), f"spark.executorEnv.{MARK}": life.home, **life.config}
    spark = fairlead.spark.session("crash", life.master, memory="512m", config=config)
    for breach in BREACHES.keys() & {life.source, life.sink}:
        spark.dataSource.register(BREACHES[breach])
    run(spark, life)
    # Messages that return after a failure or release belong to another run.
    while life.operation == "settle" and is_something_left(life):
        run(spark, life)
    spark.stop()


def find_tests() -> dict[str, str]:
    """Settings with which the Python processes of this session find the modules of the tests."""
    path = os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    return {"spark.executorEnv.PYTHONPATH": path}


def run(spark: SparkSession, life: Life) -> None:
    """Run one query to its end, and again if it fails."""
    for left in range(life.patience, -1, -1):
        try:
            start(spark, life).awaitTermination()
            return
        except StreamingQueryException as failed:
            tell_failure(life, failed)
            if not left:
                raise


def start(spark: SparkSession, life: Life) -> StreamingQuery:
    """Run until the messages that were there at the start are processed."""
    rows = (
        spark.readStream.format(life.source)
        .option("endpoint", life.address)
        .option("consumer", CONSUMER)
        .option("maxMessagesPerTrigger", life.batch)
        .option("numPartitions", life.slices)
        .load(SOURCE)
    )
    made = transformed(rows) if life.operation == "produce" else settled(rows)
    return (
        made.writeStream.format(life.sink)
        .option("endpoint", life.address)
        .option("queue", SINK if life.operation == "produce" else SOURCE)
        .option("operation", life.operation)
        .option("checkpointLocation", str(Path(life.home) / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def transformed(rows: DataFrame) -> DataFrame:
    return rows.selectExpr(
        f"concat(cast('{DONE.decode()}' as binary), payload) as payload", "stream", "fairness_key"
    )


def settled(rows: DataFrame) -> DataFrame:
    """The outcome in the header, at the first delivery; later deliveries succeed."""
    said = rows.selectExpr("id", "receipt", "if(deliveries = 1, headers['kind'], 'complete') as kind")
    return said.selectExpr(
        "id",
        "receipt",
        "if(kind = 'dead', 'fail', kind) as outcome",
        "kind = 'dead' as dead",
        "if(kind in ('fail', 'dead'), 'no', null) as error",
    )


def is_something_left(life: Life) -> bool:
    client = fairlead.connect(life.address)
    stats = client.stats(SOURCE)
    client.close()
    return stats.ready + stats.waiting + stats.leased > 0


def tell_failure(life: Life, failed: StreamingQueryException) -> None:
    with (Path(life.home) / FAILURES).open("a") as file:
        file.write(json.dumps({"pid": os.getpid(), "error": str(failed)[:4000]}) + "\n")


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Life))
