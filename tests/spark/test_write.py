"""Batch writes with a real session and server: published rows, refused rows, and the state after a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import fairlead
from fairlead.testing import ServerProcess, run_server
from tests.spark.driver import run_driver
from tests.spark.scene import Scene, set_up

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with set_up(tmp_path_factory.mktemp("scene")) as made:
        yield made


@pytest.fixture
def server(scene: Scene) -> ServerProcess:
    return scene.server


@pytest.fixture
def client(scene: Scene) -> fairlead.Client:
    return scene.client


@pytest.fixture
def queue(scene: Scene) -> str:
    return scene.new_queue()


Write = Callable[..., None]


@pytest.fixture
def write(server: ServerProcess, queue: str) -> Write:
    def write(rows: DataFrame, **options: Any) -> None:
        mode = options.pop("mode", "append")
        writer = rows.write.format("fairlead").options(
            **{"endpoint": server.address, "queue": queue, **options}
        )
        (writer.mode(mode) if mode else writer).save()

    return write


def refusal_of(write: Write, rows: DataFrame, **options: Any) -> str:
    with pytest.raises(PySparkException) as refused:
        write(rows, **options)
    return str(refused.value)


def test_every_column_of_a_row_arrives_in_its_message(
    spark: SparkSession, client: fairlead.Client, queue: str, write: Write
) -> None:
    rows = spark.sql("""
        SELECT cast('a' AS binary) AS payload, map('kind', 'x', 'who', 'é') AS headers, 'k' AS fairness_key, 7 AS weight,
               array('t', 'u') AS throttle_keys, 's' AS stream, 'd' AS dedup_key, interval '1' hour AS ttl, '0s' AS delay
        UNION ALL SELECT cast('b' AS binary), null, null, null, null, null, null, null, null
        UNION ALL SELECT cast('c' AS binary), map(), null, null, array(), null, null, null, '1h'
    """)
    write(rows.coalesce(1))
    first, second = sorted(client.claim(queue, limit=10), key=lambda delivery: delivery.payload)
    assert (first.payload, first.headers, first.fairness_key, first.weight) == (
        b"a",
        {"kind": "x", "who": "é"},
        "k",
        7,
    )
    assert (first.throttle_keys, first.stream) == (("t", "u"), "s")
    assert (second.payload, second.headers, second.fairness_key, second.weight) == (b"b", {}, "default", 1)
    assert (second.throttle_keys, second.stream) == ((), None)
    assert client.stats(queue).waiting == 1
    again = spark.sql("SELECT 'a' AS payload, 'd' AS dedup_key, interval '3' day AS delay")
    write(again)
    assert client.stats(queue).waiting == 1, "its dedup key was there already"


def test_rows_come_out_in_the_order_of_partitions_and_of_rows_in_them(
    spark: SparkSession, scene: Scene, queue: str, write: Write
) -> None:
    write(spark.range(0, 20_000, 1, 4).selectExpr("cast(id AS string) AS payload"))
    assert scene.payloads(queue) == [str(number).encode() for number in range(20_000)]


def test_a_partition_larger_than_a_chunk_arrives_whole(
    spark: SparkSession, scene: Scene, client: fairlead.Client, queue: str, write: Write
) -> None:
    rows = spark.range(0, 3_000, 1, 1).selectExpr("concat(cast(id AS string), repeat('x', 10000)) AS payload")
    write(rows)
    published = [write for write in client.staging.list() if queue == write.queue]
    assert [(write.published, write.messages, write.chunks) for write in published] == [(True, 3_000, 4)]
    found = scene.payloads(queue)
    assert [int(payload[:-10_000]) for payload in found] == [*range(3_000)]


def test_the_queue_may_be_named_in_save(
    spark: SparkSession, scene: Scene, server: ServerProcess, queue: str
) -> None:
    spark.sql("SELECT 'a' AS payload").write.format("fairlead").option("endpoint", server.address).mode(
        "append"
    ).save(queue)
    assert scene.payloads(queue) == [b"a"]


def test_a_write_without_rows_is_no_failure(
    spark: SparkSession, client: fairlead.Client, queue: str, write: Write
) -> None:
    write(spark.sql("SELECT 'a' AS payload WHERE false"))
    write(spark.createDataFrame([], "payload string"))
    assert client.stats(queue).ready == 0


def test_a_second_write_with_the_same_dedupe_token_does_nothing(
    spark: SparkSession, scene: Scene, client: fairlead.Client, queue: str, write: Write
) -> None:
    rows = spark.range(100).selectExpr("cast(id AS string) AS payload")
    write(rows, dedupeToken="monday")
    write(rows, dedupeToken="monday")
    assert client.stats(queue).ready == 100
    write(rows, dedupeToken="tuesday")
    assert client.stats(queue).ready == 200
    assert scene.staged() == []


def test_a_dedupe_token_is_of_its_queue(
    spark: SparkSession, scene: Scene, client: fairlead.Client, queue: str, write: Write
) -> None:
    """A foreachBatch that writes to two queues may use one token for both."""
    client.create_queue(f"{queue}-other")
    rows = spark.sql("SELECT 'a' AS payload")
    write(rows, dedupeToken="monday")
    write(rows, dedupeToken="monday", queue=f"{queue}-other")
    assert scene.payloads(f"{queue}-other") == [b"a"]


def test_two_writes_without_a_token_are_two(
    spark: SparkSession, client: fairlead.Client, queue: str, write: Write
) -> None:
    rows = spark.sql("SELECT 'a' AS payload")
    write(rows)
    write(rows)
    assert client.stats(queue).ready == 2


def cursed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows for three chunks, then a failure."""
    for _ in batches:
        for _ in range(30):
            yield pa.RecordBatch.from_pydict({"payload": [b"x" * 1_000_000]})
        raise ValueError("this row is cursed")


def test_a_failing_task_leaves_nothing_to_be_seen_and_nothing_staged(
    spark: SparkSession, scene: Scene, client: fairlead.Client, queue: str, write: Write
) -> None:
    good = spark.range(0, 10, 1, 1).selectExpr("cast('good' AS binary) AS payload")
    rows = good.union(spark.range(0, 1, 1, 1).mapInArrow(cursed, "payload binary"))
    # One task only: of several tasks, one may continue for a moment after the abort, and its staged rows
    # stay until they expire.
    assert "this row is cursed" in refusal_of(write, rows.coalesce(1))
    assert client.stats(queue).ready == 0
    assert scene.staged() == []


_RETRIED = """
import json, os, sys
import pyarrow as pa
import fairlead.spark
from pyspark import TaskContext

def fail_once(batches):
    first = TaskContext.get().attemptNumber() == 0
    for batch in batches:
        ids = batch.column("id").to_pylist()
        for number in ids:
            yield pa.RecordBatch.from_pydict({"payload": [f"{number} ".encode() + b"x" * 1_000_000]})
        if first and TaskContext.get().partitionId() == 1:
            raise ValueError("a bad moment")

spark = fairlead.spark.session(master="local[2,3]")
rows = spark.range(0, 40, 1, 2).mapInArrow(fail_once, "payload binary")
rows.write.format("fairlead").options(endpoint=sys.argv[1], queue=sys.argv[2]).mode("append").save()
spark.stop()
"""


def test_a_task_that_is_tried_again_stages_anew_and_what_it_staged_before_is_not_published(
    scene: Scene, server: ServerProcess, queue: str, tmp_path: Path
) -> None:
    run_driver(tmp_path, _RETRIED, "local[2,3]", server.address, queue)
    assert [int(payload.split()[0]) for payload in scene.payloads(queue)] == [*range(40)]
    assert scene.staged() == []


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT 1 AS payload", "expected column 'payload' to be binary or string in rows to write, got int"),
        (
            "SELECT 'a' AS payload, '7' AS weight",
            "expected column 'weight' to be int in rows to write, got string",
        ),
        (
            "SELECT 'a' AS payload, 30 AS delay",
            """expected column 'delay' to be an interval day to second, or text such as "30s" in rows to write""",
        ),
        ("SELECT 'a' AS payload, 'k' AS fairnesskey", "got 'fairnesskey'; did you mean 'fairness_key'?"),
        ("SELECT 'k' AS stream", "expected column 'payload' to be there"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_before_any_task(
    spark: SparkSession, write: Write, query: str, said: str
) -> None:
    assert said in refusal_of(write, spark.sql(query))


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (
            "SELECT cast(null AS string) AS payload, 'k7' AS fairness_key",
            "no payload, fairness_key='k7': expected payload to be binary or string",
        ),
        (
            "SELECT repeat('x', 16777217) AS payload, 'k7' AS stream",
            "stream='k7': expected payload to be at most 16777216 bytes, got 16777217 bytes",
        ),
        (
            "SELECT 'a' AS payload, repeat('k', 513) AS fairness_key",
            "expected fairness_key to be at most 512 bytes, got '513 bytes'",
        ),
        ("SELECT 'a' AS payload, '' AS stream", "expected stream to be text that is not empty"),
        (
            "SELECT 'a' AS payload, array('t', null) AS throttle_keys",
            "expected throttle_keys to be text that is not empty",
        ),
        ("SELECT 'a' AS payload, 'soon' AS delay", "expected delay to be a duration"),
        (
            "SELECT 'a' AS payload, map('a', cast(null AS string)) AS headers",
            "expected headers['a'] to be text",
        ),
    ],
)
def test_a_row_that_is_no_message_fails_the_write_and_is_named_by_its_keys(
    spark: SparkSession,
    scene: Scene,
    client: fairlead.Client,
    queue: str,
    write: Write,
    query: str,
    said: str,
) -> None:
    good = spark.range(100).selectExpr("'fine' AS payload")
    bad = spark.sql(query)
    message = refusal_of(write, good.unionByName(bad, allowMissingColumns=True).coalesce(1))
    assert said in message
    assert "1 row is not" in message
    assert '.option("rejects", "/shared/folder")' in message
    assert "xxxxxxxxxx" not in message
    assert client.stats(queue).ready == 0
    assert scene.staged() == []


def test_refused_rows_go_to_the_rejects_folder_and_the_others_to_the_queue(
    spark: SparkSession, client: fairlead.Client, queue: str, write: Write, tmp_path: Path
) -> None:
    rows = spark.range(0, 1000, 1, 2).selectExpr(
        "CASE WHEN id % 100 = 1 THEN null ELSE cast(id AS string) END AS payload",
        "CASE WHEN id % 100 = 2 THEN repeat('k', 600) ELSE 'k' END AS fairness_key",
        "CASE WHEN id % 100 = 3 THEN make_dt_interval(0, 0, 0, -1) ELSE make_dt_interval(0, 0, 0, 0) END AS delay",
        "map('number', cast(id AS string)) AS headers",
    )
    for _ in range(2):
        write(rows, rejects=str(tmp_path), dedupeToken="monday")
        kept = spark.read.parquet(str(tmp_path))
        assert kept.count() == 30
        assert client.stats(queue).ready == 970
    assert {field.name: field.dataType.simpleString() for field in kept.schema} == {
        "payload": "string",
        "fairness_key": "string",
        "delay": "interval day to second",
        "headers": "map<string,string>",
        "error": "string",
        "token": "string",
    }
    found = {int(row.headers["number"]): row for row in kept.collect()}
    assert {number % 100 for number in found} == {1, 2, 3}
    assert found[101].error == "expected payload to be binary or string, got null"
    assert found[102].error == "expected fairness_key to be at most 512 bytes, got '600 bytes'"
    assert (found[103].error, found[103].delay) == (
        "expected delay to be a duration between 0 and 10 years, got -1000000 microseconds",
        timedelta(seconds=-1),
    )
    assert found[102].token == f"{queue}/monday"
    assert not [*(tmp_path / "_staged").iterdir()]


def test_a_write_of_nothing_but_refused_rows_keeps_them(
    spark: SparkSession, client: fairlead.Client, queue: str, write: Write, tmp_path: Path
) -> None:
    write(spark.range(3).selectExpr("cast(null AS binary) AS payload"), rejects=str(tmp_path))
    assert spark.read.parquet(str(tmp_path)).count() == 3
    assert client.stats(queue).ready == 0


def test_rows_of_a_write_that_failed_are_not_kept_as_refused(
    spark: SparkSession, queue: str, write: Write, tmp_path: Path
) -> None:
    bad = spark.range(0, 1, 1, 1).selectExpr("cast(null AS binary) AS payload")
    rows = bad.union(spark.range(0, 1, 1, 1).mapInArrow(cursed, "payload binary"))
    assert "this row is cursed" in refusal_of(write, rows.coalesce(1), rejects=str(tmp_path))
    assert not [*tmp_path.rglob("*.parquet")]


def test_a_queue_that_is_not_there_is_named(spark: SparkSession, write: Write) -> None:
    assert "expected queue 'nowhere' to exist" in refusal_of(
        write, spark.sql("SELECT 'a' AS payload"), queue="nowhere"
    )


def test_to_overwrite_a_queue_is_refused_with_what_to_do_instead(spark: SparkSession, write: Write) -> None:
    message = refusal_of(write, spark.sql("SELECT 'a' AS payload"), mode="overwrite")
    assert 'mode("append")' in message
    assert "fairlead queue purge" in message


def test_without_a_mode_spark_itself_says_which_there_are(
    spark: SparkSession, client: fairlead.Client, queue: str, write: Write
) -> None:
    """Spark's default mode fails for existing data, before it asks the sink."""
    message = refusal_of(write, spark.sql("SELECT 'a' AS payload"), mode="")
    assert '"fairlead"' in message
    assert '"Append"' in message
    assert client.stats(queue).ready == 0


def test_a_server_that_cannot_be_reached_fails_the_write_once_the_timeout_is_over(
    spark: SparkSession, write: Write
) -> None:
    from fairlead.testing.server import free_ports

    endpoint = f"127.0.0.1:{free_ports(1)[0]}"
    message = refusal_of(write, spark.sql("SELECT 'a' AS payload"), endpoint=endpoint, timeout="1s")
    assert "ServerUnreachable" in message
    assert endpoint in message


def test_a_key_that_may_not_produce_is_refused_and_a_good_one_writes(
    spark: SparkSession, tmp_path: Path
) -> None:
    with run_server(tmp_path / "data", settings={"durability": "os", "auth.mode": "keys"}) as locked:
        admin = (locked.data / "bootstrap.key").read_text().strip()
        with fairlead.connect(locked.address, api_key=admin) as client:
            client.create_queue("orders")
            files = {}
            for name, grants in (("reader", ["consume:orders"]), ("writer", ["produce:orders"])):
                files[name] = tmp_path / name
                files[name].write_text(client.keys.create(name, grants=grants).secret)
            files["stranger"] = tmp_path / "stranger"
            files["stranger"].write_text("fl_" + "a" * 12 + "_" + "b" * 43)

            def write(key: str) -> None:
                options = {"endpoint": locked.address, "queue": "orders", "apiKeyFile": str(files[key])}
                spark.sql("SELECT 'a' AS payload").write.format("fairlead").options(**options).mode(
                    "append"
                ).save()

            with pytest.raises(PySparkException, match="expected a key with produce on 'orders'"):
                write("reader")
            with pytest.raises(PySparkException, match="expected a valid API key"):
                write("stranger")
            assert client.stats("orders").ready == 0
            write("writer")
            assert client.stats("orders").ready == 1


def test_options_that_belong_to_a_read_are_refused(spark: SparkSession, write: Write) -> None:
    assert "option consumer" in refusal_of(write, spark.sql("SELECT 'a' AS payload"), consumer="etl")
