"""Streaming reads with a real session and server: the time of claims and completions, and the order of rows."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING

import fairlead
from tests.spark.reading.conftest import Query, failure_of, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def put(client: fairlead.Client, queue: str, count: int, *, first: int = 0) -> None:
    client.enqueue_many(queue, [fairlead.NewMessage(str(n).encode()) for n in range(first, first + count)])


def payloads(batches: list) -> list[int]:
    return sorted(int(row.payload) for rows in batches for row in rows)


def test_nothing_is_completed_before_the_sink_has_committed_and_the_last_batch_is_at_the_end(
    query: Query, client: fairlead.Client, queue: str
):
    put(client, queue, 250)
    seen = []

    def look(frame: DataFrame, batch: int) -> None:
        now = client.stats(queue)
        seen.append(
            (
                batch,
                now.totals.completed,
                now.leased,
                now.ready,
                client.consumers.show(queue, queue).last_closed,
            )
        )

    batches = query.run(look, maxMessagesPerTrigger=100)
    assert seen == [(0, 0, 100, 150, 0), (1, 100, 100, 50, 1), (2, 200, 50, 0, 2)]
    assert payloads(batches) == list(range(250))
    assert client.stats(queue).totals.completed == 250
    assert client.consumers.show(queue, queue).open == 0
    generation = client.consumers.show(queue, queue).generation
    claims = [{row.receipt.rsplit("/", 1)[0] for row in rows} for rows in batches]
    assert claims == [{f"{queue}:{queue}/{generation}/{number}"} for number in (1, 2, 3)]


def test_a_query_that_begins_with_an_empty_queue_reads_what_comes_later(
    query: Query, client: fairlead.Client, queue: str
):
    assert payloads(query.run()) == []
    put(client, queue, 3)
    assert payloads(query.run()) == [0, 1, 2]
    assert client.stats(queue).totals.completed == 3


def test_only_what_is_there_at_the_start_is_read_when_only_that_is_wanted(
    query: Query, client: fairlead.Client, queue: str
):
    put(client, queue, 30)

    def add(frame: DataFrame, batch: int) -> None:
        put(client, queue, 10, first=1000 + 10 * batch)

    assert payloads(query.run(add, maxMessagesPerTrigger=20)) == list(range(30))
    assert client.stats(queue).ready == 20
    assert payloads(query.run()) == list(range(1000, 1020)), "and the rest in the next run"


def test_each_stream_is_in_one_task_and_in_order_within_and_across_batches(
    query: Query, client: fairlead.Client, queue: str
):
    from pyspark.sql.functions import spark_partition_id

    streams = [f"s{n}" for n in range(7)]
    client.enqueue_many(
        queue, [fairlead.NewMessage(str(n).encode(), stream=streams[n % 7]) for n in range(350)]
    )
    frame = query.frame(maxMessagesPerTrigger=150, numPartitions=2).withColumn("part", spark_partition_id())
    batches = query.run(frame=frame)
    order = defaultdict(list)
    for rows in batches:
        parts = defaultdict(set)
        for row in rows:
            order[row.stream].append(int(row.payload))
            parts[row.stream].add(row.part)
        assert all(len(part) == 1 for part in parts.values()), parts
    assert {row.part for rows in batches for row in rows} == {0, 1}, "both tasks have something to do"
    assert order == {stream: list(range(at, 350, 7)) for at, stream in enumerate(streams)}


def test_an_idle_query_has_completed_its_last_batch_and_goes_on_with_what_comes(
    query: Query, client: fairlead.Client, queue: str
):
    rows: list = []
    running = query.start(lambda frame, batch: rows.extend(frame.collect()))
    put(client, queue, 5)
    wait_until("the first five are completed", lambda: client.stats(queue).totals.completed == 5)
    assert running.isActive
    put(client, queue, 5, first=5)
    wait_until("the next five are completed", lambda: client.stats(queue).totals.completed == 10)
    assert payloads([rows]) == list(range(10))
    running.stop()
    assert client.stats(queue).leased == 0


def test_a_second_query_takes_the_consumer_over_and_the_first_is_told(
    query: Query, client: fairlead.Client, queue: str, tmp_path
):
    first = query.start(lambda frame, batch: None)
    wait_until(
        "the first query has its consumer", lambda: any(one.name == queue for one in client.consumers.list())
    )
    query.checkpoint = tmp_path / "another"
    put(client, queue, 5)
    second = query.start(lambda frame, batch: None)
    said = failure_of(first)
    assert "StaleConsumer" in said
    assert queue in said
    wait_until("the second query has completed all", lambda: client.stats(queue).totals.completed == 5)
    assert second.isActive


def test_a_claim_outlives_the_time_to_live_while_its_query_is_at_work(
    query: Query, client: fairlead.Client, queue: str
):
    put(client, queue, 5)
    late = threading.Event()

    def work(frame: DataFrame, batch: int) -> None:
        # Another consumer with the same time to live and without heartbeats shows when this time has
        # passed.
        other = client.consumers.register(f"{queue}-other", queue, ttl="4s")
        put(client, queue, 1, first=99)
        assert client.consumers.claim(other.name, queue, other.generation, 1, wait="1m").count == 1
        wait_until("the other consumer is over", lambda: client.consumers.show(other.name, queue).lost == 1)
        late.set()

    running = query.start(work, consumerTtl="4s")
    wait_until("the time is over", late.is_set)
    wait_until("the batch is completed", lambda: client.stats(queue).totals.completed >= 5)
    assert running.isActive
    assert client.consumers.show(queue, queue).lost == 0


def test_a_query_waits_for_a_broker_that_is_away_for_a_while(
    query: Query, client: fairlead.Client, queue: str
):
    rows: list = []
    running = query.start(lambda frame, batch: rows.extend(frame.collect()), timeout="3m")
    put(client, queue, 5)
    wait_until("the first five are completed", lambda: client.stats(queue).totals.completed == 5)
    query.server.restart(kill=True)
    put(client, queue, 5, first=5)
    wait_until("all are completed", lambda: client.stats(queue).totals.completed == 5 or len(rows) == 10)
    wait_until("nothing is left in hand", lambda: client.stats(queue).leased == 0)
    assert running.isActive
    assert payloads([rows]) == list(range(10))
    assert running.exception() is None
