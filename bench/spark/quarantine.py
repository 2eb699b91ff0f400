"""`python -m bench.spark.quarantine`: what `quarantine` costs a job, beside the same job that drops its bad
rows. All ways in one run, in turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import fairlead
import fairlead.spark
from fairlead.testing import run_server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PLAIN = "filter, no Python"
BARE = "filter, then mapInArrow that does nothing"


def by_row(row: dict[str, Any]) -> bool:
    return row["amount"] is not None


def by_batch(batch: pa.RecordBatch) -> pa.Array:
    return batch.column("amount").is_valid()


def hand_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def measure(rows: int, rounds: int, master: str, home: Path) -> dict[str, list[float]]:
    """Rows per second, of each way in each round; the first round is left out, in which everything starts."""
    spark = fairlead.spark.session("quarantine", master)
    numbers = count()
    with run_server(home / "data") as server, fairlead.connect(server.address) as client:
        client.create_queue("bad")

        def set_aside(check: Any) -> Callable[[DataFrame], DataFrame]:
            return lambda df: fairlead.spark.quarantine(
                df, check, queue="bad", endpoint=server.address, dedupe_token=f"{next(numbers)}"
            )

        ways: dict[str, Callable[[DataFrame], DataFrame]] = {
            PLAIN: lambda df: df.where("amount IS NOT NULL"),
            BARE: lambda df: df.where("amount IS NOT NULL").mapInArrow(hand_on, df.schema),
            "quarantine, a condition": set_aside("amount IS NOT NULL"),
            "quarantine, a function of batches": set_aside(by_batch),
            "quarantine, a function of rows": set_aside(by_row),
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        bad = "if(id % 100 = 0, null, id * 1.5D) AS amount"
        made = spark.range(0, rows, 1, 4).selectExpr("id", "repeat('x', 200) AS text", bad, "id % 7 AS kind")
        made.write.parquet(str(home / "rows"))
        for turn in range(rounds + 1):
            # Each begins once, so that none always runs in the wake of the same other.
            names = deque(ways)
            names.rotate(turn)
            for name in names:
                df = spark.read.parquet(str(home / "rows"))
                began = time.perf_counter()
                ways[name](df).write.format("noop").mode("overwrite").save()
                found[name].append(rows / (time.perf_counter() - began))
        assert client.stats("bad.dlq").ready == 3 * (rounds + 1) * -(-rows // 100), "each bad row once"
    spark.stop()
    return {name: rates[1:] for name, rates in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        found = measure(options.rows, options.rounds, options.master, Path(home))
    plain, bare = statistics.median(found[PLAIN]), statistics.median(found[BARE])
    for name, rates in found.items():
        rate = statistics.median(rates)
        print(
            f"{name:45} {rate:12,.0f} rows/s   {rate / plain:5.2f} of the plain job   {rate / bare:5.2f} of mapInArrow"
        )


if __name__ == "__main__":
    main()
