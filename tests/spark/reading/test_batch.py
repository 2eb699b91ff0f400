"""Batch reads with a real session and server: every message once, and nothing changes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

import fairlead
from fairlead.model.ids import find_id, id_time_ms
from fairlead.spark.data_source.schema import read_schema
from fairlead.testing import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def frame(spark: SparkSession, server: ServerProcess, queue: str):
    def frame(**options: object) -> DataFrame:
        return spark.read.format("fairlead").options(**{"endpoint": server.address, **options}).load(queue)

    return frame


def test_every_message_is_read_once_with_all_it_has_and_none_is_touched(
    frame, client: fairlead.Client, queue: str
):
    client.enqueue_many(
        queue,
        [
            fairlead.NewMessage(b"0"),
            fairlead.NewMessage(
                b"1",
                headers={"trace": "t1", "tenant": "a"},
                fairness_key="acme",
                weight=3,
                throttle_keys=["gpu"],
                stream="s",
            ),
            fairlead.NewMessage(b"2", delay="1h"),
        ],
    )
    (leased,) = client.claim(queue)
    before = client.stats(queue)
    read = frame(numPartitions=3)
    assert read.schema == read_schema()
    rows = {bytes(row.payload): row for row in read.collect()}
    assert sorted(rows) == [b"0", b"1", b"2"]
    full, plain = rows[b"1"], rows[b"2"]
    assert (full.headers, full.fairness_key, full.weight, full.throttle_keys, full.stream) == (
        {"trace": "t1", "tenant": "a"},
        "acme",
        3,
        ["gpu"],
        "s",
    )
    assert (
        plain.headers,
        plain.fairness_key,
        plain.weight,
        plain.throttle_keys,
        plain.stream,
        plain.seq,
    ) == ({}, "default", 1, [], None, None)
    assert {row.queue for row in rows.values()} == {queue}
    assert {row.receipt for row in rows.values()} == {None}
    assert rows[leased.payload].id == leased.id
    assert rows[leased.payload].deliveries == 1
    (enqueued_ms,) = {id_time_ms(find_id(leased.id) or b"")}
    assert abs(rows[leased.payload].enqueued_at.replace(tzinfo=UTC).timestamp() * 1000 - enqueued_ms) < 1000
    assert client.stats(queue) == before


def test_a_large_queue_is_cut_into_the_partitions_asked_for(frame, client: fairlead.Client, queue: str):
    from pyspark.sql.functions import spark_partition_id

    for start in range(0, 12_000, 4000):
        client.enqueue_many(queue, [fairlead.NewMessage(str(n).encode()) for n in range(start, start + 4000)])
    rows = (
        frame(numPartitions=4, includePayload="false")
        .select(spark_partition_id().alias("part"), "id", "payload")
        .collect()
    )
    assert len({row.id for row in rows}) == len(rows) == 12_000
    sizes = [sum(row.part == part for row in rows) for part in range(4)]
    assert all(1000 < size < 5000 for size in sizes), sizes
    assert {row.payload for row in rows} == {None}


def test_a_second_action_looks_again_and_plans_nothing_anew(frame, client: fairlead.Client, queue: str):
    client.enqueue_many(queue, [fairlead.NewMessage(b"x")] * 5)
    read = frame(numPartitions=2)
    assert read.count() == 5
    client.enqueue(queue, b"later")
    assert read.count() == 6, "it is no snapshot"
    assert read.where("payload = 'later'").count() == 1
    assert read.count() == 6, "an earlier filter has left nothing behind"


def test_messages_enqueued_before_a_time_are_left_out(frame, client: fairlead.Client, queue: str):
    first = client.enqueue(queue, b"first")
    # Wait for the next millisecond, so that the two have different times.
    second = client.enqueue(queue, b"second")
    while id_time_ms(find_id(second) or b"") == id_time_ms(find_id(first) or b""):
        second = client.enqueue(queue, b"second")
    start = datetime.fromtimestamp(id_time_ms(find_id(second) or b"") / 1000, UTC).isoformat()
    rows = frame(startingFrom=start, numPartitions=2).collect()
    assert first not in {row.id for row in rows}
    assert second in {row.id for row in rows}
    assert frame(startingFrom="earliest").count() == client.stats(queue).ready > len(rows)


def test_dead_letters_tell_how_they_died(spark: SparkSession, frame, client: fairlead.Client, queue: str):
    client.enqueue(queue, json.dumps({"n": 1}).encode(), headers={"trace": "t"})
    (delivery,) = client.claim(queue)
    client.settle([fairlead.Fail(delivery, "boom", fairlead.FailureReason.VALIDATION_FAILURE, dead=True)])
    assert frame().count() == 0
    read = frame(view="dead")
    assert read.schema == read_schema("dead")
    (row,) = read.collect()
    assert (row.id, row.source, row.queue, row.reason, row.error) == (
        delivery.id,
        queue,
        f"{queue}.dlq",
        "validation_failure",
        "boom",
    )
    assert row.headers == {"trace": "t"}
    assert [(failure.attempt, failure.reason, failure.error) for failure in row.failures] == [
        (1, "validation_failure", "boom")
    ]
    assert row.rule
    assert row.dead_since is not None
    assert read.selectExpr("get_json_object(string(payload), '$.n') AS n").collect()[0].n == "1"


def test_headers_and_payloads_that_are_not_wanted_are_null(frame, client: fairlead.Client, queue: str):
    client.enqueue(queue, b"x", headers={"a": "b"})
    (row,) = frame(includePayload="false", includeHeaders="false").collect()
    assert (row.payload, row.headers) == (None, None)


def test_an_empty_queue_has_no_rows(frame):
    assert frame(numPartitions=4).count() == 0


def test_a_session_can_be_told_of_the_source_by_hand(
    spark: SparkSession, frame, client: fairlead.Client, queue: str
):
    import fairlead.spark

    client.enqueue(queue, b"x")
    fairlead.spark.register(spark)
    assert frame().count() == 1
