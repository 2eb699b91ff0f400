"""Streams into a queue: each micro-batch is published once, whatever is repeated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from tests.spark.scene import Scene, forget_commit, run, set_up

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with set_up(tmp_path_factory.mktemp("scene")) as made:
        yield made


@pytest.fixture
def queue(scene: Scene) -> str:
    return scene.new_queue()


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    folder = tmp_path / "inbox"
    folder.mkdir()
    return folder


def put(inbox: Path, name: str, *lines: str) -> None:
    hidden = inbox / f"_{name}"
    hidden.write_text("".join(f"{line}\n" for line in lines))
    hidden.rename(inbox / name)


def lines_of(spark: SparkSession, inbox: Path) -> DataFrame:
    """Each file is a micro-batch."""
    return (
        spark.readStream.option("maxFilesPerTrigger", 1)
        .text(str(inbox))
        .withColumnRenamed("value", "payload")
    )


def test_each_micro_batch_arrives_once_though_it_is_run_again(
    spark: SparkSession, scene: Scene, queue: str, inbox: Path, tmp_path: Path
) -> None:
    put(inbox, "1", "a", "b")
    put(inbox, "2", "c")
    checkpoint = tmp_path / "checkpoint"
    query = run(lines_of(spark, inbox).writeStream, checkpoint, **scene.options(queue))
    assert scene.client.stats(queue).ready == 3
    tokens = {write.token for write in scene.client.staging.list() if queue == write.queue}
    assert tokens == {f"{query.id}/0", f"{query.id}/1"}, (
        "the names Spark gives to query and micro-batch have changed"
    )

    forget_commit(checkpoint, 1)
    put(inbox, "3", "d")
    # Other tasks than in the first run: the token is that of the micro-batch.
    run(lines_of(spark, inbox).repartition(2).writeStream, checkpoint, **scene.options(queue))
    assert sorted(scene.payloads(queue)) == [b"a", b"b", b"c", b"d"]
    assert scene.staged() == []


def cursed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stages two chunks, then fails."""
    for _ in batches:
        for _ in range(20):
            yield pa.RecordBatch.from_pydict({"payload": [b"x" * 1_000_000]})
        raise ValueError("this row is cursed")


def test_what_a_failed_micro_batch_has_staged_is_never_seen_and_goes_when_it_is_run_again(
    spark: SparkSession, scene: Scene, queue: str, inbox: Path, tmp_path: Path
) -> None:
    put(inbox, "1", "a")
    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(StreamingQueryException, match="this row is cursed"):
        run(
            lines_of(spark, inbox).mapInArrow(cursed, "payload binary").writeStream,
            checkpoint,
            **scene.options(queue),
        )
    assert scene.client.stats(queue).ready == 0
    run(lines_of(spark, inbox).writeStream, checkpoint, **scene.options(queue))
    assert scene.payloads(queue) == [b"a"]
    assert scene.staged() == []


def test_refused_rows_of_a_stream_are_kept_once(
    spark: SparkSession, scene: Scene, queue: str, inbox: Path, tmp_path: Path
) -> None:
    rejects, checkpoint = tmp_path / "rejects", tmp_path / "checkpoint"
    put(inbox, "1", "good", "bad")
    for _ in range(2):
        rows = lines_of(spark, inbox).selectExpr("payload", "if(payload = 'bad', '', 'k') AS fairness_key")
        query = run(rows.writeStream, checkpoint, **scene.options(queue, rejects=rejects))
        kept = spark.read.parquet(str(rejects)).collect()
        assert [(row.payload, row.token) for row in kept] == [("bad", f"{query.id}/0")]
        assert scene.client.stats(queue).ready == 1
        forget_commit(checkpoint, 0)


def test_for_each_batch_writes_once_with_a_token_of_query_and_batch(
    spark: SparkSession, scene: Scene, queue: str, inbox: Path, tmp_path: Path
) -> None:
    put(inbox, "1", "a", "b")
    checkpoint = tmp_path / "checkpoint"
    other = scene.new_queue()

    def write(rows: DataFrame, batch: int) -> None:
        for to in (queue, other):
            options = scene.options(to, dedupeToken=f"copy-{batch}")
            rows.write.format("fairlead").options(**options).mode("append").save()

    for _ in range(2):
        run(lines_of(spark, inbox).writeStream.foreachBatch(write), checkpoint, None)
        assert scene.client.stats(queue).ready == scene.client.stats(other).ready == 2
        forget_commit(checkpoint, 0)


def test_only_new_rows_are_written_and_other_output_modes_go_through_for_each_batch(
    spark: SparkSession, scene: Scene, queue: str, inbox: Path, tmp_path: Path
) -> None:
    put(inbox, "1", "a", "b", "a")
    counts = (
        lines_of(spark, inbox).groupBy("payload").count().selectExpr("concat(payload, '=', count) AS payload")
    )
    # Spark passes complete mode to the sink as an overwrite, and refuses update mode for any Python sink by
    # itself.
    with pytest.raises(
        (StreamingQueryException, PySparkException), match=r'outputMode\("append"\), or a foreachBatch'
    ):
        run(counts.writeStream.outputMode("complete"), tmp_path / "complete", **scene.options(queue))
    with pytest.raises(StreamingQueryException, match="does not support Update mode"):
        run(counts.writeStream.outputMode("update"), tmp_path / "update", **scene.options(queue))
    assert scene.client.stats(queue).ready == 0

    def write(rows: DataFrame, batch: int) -> None:
        rows.write.format("fairlead").options(**scene.options(queue, dedupeToken=f"counts-{batch}")).mode(
            "append"
        ).save()

    run(counts.writeStream.outputMode("update").foreachBatch(write), tmp_path / "each", None)
    assert sorted(scene.payloads(queue)) == [b"a=2", b"b=1"]


def test_a_stream_has_tokens_of_its_own(
    spark: SparkSession, scene: Scene, queue: str, inbox: Path, tmp_path: Path
) -> None:
    put(inbox, "1", "a")
    with pytest.raises((StreamingQueryException, PySparkException), match="option dedupeToken"):
        run(
            lines_of(spark, inbox).writeStream,
            tmp_path / "checkpoint",
            **scene.options(queue, dedupeToken="mine"),
        )


def test_a_schema_that_does_not_fit_ends_the_query(
    spark: SparkSession, scene: Scene, queue: str, inbox: Path, tmp_path: Path
) -> None:
    put(inbox, "1", "a")
    rows = lines_of(spark, inbox).selectExpr("length(payload) AS payload")
    with pytest.raises(
        (StreamingQueryException, PySparkException), match="expected column 'payload' to be binary or string"
    ):
        run(rows.writeStream, tmp_path / "checkpoint", **scene.options(queue))
