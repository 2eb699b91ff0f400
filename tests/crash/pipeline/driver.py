"""Spark's order of calls without Spark, in a process that is killed: claims to a log of offsets, batches to a
log of commits.

What Spark does between two calls is kept as it was measured: an offset is in the log before anything is read;
what was in the log without its commit is done again from the two offsets alone, in another process; a claim
is closed when the next one is asked for.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import msgspec

import fairlead
from fairlead import Complete, Delivery, Fail, NewMessage, Release
from fairlead.model.settle import Settlement

from .ledger import CONSUMER, DONE, SINK, SOURCE
from .switch import tell_driver

#: How the driver breaks its word, for tests that the audit notices: it closes a claim before it is published;
#: it names its writes by chance; it asks for other numbers than its log says.
Breach = Literal["", "closes early", "token by chance", "forgets its offsets"]


class Life(msgspec.Struct, frozen=True):
    home: str
    address: str
    operation: Literal["produce", "settle"] = "produce"
    batch: int = 10
    slices: int = 2
    breach: Breach = ""


class Log:
    """A file per batch, there as a whole or not at all."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def last(self) -> int:
        return max((int(path.name) for path in self._directory.iterdir() if path.name.isdigit()), default=-1)

    def read(self, batch: int) -> int | None:
        path = self._directory / str(batch)
        return int(path.read_text()) if path.exists() else None

    def write(self, batch: int, number: int) -> None:
        unfinished = self._directory / f"{batch}.new"
        with unfinished.open("w") as file:
            file.write(str(number))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self._directory / str(batch))


class Query:
    def __init__(self, life: Life, client: fairlead.Client) -> None:
        self.life = life
        self.client = client
        checkpoint = Path(life.home) / "checkpoint"
        self.offsets, self.commits = Log(checkpoint / "offsets"), Log(checkpoint / "commits")
        self.query_id = self._query_id(checkpoint / "metadata")
        self.consumer = client.consumers.register(CONSUMER, SOURCE)

    def run(self) -> None:
        """Until nothing is left in the source."""
        batch = self.offsets.last()
        number = self.offsets.read(batch) if batch >= 0 else None
        if number is None:
            number = self.consumer.last_closed
        elif self.commits.last() < batch:
            self._run_batch(batch, number)
        while (following := self._latest_offset(number)) != number:
            batch, number = batch + 1, following
            if self.life.breach != "forgets its offsets":
                self.offsets.write(batch, number)
            self._run_batch(batch, number)

    def _latest_offset(self, start: int) -> int:
        """What is at or before `start` is in the log of commits."""
        generation = self.consumer.generation
        self.client.consumers.close(CONSUMER, SOURCE, generation, start)
        claimed = self.client.consumers.claim(CONSUMER, SOURCE, generation, start + 1, limit=self.life.batch)
        if claimed.count and self.life.breach == "closes early":
            with ThreadPoolExecutor(1) as task:
                self.early = task.submit(self._read, start + 1, 0, 1).result()
            self.client.consumers.close(CONSUMER, SOURCE, generation, start + 1)
        return start + 1 if claimed.count else start

    def _run_batch(self, batch: int, number: int) -> None:
        slices = range(self.life.slices)
        with ThreadPoolExecutor(self.life.slices) as tasks:
            told = list(tasks.map(lambda slice: self._task(batch, number, slice), slices))
        if self.life.operation == "settle":
            self.client.consumers.choose(
                CONSUMER, SOURCE, self.consumer.generation, number, [part for part in told if part]
            )
        else:
            self.client.staging.publish(self._token(batch), SINK, [chunk for chunk in told if chunk])
        self.commits.write(batch, number)

    def _task(self, batch: int, number: int, slice: int) -> str:
        """The name of what it has left with the broker, which no other attempt of it has; none for nothing."""
        deliveries = self._read(number, slice, self.life.slices)
        name = f"{slice}-{uuid.uuid4().hex[:8]}"
        if not deliveries:
            return ""
        if self.life.operation == "settle":
            self.client.consumers.record(
                CONSUMER,
                SOURCE,
                self.consumer.generation,
                number,
                [outcome_of(d) for d in deliveries],
                part=name,
            )
        else:
            self.client.staging.stage(self._token(batch), name, SINK, [transform(d) for d in deliveries])
        return name

    def _read(self, number: int, slice: int, slices: int) -> Sequence[Delivery]:
        if self.life.breach == "closes early" and slices > 1:
            return self.early if slice == 0 else []
        return list(
            self.client.consumers.read(
                CONSUMER, SOURCE, self.consumer.generation, number, slice=slice, slices=slices
            )
        )

    def _token(self, batch: int) -> str:
        if self.life.breach == "token by chance":
            return f"{self.query_id}/{batch}/{os.getpid()}"
        return f"{self.query_id}/{batch}"

    @staticmethod
    def _query_id(path: Path) -> str:
        if not path.exists():
            unfinished = path.with_suffix(".new")
            unfinished.write_text(uuid.uuid4().hex)
            unfinished.replace(path)
        return path.read_text()


def transform(delivery: Delivery) -> NewMessage:
    return NewMessage(DONE + delivery.payload, stream=delivery.stream, fairness_key=delivery.fairness_key)


def outcome_of(delivery: Delivery) -> Settlement:
    """As the header says, at the first delivery; later everything is well."""
    kind = delivery.headers["kind"] if delivery.deliveries == 1 else "complete"
    if kind == "fail":
        return Fail(delivery, error="not yet")
    if kind == "dead":
        return Fail(delivery, error="never", dead=True)
    return Release(delivery) if kind == "release" else Complete(delivery)


def main(life: Life) -> None:
    tell_driver(Path(life.home))
    client = fairlead.connect(life.address, retry_for="60s")
    Query(life, client).run()
    client.close()


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Life))
