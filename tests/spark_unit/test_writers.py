"""The sinks in one process and without a JVM, called as Spark does: `write` in a task, `commit` and `abort`
on the driver.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import LongType, StringType, StructField, StructType

import fairlead
from fairlead.errors import ClaimClosed, InvalidRequest, RowsRefused, SparkNotReady, StagedChunkMissing
from fairlead.spark.data_source.settle import SettleStreamWriter, SettleWriter
from fairlead.spark.data_source.task import BATCH_ID, QUERY_ID
from fairlead.spark.data_source.write import ProduceStreamWriter, ProduceWriter
from fairlead.spark.options import read_options
from fairlead.testing import ServerProcess

ROWS = StructType([StructField("payload", StringType()), StructField("fairness_key", StringType())])
SETTLES = StructType(
    [
        StructField("id", StringType()),
        StructField("receipt", StringType()),
        StructField("outcome", StringType()),
    ]
)


Task = Callable[..., Any]


@pytest.fixture
def task() -> Iterator[Task]:
    """Calls `write` of a pickled copy of the writer, as an attempt of a task."""

    def run(
        writer: Any,
        *batches: pa.RecordBatch,
        partition: int = 0,
        attempt: int = 0,
        query: str = "",
        batch: int = 0,
    ) -> Any:
        properties = {QUERY_ID: query, BATCH_ID: str(batch)} if query else {}
        TaskContext._setTaskContext(None)
        TaskContext(
            partitionId=partition,
            attemptNumber=attempt,
            taskAttemptId=partition + 10 * attempt,
            localProperties=properties,
        )
        message = pickle.loads(pickle.dumps(writer)).write(iter(batches))
        TaskContext._setTaskContext(None)
        return pickle.loads(pickle.dumps(message))

    yield run
    # If this variable stayed, Spark would take this process for a worker.
    TaskContext._setTaskContext(None)


def rows(*payloads: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(payloads, pa.utf8()), pa.array(["k"] * len(payloads))], names=["payload", "fairness_key"]
    )


@pytest.fixture
def options(server: ServerProcess, queue: str) -> Callable[..., Any]:
    def read(direction: Any = "batch write", **more: str) -> Any:
        return read_options({"endpoint": server.address, "queue": queue, **more}).for_direction(direction)

    return read


def payloads(client: fairlead.Client, queue: str) -> list[str]:
    return [delivery.payload.decode() for delivery in client.claim(queue, limit=1000)]


def staged_tokens(client: fairlead.Client, queue: str) -> list[str]:
    return [write.token for write in client.staging.list() if queue == write.queue and not write.published]


def test_nothing_is_seen_before_the_commit_and_then_all_in_the_order_of_partitions(
    client: fairlead.Client, queue: str, task: Task, options: Any
) -> None:
    writer = ProduceWriter(options(), ROWS)
    second = task(writer, rows("c"), rows("d"), partition=1)
    first = task(writer, rows("a", "b"), partition=0)
    assert client.stats(queue).ready == 0
    writer.commit([second, first])
    assert payloads(client, queue) == ["a", "b", "c", "d"]


def test_of_two_attempts_only_the_one_that_is_committed_counts(
    client: fairlead.Client, queue: str, task: Task, options: Any
) -> None:
    writer = ProduceWriter(options(), ROWS)
    task(writer, rows("a", "b"), attempt=0)
    writer.commit([task(writer, rows("a", "b"), attempt=1)])
    assert payloads(client, queue) == ["a", "b"]
    assert staged_tokens(client, queue) == []


def test_a_late_task_of_a_dead_driver_cannot_replace_what_its_successor_staged(
    client: fairlead.Client, queue: str, task: Task, options: Any
) -> None:
    """Both attempts have the same numbers: a new driver counts its tasks from 0, and may partition the batch
    differently.
    """
    writer = ProduceStreamWriter(options("stream write"), ROWS)
    new = (
        task(writer, rows("a"), partition=0, query="q", batch=1),
        task(writer, rows("b"), partition=1, query="q", batch=1),
    )
    task(writer, rows("a", "b"), partition=0, query="q", batch=1)
    writer.commit(new, 1)
    assert payloads(client, queue) == ["a", "b"]


def test_a_micro_batch_is_published_once_whichever_tasks_it_had(
    client: fairlead.Client, queue: str, task: Task, options: Any
) -> None:
    for _ in range(2):
        writer = ProduceStreamWriter(options("stream write"), ROWS)
        writer.commit([task(writer, rows("a", "b"), query="once", batch=1)], 1)
    writer.commit(
        [
            task(writer, rows("a"), query="once", batch=1),
            task(writer, rows("b"), partition=1, query="once", batch=1),
        ],
        1,
    )
    writer.commit([task(writer, rows("c"), query="once", batch=2)], 2)
    assert payloads(client, queue) == ["a", "b", "c"]


def test_an_abort_discards_a_batch_write_without_a_single_message(
    client: fairlead.Client, queue: str, task: Task, options: Any
) -> None:
    writer = ProduceWriter(options(), ROWS)
    message = task(writer, rows("a"))
    assert staged_tokens(client, queue) == [message.token]
    pickle.loads(pickle.dumps(writer)).abort([None, None])
    assert staged_tokens(client, queue) == []
    with pytest.raises(StagedChunkMissing):
        writer.commit([message])
    assert client.stats(queue).ready == 0


def test_an_abort_after_the_publish_takes_nothing_back(
    client: fairlead.Client, queue: str, task: Task, options: Any
) -> None:
    """Spark aborts a write if the commit does not answer."""
    writer = ProduceWriter(options(), ROWS)
    message = task(writer, rows("a"))
    writer.commit([message])
    writer.abort([message])
    assert payloads(client, queue) == ["a"]


def test_an_abort_of_a_stream_discards_what_its_messages_tell_of(
    client: fairlead.Client, queue: str, task: Task, options: Any
) -> None:
    writer = ProduceStreamWriter(options("stream write"), ROWS)
    message = task(writer, rows("a"), query="aborted", batch=3)
    writer.abort([None, message], 3)
    assert staged_tokens(client, queue) == []
    writer.abort([None, None], 3)


def test_an_abort_keeps_quiet_when_the_server_is_gone(options: Any) -> None:
    from fairlead.testing.server import free_ports

    ProduceWriter(options(endpoint=f"127.0.0.1:{free_ports(1)[0]}", timeout="100ms"), ROWS).abort([None])


def test_a_stream_without_the_names_of_query_and_batch_is_refused(task: Task, options: Any) -> None:
    with pytest.raises(SparkNotReady, match=rf"{QUERY_ID} and {BATCH_ID}"):
        task(ProduceStreamWriter(options("stream write"), ROWS), rows("a"))


def test_a_refused_row_fails_the_task_or_is_kept_when_the_write_is_published(
    client: fairlead.Client, queue: str, task: Task, options: Any, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    with pytest.raises(RowsRefused) as refused:
        task(ProduceWriter(options(), ROWS), rows("a", None))
    assert refused.value.shown == [
        "no payload, fairness_key='k': expected payload to be binary or string, got null"
    ]
    writer = ProduceWriter(options(rejects=str(tmp_path)), ROWS)
    messages = [task(writer, rows("a", None)), task(writer, rows("b"), partition=1)]
    assert not [*tmp_path.glob("token=*")]
    writer.commit(messages)
    assert payloads(client, queue) == ["a", "b"]
    assert pq.read_table(tmp_path).column("error").to_pylist() == [
        "expected payload to be binary or string, got null"
    ]


def test_nothing_is_published_while_refused_rows_are_out_of_sight(
    client: fairlead.Client, queue: str, task: Task, options: Any, tmp_path: Path
) -> None:
    writer = ProduceWriter(options(rejects=str(tmp_path)), ROWS)
    message = task(writer, rows("a", None))
    for file in tmp_path.rglob("*.parquet"):
        file.unlink()
    with pytest.raises(InvalidRequest, match="a folder that driver and executors share"):
        writer.commit([message])
    assert client.stats(queue).ready == 0


def test_what_cannot_be_meant_is_refused_when_the_writer_is_made(options: Any) -> None:
    wrong = StructType([StructField("payload", LongType())])
    for make in (ProduceWriter, ProduceStreamWriter):
        with pytest.raises(InvalidRequest, match="column 'payload'"):
            make(options(), wrong)
        with pytest.raises(InvalidRequest, match="work to be done and are not replaced"):
            make(options(), ROWS, overwrite=True)
        with pytest.raises(InvalidRequest, match="option rejects"):
            make(options(rejects="here"), ROWS)
    for settle in (SettleWriter, SettleStreamWriter):
        with pytest.raises(InvalidRequest, match="in rows that settle, got 'payload'"):
            settle(options(operation="settle"), ROWS)
        with pytest.raises(InvalidRequest, match="mode of a write that settles"):
            settle(options(operation="settle"), SETTLES, overwrite=True)
        with pytest.raises(InvalidRequest, match="option rejects"):
            settle(options(operation="settle", rejects="/folder"), SETTLES)
    with pytest.raises(InvalidRequest, match="option dedupeToken"):
        SettleWriter(options(operation="settle", dedupeToken="t"), SETTLES)
    with pytest.raises(InvalidRequest, match="option dedupeToken"):
        ProduceWriter(options(dedupeToken="t" * 600), ROWS)


class Claimed:
    """A numbered claim of three messages."""

    def __init__(self, client: fairlead.Client, queue: str) -> None:
        self.client, self.queue = client, queue
        client.enqueue_many(queue, [fairlead.NewMessage(payload) for payload in (b"a", b"b", b"c")])
        self.consumer = client.consumers.register(f"{queue}-etl", queue)
        client.consumers.claim(self.consumer.name, self.consumer.queue, self.consumer.generation, 1)
        self.ids = [
            delivery.id
            for delivery in client.consumers.read(
                self.consumer.name, self.consumer.queue, self.consumer.generation, 1
            )
        ]
        (batch, *_) = client.consumers.read_batches(
            self.consumer.name, self.consumer.queue, self.consumer.generation, 1
        )
        self.receipt = f"{self.consumer.queue}:{self.consumer.name}/{self.consumer.generation}/1/{batch.column('lease')[0]}"

    def rows(self, **outcomes: str) -> pa.RecordBatch:
        at = {"a": 0, "b": 1, "c": 2}
        return pa.RecordBatch.from_pydict(
            {
                "id": [self.ids[at[name]] for name in outcomes],
                "receipt": [self.receipt] * len(outcomes),
                "outcome": [*outcomes.values()],
            }
        )

    def close(self) -> dict[str, int]:
        self.client.consumers.close(self.consumer.name, self.consumer.queue, self.consumer.generation, 1)
        stats = self.client.stats(self.queue)
        return {"completed": stats.totals.completed, "failed": stats.totals.failed, "ready": stats.ready}


@pytest.fixture
def claimed(client: fairlead.Client, queue: str) -> Claimed:
    return Claimed(client, queue)


@pytest.mark.parametrize("kind", [SettleWriter, SettleStreamWriter])
def test_outcomes_of_the_attempts_that_count_take_effect_when_the_claim_is_closed(
    client: fairlead.Client, queue: str, claimed: Claimed, task: Task, options: Any, kind: Any
) -> None:
    writer = kind(options(operation="settle"), SETTLES)
    task(writer, claimed.rows(a="fail", b="fail", c="fail"), attempt=0)
    messages = [
        task(writer, claimed.rows(a="fail"), attempt=1),
        task(writer, claimed.rows(b="release"), partition=1),
        task(writer, partition=2),
    ]
    writer.commit(messages, *([7] if kind is SettleStreamWriter else []))
    assert client.stats(queue).leased == 3
    assert claimed.close() == {"completed": 1, "failed": 1, "ready": 2}


def test_a_second_write_adds_to_what_the_first_has_said(claimed: Claimed, task: Task, options: Any) -> None:
    for said in ({"a": "fail", "b": "fail"}, {"b": "complete", "c": "release"}):
        writer = SettleWriter(options(operation="settle"), SETTLES)
        writer.commit([task(writer, claimed.rows(**said))])
    assert claimed.close() == {"completed": 1, "failed": 1, "ready": 2}


def test_what_was_recorded_and_never_committed_does_not_count(
    claimed: Claimed, task: Task, options: Any
) -> None:
    writer = SettleStreamWriter(options(operation="settle"), SETTLES)
    writer.abort([task(writer, claimed.rows(a="fail", b="release"))], 0)
    assert claimed.close() == {"completed": 3, "failed": 0, "ready": 0}


def test_rows_of_a_claim_that_is_over_fail_the_task(claimed: Claimed, task: Task, options: Any) -> None:
    claimed.close()
    with pytest.raises(ClaimClosed):
        task(SettleWriter(options(operation="settle"), SETTLES), claimed.rows(a="fail"))


def test_a_row_that_settles_nothing_is_named_by_its_id(claimed: Claimed, task: Task, options: Any) -> None:
    with pytest.raises(RowsRefused) as refused:
        task(SettleWriter(options(operation="settle"), SETTLES), claimed.rows(a="failed"))
    assert f"id='{claimed.ids[0]}'" in refused.value.shown[0]
    assert refused.value.shown[0].endswith("expected outcome to be complete, fail or release, got 'failed'")
