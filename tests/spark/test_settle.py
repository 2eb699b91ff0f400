"""Rows that settle, end to end: read by a stream, recorded by rows, in effect when the claim is closed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from fairlead import FailureReason
from tests.spark.scene import Scene, forget_commit, run, set_up

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with set_up(tmp_path_factory.mktemp("scene")) as made:
        yield made


@pytest.fixture
def queue(scene: Scene) -> str:
    return scene.new_queue(retry={"policy": "fixed", "cooldown": "1h", "attempts": 3})


def put(scene: Scene, queue: str, *payloads: str) -> None:
    for payload in payloads:
        scene.client.enqueue(queue, payload.encode())


OUTCOME = """
    id, receipt,
    CASE WHEN payload LIKE 'bad%' THEN 'fail' WHEN payload LIKE 'later%' THEN 'release' ELSE 'complete' END AS outcome,
    CASE WHEN payload LIKE 'bad%' THEN 'validation_failure' END AS reason,
    CASE WHEN payload LIKE 'bad%' THEN concat('cannot read ', string(payload)) END AS error,
    payload = 'bad beyond repair' AS dead
"""


def outcomes(rows: DataFrame) -> DataFrame:
    """The outcomes of all rows that are not filtered out."""
    return rows.where("payload != 'unsettled'").selectExpr(*_split(OUTCOME))


def _split(text: str) -> list[str]:
    found, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            found.append(text[start:at])
            start = at + 1
    return [*found, text[start:]]


def settle(scene: Scene, queue: str) -> dict[str, str]:
    return scene.options(queue, operation="settle")


def test_each_row_says_what_becomes_of_its_message_and_the_others_are_completed(
    spark: SparkSession, scene: Scene, queue: str, tmp_path: Path
) -> None:
    put(scene, queue, "good", "bad", "bad beyond repair", "unsettled")
    run(
        outcomes(scene.reads(spark, queue, f"{queue}-etl")).writeStream,
        tmp_path / "checkpoint",
        **settle(scene, queue),
    )
    stats = scene.client.stats(queue)
    assert (stats.ready, stats.waiting, stats.leased, stats.dead) == (0, 1, 0, 1)
    assert stats.totals.completed == 2
    (dead,) = scene.client.claim(f"{queue}.dlq")
    assert dead.payload == b"bad beyond repair"
    assert [(failure.reason, failure.error) for failure in dead.failures] == [
        (FailureReason.VALIDATION_FAILURE, "cannot read bad beyond repair")
    ]


def test_what_is_released_comes_again_in_a_later_batch(
    spark: SparkSession, scene: Scene, queue: str, tmp_path: Path
) -> None:
    put(scene, queue, "later", "good")
    checkpoint = tmp_path / "checkpoint"
    run(outcomes(scene.reads(spark, queue, f"{queue}-etl")).writeStream, checkpoint, **settle(scene, queue))
    stats = scene.client.stats(queue)
    assert (stats.ready, stats.waiting, stats.leased) == (1, 0, 0)
    assert [(delivery.payload, delivery.attempts) for delivery in scene.client.claim(queue)] == [
        (b"later", 0)
    ]


def test_an_outcome_takes_effect_when_the_claim_is_closed_and_not_before(
    spark: SparkSession, scene: Scene, queue: str, tmp_path: Path
) -> None:
    put(scene, queue, "good", "bad", "bad beyond repair")
    seen = []

    def settle_and_look(rows: DataFrame, batch: int) -> None:
        outcomes(rows).write.format("fairlead").options(**settle(scene, queue)).mode("append").save()
        stats = scene.client.stats(queue)
        seen.append((stats.leased, stats.waiting, stats.dead, stats.totals.completed))

    run(
        scene.reads(spark, queue, f"{queue}-etl").writeStream.foreachBatch(settle_and_look),
        tmp_path / "checkpoint",
        None,
    )
    assert seen == [(3, 0, 0, 0)]
    stats = scene.client.stats(queue)
    assert (stats.leased, stats.waiting, stats.dead, stats.totals.completed) == (0, 1, 1, 1)


def test_a_batch_may_be_settled_in_several_writes(
    spark: SparkSession, scene: Scene, queue: str, tmp_path: Path
) -> None:
    put(scene, queue, "bad beyond repair", "later", "good", "bad")

    def settle_twice(rows: DataFrame, batch: int) -> None:
        said = outcomes(rows).persist()
        for outcome in ("fail", "release"):
            said.where(f"outcome = '{outcome}'").write.format("fairlead").options(
                **settle(scene, queue)
            ).mode("append").save()
        said.unpersist()

    run(
        scene.reads(spark, queue, f"{queue}-etl").writeStream.foreachBatch(settle_twice),
        tmp_path / "checkpoint",
        None,
    )
    stats = scene.client.stats(queue)
    assert (stats.ready, stats.waiting, stats.dead, stats.totals.completed) == (1, 1, 1, 1)


class DriverDied(Exception):
    pass


def test_a_batch_that_is_run_again_leaves_nothing_of_what_was_said_before(
    spark: SparkSession, scene: Scene, queue: str, tmp_path: Path
) -> None:
    """The first run's outcomes are forgotten, also for messages without a row in the second run."""
    put(scene, queue, "bad beyond repair", "good")
    checkpoint = tmp_path / "checkpoint"

    def settle_and_die(rows: DataFrame, batch: int) -> None:
        outcomes(rows).write.format("fairlead").options(**settle(scene, queue)).mode("append").save()
        raise DriverDied

    with pytest.raises(StreamingQueryException, match="DriverDied"):
        run(
            scene.reads(spark, queue, f"{queue}-etl").writeStream.foreachBatch(settle_and_die),
            checkpoint,
            None,
        )
    assert scene.client.stats(queue).leased == 2
    nothing_bad = outcomes(scene.reads(spark, queue, f"{queue}-etl").where("payload NOT LIKE 'bad%'"))
    run(nothing_bad.writeStream, checkpoint, **settle(scene, queue))
    stats = scene.client.stats(queue)
    assert (stats.leased, stats.dead, stats.totals.completed) == (0, 0, 2)


def test_what_a_task_has_said_that_failed_does_not_count(
    spark: SparkSession, scene: Scene, queue: str, tmp_path: Path
) -> None:
    put(scene, queue, "bad beyond repair", "good")
    checkpoint = tmp_path / "checkpoint"
    rows = scene.reads(spark, queue, f"{queue}-etl", numPartitions=1)
    broken = outcomes(rows).selectExpr(
        "id",
        "receipt",
        "outcome",
        "if(outcome = 'complete', 'x' || raise_error('no'), null) AS error",
        "dead",
    )
    with pytest.raises(StreamingQueryException):
        run(broken.writeStream, checkpoint, **settle(scene, queue))
    run(
        rows.where("false").select("id", "receipt").selectExpr("*", "'fail' AS outcome").writeStream,
        checkpoint,
        **settle(scene, queue),
    )
    assert scene.client.stats(queue).totals.completed == 2


def test_settling_twice_in_a_replay_is_settling_once(
    spark: SparkSession, scene: Scene, queue: str, tmp_path: Path
) -> None:
    """The claim of the last batch is closed by then, and stays closed."""
    put(scene, queue, "bad beyond repair")
    checkpoint = tmp_path / "checkpoint"
    rows = outcomes(scene.reads(spark, queue, f"{queue}-etl", failOnDataLoss="false"))
    run(rows.writeStream, checkpoint, **settle(scene, queue))
    forget_commit(checkpoint, 0)
    run(rows.writeStream, checkpoint, **settle(scene, queue))
    stats = scene.client.stats(queue)
    assert (stats.dead, stats.totals.failed) == (1, 1)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            "id, receipt, 'failed' AS outcome",
            "expected outcome to be complete, fail or release, got 'failed'",
        ),
        (
            "id, receipt, 'complete' AS outcome, 'why' AS error",
            "expected error to be null unless the outcome is fail",
        ),
        (
            "'7' AS id, receipt, 'complete' AS outcome",
            "expected id to be the id of a message, as it was read, got '7'",
        ),
        ("id, receipt, 'fail' AS outcome, 'bad luck' AS reason", "expected reason to be one of"),
        ("id, receipt", "expected column 'outcome' to be there"),
        ("id, receipt, 'complete' AS outcome, payload", "got 'payload'; remove it with .drop('payload')"),
    ],
)
def test_rows_that_cannot_settle_end_the_query_and_the_messages_stay(
    spark: SparkSession, scene: Scene, queue: str, tmp_path: Path, columns: str, said: str
) -> None:
    put(scene, queue, "good")
    rows = scene.reads(spark, queue, f"{queue}-etl").selectExpr(*_split(columns))
    with pytest.raises((StreamingQueryException, PySparkException)) as refused:
        run(rows.writeStream, tmp_path / "checkpoint", **settle(scene, queue))
    assert said in str(refused.value)
    assert scene.client.stats(queue).totals.completed == 0


def test_rows_of_a_batch_read_have_no_receipt_to_settle_with(
    spark: SparkSession, scene: Scene, queue: str
) -> None:
    put(scene, queue, "good")
    rows = (
        spark.read.format("fairlead")
        .options(**scene.options(queue))
        .load()
        .selectExpr("id", "receipt", "'complete' AS outcome")
    )
    with pytest.raises(PySparkException, match="a batch read claims nothing"):
        rows.write.format("fairlead").options(**settle(scene, queue)).mode("append").save()


def test_rows_of_a_claim_that_is_closed_are_refused(
    spark: SparkSession, scene: Scene, queue: str, tmp_path: Path
) -> None:
    put(scene, queue, "good")
    kept = str(tmp_path / "kept")
    rows = scene.reads(spark, queue, f"{queue}-etl").select("id", "receipt")
    run(rows.writeStream, tmp_path / "checkpoint", "parquet", path=kept)
    late = spark.read.parquet(kept).selectExpr("*", "'fail' AS outcome")
    with pytest.raises(PySparkException, match="ClaimClosed"):
        late.write.format("fairlead").options(**settle(scene, queue)).mode("append").save()
    assert scene.client.stats(queue).totals.completed == 1
