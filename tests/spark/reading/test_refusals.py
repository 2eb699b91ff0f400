"""Wrong options and missing queues are refused with an error that names them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import fairlead
from fairlead.testing import ServerProcess, run_server
from fairlead.testing.server import free_ports
from tests.spark.reading.conftest import Query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def refusal(
    spark: SparkSession, endpoint: str, queue: str, *, schema: str | None = None, **options: Any
) -> str:
    reader = spark.read.format("fairlead").options(**{"endpoint": endpoint, **options})
    with pytest.raises(PySparkException) as refused:
        (reader.schema(schema) if schema else reader).load(queue).collect()
    return str(refused.value)


def test_an_unknown_option_is_refused_when_the_frame_is_made(spark: SparkSession, server: ServerProcess):
    with pytest.raises(PySparkException, match="did you mean numPartitions"):
        spark.read.format("fairlead").option("endpoint", server.address).option("numPartition", 2).load(
            "orders"
        )


def test_a_secret_in_an_option_is_refused_and_not_repeated(spark: SparkSession, server: ServerProcess):
    said = refusal(spark, server.address, "orders", apiKey="fl_very_secret")
    assert "apiKeyFile" in said
    assert "fl_very_secret" not in said


def test_a_wrong_schema_names_the_column_and_what_was_expected(
    spark: SparkSession, server: ServerProcess, queue: str
):
    said = refusal(spark, server.address, queue, schema="id string, queue int")
    assert "column 'queue' of the schema to be string" in said
    assert "got 'int'" in said


def test_a_queue_that_does_not_exist_is_named(spark: SparkSession, server: ServerProcess):
    said = refusal(spark, server.address, "no-such-queue")
    assert "QueueNotFound" in said
    assert "no-such-queue" in said


def test_a_broker_that_cannot_be_reached_is_named_after_the_time_allowed(spark: SparkSession):
    (port,) = free_ports(1)
    said = refusal(spark, f"127.0.0.1:{port}", "orders", timeout="500ms")
    assert "ServerUnreachable" in said
    assert f"127.0.0.1:{port}" in said


def test_a_stream_without_consumer_or_from_a_time_is_told_why(query: Query):
    given = {"endpoint": query.server.address}
    without = query.spark.readStream.format("fairlead").options(**given).load(query.queue)
    said = query.fail(frame=without)
    assert "option consumer" in said
    assert "UnboundLocalError" not in said, "it is not buried under an error of Spark's own"
    assert "no past to skip" in query.fail(startingFrom="2026-03-01T00:00:00Z")


def test_a_stream_of_a_queue_that_does_not_exist_or_of_a_broker_that_is_away_ends_with_its_name(query: Query):
    query.queue = "no-such-queue"
    assert "QueueNotFound" in query.fail()
    (port,) = free_ports(1)
    assert "ServerUnreachable" in query.fail(endpoint=f"127.0.0.1:{port}", timeout="500ms")


def test_a_wrong_key_is_refused_and_the_right_one_reads(spark: SparkSession, tmp_path: Path):
    with run_server(tmp_path / "data", settings={"auth.mode": "keys"}) as server:
        root = (tmp_path / "data" / "bootstrap.key").read_text().strip()
        with fairlead.connect(server.address, api_key=root) as client:
            client.create_queue("orders")
            client.enqueue("orders", b"x")
        wrong, right = tmp_path / "wrong.key", tmp_path / "right.key"
        wrong.write_text(root[:-1] + ("a" if root[-1] != "a" else "b"))
        right.write_text(root)
        assert "Unauthenticated" in refusal(spark, server.address, "orders", apiKeyFile=str(wrong))
        assert "Unauthenticated" in refusal(spark, server.address, "orders")
        read = (
            spark.read.format("fairlead")
            .option("endpoint", server.address)
            .option("apiKeyFile", str(right))
            .load("orders")
        )
        assert read.count() == 1
