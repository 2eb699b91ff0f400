"""`python -m bench.spark.calls`: the calls that Spark's driver and tasks make, without Spark: what the server and the
client of a write and of a read cost.

A write stages the rows of two tasks, cut into chunks as the data source cuts them, and publishes them. A read claims
them, reads two slices side by side into the columns of a DataFrame, and closes the claim. Rows have a payload of 1 KB and one of
some fairness keys. CPU time is that of the server's process and of this one, per row.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

import fairlead
from fairlead.spark.data_source.chunks import Chunker
from fairlead.spark.data_source.rows import BatchConverter
from fairlead.spark.data_source.schema import read_schema
from fairlead.spark.data_source.write_columns import to_messages
from fairlead.testing import ServerProcess, run_server

PAYLOAD_BYTES = 1024
#: As Spark hands them to Python.
BATCH_ROWS = 10_000
TASKS = 2
QUEUE = "spark"


class Cost(NamedTuple):
    """Microseconds per row."""

    server: float
    client: float
    wall: float


class Bench:
    """One server, and what a Spark job does with it."""

    def __init__(self, server: ServerProcess, rows: int, keys: int) -> None:
        self._server = server
        self._client = fairlead.connect(server.address)
        self._rows = rows
        self._tasks = [list(_batches(rows // TASKS, keys, task)) for task in range(TASKS)]
        self._turn = 0
        self._client.create_queue(QUEUE)
        self._generation = self._client.consumers.register("bench", QUEUE).generation

    def run(self) -> dict[str, Cost]:
        self._turn += 1
        found = {"write": self._measure(self._write), "read": self._measure(self._read)}
        assert self._client.stats(QUEUE).ready == 0
        return found

    def close(self) -> None:
        self._client.close()

    def _measure(self, work: Callable[[], None]) -> Cost:
        pid = self._server.pid
        server, client, wall = _cpu_seconds(pid), time.process_time(), time.perf_counter()
        work()
        taken = (
            _cpu_seconds(pid) - server,
            time.process_time() - client,
            time.perf_counter() - wall,
        )
        return Cost(*[1e6 * seconds / self._rows for seconds in taken])

    def _write(self) -> None:
        token, names, staging = f"write-{self._turn}", list[str](), self._client.staging
        for task, batches in enumerate(self._tasks):
            chunker = Chunker()
            for given in batches:
                for chunk in chunker.add(to_messages(given)[0], given):
                    names.append(f"{task}-{len(names)}")
                    staging.stage_batch(token, names[-1], QUEUE, chunk.wire, skip_invalid=True)
            for chunk in chunker.rest():
                names.append(f"{task}-{len(names)}")
                staging.stage_batch(token, names[-1], QUEUE, chunk.wire, skip_invalid=True)
        staging.publish(token, QUEUE, names)

    def _read(self) -> None:
        consumers, number = self._client.consumers, self._turn
        claimed = consumers.claim("bench", QUEUE, self._generation, number, limit=self._rows)
        assert claimed.count == self._rows, claimed
        with ThreadPoolExecutor(TASKS) as tasks:
            counts = tasks.map(lambda slice: self._read_slice(number, slice), range(TASKS))
            assert sum(counts) == self._rows
        consumers.close("bench", QUEUE, self._generation, number)

    def _read_slice(self, number: int, slice: int) -> int:
        shown = BatchConverter(read_schema(), QUEUE, receipt="receipt")
        batches = self._client.consumers.read_batches(
            "bench", QUEUE, self._generation, number, slice=slice, slices=TASKS
        )
        return sum(shown.convert(batch).num_rows for batch in batches)


def _batches(rows: int, keys: int, task: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, rows, BATCH_ROWS):
        numbers = range(start, min(start + BATCH_ROWS, rows))
        yield pa.record_batch(
            {
                "payload": pa.array([os.urandom(PAYLOAD_BYTES // 2).hex().encode() for _ in numbers]),
                "fairness_key": pa.array([f"tenant-{(n + task) % keys}" for n in numbers]),
            }
        )


def _cpu_seconds(pid: int) -> float:
    """CPU time that all threads of a process have used, also those that are over."""
    return time.clock_gettime((~pid << 3) | 2)


def measure(rows: int, keys: int, rounds: int) -> dict[str, list[Cost]]:
    """By way; the first round is left out."""
    found: dict[str, list[Cost]] = {"write": [], "read": []}
    with (
        tempfile.TemporaryDirectory() as home,
        run_server(Path(home) / "data", settings={"durability": "os"}) as server,
        closing(Bench(server, rows, keys)) as bench,
    ):
        for turn in range(rounds + 1):
            costs = bench.run()
            for way, cost in costs.items() if turn else ():
                found[way].append(cost)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 50_000])
    parser.add_argument("--keys", type=int, nargs="+", default=[10])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for rows in options.rows:
        for keys in options.keys:
            for way, costs in measure(rows, keys, options.rounds).items():
                _show(f"{way:6} {rows:7,} rows {keys:7,} keys", costs)


def _show(title: str, costs: list[Cost]) -> None:
    server, client, wall = (statistics.median(column) for column in zip(*costs, strict=True))
    print(f"{title}: server {server:6.2f} client {client:6.2f} wall {wall:6.2f} us a row")


if __name__ == "__main__":
    main()
