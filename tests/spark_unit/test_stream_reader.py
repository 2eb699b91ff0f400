"""The streaming reader as a plain object, with a real server. tests/spark has the same tests with queries and
a JVM.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

import fairlead
from fairlead.errors import (
    ClaimClosed,
    ClaimNotNext,
    ClaimReleased,
    InvalidRequest,
    QueueNotFound,
    StaleConsumer,
)
from fairlead.spark.data_source.schema import arrow_schema, read_schema
from fairlead.spark.data_source.stream_read import StreamReader
from fairlead.spark.options import read_options
from fairlead.testing import ServerProcess

PATIENCE_S = 120
LIMIT = ReadMaxRows(10)

Make = Callable[..., StreamReader]


@pytest.fixture
def reader(server: ServerProcess, queue: str) -> Iterator[Make]:
    made = []

    def reader(**options: str) -> StreamReader:
        given = {
            "endpoint": server.address,
            "queue": queue,
            "consumer": queue,
            "numPartitions": "2",
        } | options
        made.append(StreamReader(read_options(given).for_direction("stream read"), read_schema()))
        return made[-1]

    yield reader
    for one in made:
        one.stop()


def put(client: fairlead.Client, queue: str, count: int) -> None:
    client.enqueue_many(
        queue, [fairlead.NewMessage(str(n).encode(), stream=f"s{n % 7}") for n in range(count)]
    )


def rows_of(source: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The rows of each slice, read by a pickled copy as in a task."""
    slices = []
    for part in source.partitions(start, end):
        batches = [*pickle.loads(pickle.dumps(source)).read(part)]
        assert all(batch.schema.equals(arrow_schema(read_schema())) for batch in batches)
        slices.append(pa.Table.from_batches(batches, arrow_schema(read_schema())).to_pylist())
    return slices


def flat(slices: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [row for rows in slices for row in rows]


def test_batch_after_batch_is_closed_when_the_next_is_asked_for_and_the_last_when_there_is_none(
    reader: Make, client: fairlead.Client, queue: str
):
    put(client, queue, 25)
    source, at, seen, completed = reader(), {}, [], []
    at = source.initialOffset()
    while (end := source.latestOffset(at, LIMIT)) != at:
        completed.append(client.stats(queue).totals.completed)
        seen += [int(row["payload"]) for row in flat(rows_of(source, at, end))]
        at = end
    assert completed == [0, 10, 20]
    assert sorted(seen) == list(range(25))
    assert client.stats(queue).totals.completed == 25


def test_a_batch_has_hardly_more_bytes_than_asked_for(reader: Make, client: fairlead.Client, queue: str):
    client.enqueue_many(queue, [fairlead.NewMessage(bytes(1000))] * 30 + [fairlead.NewMessage(bytes(20_000))])
    source = reader(maxBytesPerTrigger="10000", includePayload="false", includeHeaders="false")
    at, sizes, shown = source.initialOffset(), [], set()
    while (end := source.latestOffset(at, ReadMaxRows(1000))) != at:
        rows = flat(rows_of(source, at, end))
        sizes.append(len(rows))
        shown |= {(row["payload"], row["headers"]) for row in rows}
        at = end
    assert sum(sizes) == 31
    assert max(sizes) <= 14, sizes
    assert shown == {(None, None)}


def test_a_replay_reads_the_same_rows_in_the_same_order_however_it_is_cut(
    reader: Make, client: fairlead.Client, queue: str, server: ServerProcess
):
    put(client, queue, 70)
    first = reader()
    start = first.initialOffset()
    end = first.latestOffset(start, ReadMaxRows(1000))
    before = rows_of(first, start, end)
    first.stop()
    server.restart(kill=True)
    after = rows_of(reader(numPartitions="5"), start, end)
    assert len(after) == 5
    for name in {row["stream"] for row in flat(before)}:
        (was,) = [
            [row["payload"] for row in rows if row["stream"] == name]
            for rows in before
            if any(row["stream"] == name for row in rows)
        ]
        (now,) = [
            [row["payload"] for row in rows if row["stream"] == name]
            for rows in after
            if any(row["stream"] == name for row in rows)
        ]
        assert was == now == sorted(was, key=int)
    without = ("receipt",)
    assert sorted(
        ({key: row[key] for key in row if key not in without} for row in flat(after)),
        key=lambda row: row["id"],
    ) == sorted(
        ({key: row[key] for key in row if key not in without} for row in flat(before)),
        key=lambda row: row["id"],
    )


def test_a_reader_that_was_taken_over_is_told_whatever_it_asks(
    reader: Make, client: fairlead.Client, queue: str
):
    put(client, queue, 5)
    old = reader()
    start = old.initialOffset()
    end = old.latestOffset(start, LIMIT)
    (part, _) = old.partitions(start, end)
    new = reader()
    assert new.initialOffset() == start
    with pytest.raises(StaleConsumer):
        old.latestOffset(end, LIMIT)
    with pytest.raises(StaleConsumer):
        [*old.read(part)]
    assert client.stats(queue).leased == 5, "its claim is the new one's"
    assert new.latestOffset(start, LIMIT) == end


def test_a_released_claim_is_told_to_tasks_to_replays_and_to_who_would_close_it(
    reader: Make, client: fairlead.Client, queue: str
):
    put(client, queue, 5)
    source = reader()
    start = source.initialOffset()
    end = source.latestOffset(start, LIMIT)
    (part, other) = source.partitions(start, end)
    client.consumers.release(queue, queue)
    assert [*reader(failOnDataLoss="false").read(other)] == []
    for lost in (
        lambda: [*source.read(part)],
        lambda: reader().partitions(start, end),
        lambda: reader().latestOffset(end, LIMIT),
    ):
        with pytest.raises(ClaimReleased) as told:
            lost()
        assert "failOnDataLoss" in told.value.__notes__[0]
    soft = reader(failOnDataLoss="false")
    assert soft.partitions(start, end) == []
    again = soft.latestOffset(end, LIMIT)
    assert len(flat(rows_of(soft, end, again))) == 5


def test_a_claim_released_before_spark_knew_of_it_is_made_anew_without_a_word(
    reader: Make, client: fairlead.Client, queue: str
):
    put(client, queue, 5)
    source = reader()
    start = source.latestOffset(source.initialOffset(), LIMIT)
    put(client, queue, 5)
    source.latestOffset(start, LIMIT)
    client.consumers.release(queue, queue)
    again = reader()
    end = again.latestOffset(start, LIMIT)
    assert end["number"] == start["number"] + 2
    assert len(flat(rows_of(again, start, end))) == 5


def test_a_checkpoint_that_is_older_than_the_broker_knows_is_refused(
    reader: Make, client: fairlead.Client, queue: str
):
    put(client, queue, 25)
    source = reader()
    first = source.initialOffset()
    second = source.latestOffset(first, LIMIT)
    third = source.latestOffset(second, LIMIT)
    source.latestOffset(third, LIMIT)
    old = reader()
    with pytest.raises(ClaimClosed):
        old.partitions(first, second)
    with pytest.raises(ClaimClosed):
        old.latestOffset(second, LIMIT)


def test_a_dropped_consumer_is_refused_and_made_anew_gives_offsets_never_seen(
    reader: Make, client: fairlead.Client, queue: str
):
    put(client, queue, 5)
    source = reader()
    at = source.latestOffset(source.initialOffset(), LIMIT)
    assert source.latestOffset(at, LIMIT) == at
    client.consumers.drop(queue, queue)
    put(client, queue, 5)
    with pytest.raises(ClaimNotNext):
        reader().latestOffset(at, LIMIT)
    soft = reader(failOnDataLoss="false")
    end = soft.latestOffset(at, LIMIT)
    assert end != at
    assert end["number"] == at["number"]
    assert len(flat(rows_of(soft, at, end))) == 5
    assert soft.latestOffset(end, LIMIT) == end
    assert client.stats(queue).totals.completed == 10


def test_what_comes_after_the_start_is_left_for_the_next_run_when_only_what_is_there_is_wanted(
    reader: Make, client: fairlead.Client, queue: str
):
    put(client, queue, 15)
    source = reader()
    source.prepareForTriggerAvailableNow()
    at = source.initialOffset()
    put(client, queue, 15)
    seen = 0
    while (end := source.latestOffset(at, LIMIT)) != at:
        seen += len(flat(rows_of(source, at, end)))
        at = end
    assert seen == 15
    assert client.stats(queue).ready == 15


def test_a_reader_at_work_keeps_its_claim_beyond_the_time_to_live(
    reader: Make, client: fairlead.Client, queue: str
):
    put(client, queue, 20)
    source = reader(consumerTtl="3s")
    end = source.latestOffset(source.initialOffset(), LIMIT)
    other = client.consumers.register(f"{queue}-other", queue, ttl="3s")
    assert client.consumers.claim(other.name, queue, other.generation, 1).count > 0
    wait_until(
        "the one that nobody keeps alive is over", lambda: client.consumers.show(other.name, queue).lost == 1
    )
    assert client.consumers.show(queue, queue).open == end["number"]
    source.stop()
    wait_until(
        "it is over too once nobody keeps it alive",
        lambda: client.consumers.show(queue, queue).lost == end["number"],
    )


def test_a_name_in_another_queue_is_another_consumer_and_a_queue_that_is_not_there_is_told(
    reader: Make, client: fairlead.Client, queue: str
):
    other = f"{queue}-else"
    client.create_queue(other)
    put(client, queue, 20)
    put(client, other, 5)
    here, there = reader(), reader(queue=other)
    ends = [source.latestOffset(source.initialOffset(), LIMIT) for source in (here, there)]
    assert [(end["queue"], end["number"]) for end in ends] == [(queue, 1), (other, 1)]
    # An offset of one consumer is refused by the other, although both have an open claim 1.
    with pytest.raises(InvalidRequest, match="option queue"):
        there.latestOffset(ends[0], LIMIT)
    with pytest.raises(QueueNotFound):
        reader(queue="nowhere", consumer="nobody").initialOffset()


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"still not so: {what}"
        time.sleep(0.05)
