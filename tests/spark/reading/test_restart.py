"""Queries that end in the middle and start again: they read the same rows, from the broker alone."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import fairlead
from tests.spark.reading.conftest import Query, wait_until
from tests.spark.reading.test_stream import payloads, put

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


class Sink:
    """Fails on one batch, after reading it."""

    def __init__(self, fails_on: int) -> None:
        self.fails_on = fails_on
        self.rows: list[Row] = []

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.rows = frame.collect()
        if batch == self.fails_on:
            raise RuntimeError("the sink is not there")


def test_a_batch_that_failed_is_read_again_as_it_was_with_other_slices_and_after_its_leases_would_be_over(
    query: Query, client: fairlead.Client, queue: str
):
    client.update_queue(queue, visibility_timeout="500ms")
    client.enqueue_many(queue, [fairlead.NewMessage(str(n).encode(), stream=f"s{n % 5}") for n in range(60)])
    sink = Sink(fails_on=1)
    assert "the sink is not there" in query.fail(sink, maxMessagesPerTrigger=25, numPartitions=2)
    now = client.stats(queue)
    assert (now.totals.completed, now.leased) == (25, 25), "the failed batch is still in hand"

    # An ordinary lease of the same length without heartbeats shows when this time has passed.
    client.create_queue(f"{queue}-other", visibility_timeout="500ms")
    client.enqueue(f"{queue}-other", b"x")
    with fairlead.connect(query.server.address, heartbeat_cap=None) as idle:
        (leased,) = idle.claim(f"{queue}-other")
        wait_until("an ordinary lease is over", lambda: idle.find(leased.id).where != "leased")
    query.server.restart(kill=True)

    batches = query.run(maxMessagesPerTrigger=1000, numPartitions=3)
    assert {row.id for row in batches[0]} == {row.id for row in sink.rows}
    for stream in {row.stream for row in sink.rows}:
        assert [row.payload for row in batches[0] if row.stream == stream] == [
            row.payload for row in sink.rows if row.stream == stream
        ]
    assert client.consumers.show(queue, queue).last_closed == 1 + len(batches)
    assert client.stats(queue).leased == 0


def test_a_query_without_its_checkpoint_reads_what_is_not_closed_and_nothing_twice_that_is(
    query: Query, client: fairlead.Client, queue: str
):
    put(client, queue, 30)
    query.fail(Sink(fails_on=1), maxMessagesPerTrigger=10)
    assert client.consumers.show(queue, queue).last_closed == 1
    shutil.rmtree(query.checkpoint)
    assert payloads(query.run()) == list(range(10, 30))
    assert client.stats(queue).totals.completed == 30


def test_a_released_claim_ends_the_query_with_what_to_do_and_can_be_done_without(
    query: Query, client: fairlead.Client, queue: str
):
    put(client, queue, 10)
    query.fail(Sink(fails_on=0))
    assert client.consumers.release(queue, queue) == 10
    said = query.fail()
    assert "ClaimReleased" in said
    assert "failOnDataLoss" in said
    batches = query.run(failOnDataLoss="false")
    assert [len(rows) for rows in batches] == [0, 10]
    assert payloads(batches) == list(range(10))
    assert client.stats(queue).totals.completed == 10


def test_a_dropped_consumer_ends_the_query_and_its_checkpoint_goes_on_only_when_told_to(
    query: Query, client: fairlead.Client, queue: str
):
    put(client, queue, 10)
    query.run()
    client.consumers.drop(queue, queue)
    put(client, queue, 10, first=10)
    assert "failOnDataLoss" in query.fail()
    assert payloads(query.run(failOnDataLoss="false")) == list(range(10, 20)), (
        "although its first claim has a number that was there before"
    )
    put(client, queue, 5, first=20)
    assert payloads(query.run()) == list(range(20, 25))
