"""A server, and bursts of the worker on the shared session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fairlead
import fairlead.spark
from fairlead.testing import ServerProcess, run_server
from tests.crash.journal import Line, read_journal
from tests.crash.worker.fates import QUEUE, WORKER, Sent
from tests.crash.worker.trial import apply

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fairlead.spark.worker.loop import WorkerSummary

_AT_ONCE = 10_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with run_server(tmp_path / "data", settings={"durability": "os"}) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[fairlead.Client]:
    with fairlead.connect(server.address) as connected:
        yield connected


class Burst:
    """Pushes messages to the queue of a runbook, and runs bursts of its worker. The steps write the ledger."""

    def __init__(
        self, spark: SparkSession, client: fairlead.Client, address: str, ledger: Path, runbook: Path
    ) -> None:
        self._spark, self._client, self._address, self._ledger, self._runbook = (
            spark,
            client,
            address,
            ledger,
            runbook,
        )
        apply(client, runbook)

    def send(self, messages: list[Sent]) -> dict[str, str]:
        """tag -> id"""
        ids: dict[str, str] = {}
        for first in range(0, len(messages), _AT_ONCE):
            some = messages[first : first + _AT_ONCE]
            given = self._client.enqueue_many(QUEUE, [one.message(self._ledger) for one in some])
            ids |= {one.tag: message_id for one, message_id in zip(some, given, strict=True)}
        return ids

    def run(self) -> WorkerSummary:
        """Run until nothing is ready."""
        return fairlead.spark.run_worker(
            WORKER, endpoint=self._address, spark=self._spark, runbook=self._runbook, burst=True, slices=2
        )

    def lines(self) -> list[Line]:
        return list(read_journal(self._ledger))


@pytest.fixture
def burst(
    spark: SparkSession, server: ServerProcess, client: fairlead.Client, tmp_path: Path
) -> Callable[[Path], Burst]:
    """The text of a runbook file."""
    return partial(Burst, spark, client, server.address, tmp_path / "ledger.jsonl")
