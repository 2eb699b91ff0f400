"""`quarantine` and `returned` with a real session and server: each bad row becomes one dead letter, whatever
Spark repeats, and returns unchanged.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql import types as t

import fairlead
from fairlead.errors import InvalidRequest
from fairlead.spark import quarantine, returned
from tests.spark.scene import PATIENCE_S, Scene, forget_commit, run, set_up

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with set_up(tmp_path_factory.mktemp("scene")) as made:
        yield made


@pytest.fixture
def queue(scene: Scene) -> str:
    return scene.new_queue()


def dead(scene: Scene, queue: str) -> list[fairlead.Delivery]:
    found = scene.client.claim(f"{queue}.dlq", limit=100_000)
    scene.client.settle([fairlead.Release(one) for one in found])
    return found


def dead_ids(scene: Scene, queue: str) -> list[int]:
    return sorted(json.loads(one.payload)["id"] for one in dead(scene, queue))


def numbers(spark: SparkSession, count: int = 1000, partitions: int = 4) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr("id", "if(id % 100 = 7, null, id) AS amount")


SEVENS = list(range(7, 1000, 100))


def test_rows_for_which_a_condition_is_not_true_are_dead_letters_once(
    spark: SparkSession, scene: Scene, queue: str
) -> None:
    """The DataFrame is evaluated several times, with its partitions in different tasks."""
    rows = numbers(spark)
    good = quarantine(
        rows, f.col("amount") < 995, queue=queue, endpoint=scene.server.address, fairness_key=f.col("id") % 2
    )
    assert scene.client.stats(f"{queue}.dlq").ready == 0, "nothing was asked for yet"
    assert good.schema == rows.schema
    assert good.count() == 985
    assert good.union(good).union(rows).count() == 2 * 985 + 1000
    assert good.coalesce(1).count() == 985
    assert good.join(good, "id").count() == 985
    found = dead(scene, queue)
    assert dead_ids(scene, queue) == [*SEVENS, *range(995, 1000)]
    told = {json.loads(one.payload)["id"]: (one.failures[-1].error, one.fairness_key) for one in found}
    assert told[7] == ("<(amount, 995) is null", "1")
    assert told[998] == ("<(amount, 995) is false", "0")
    assert found[0].headers["fairlead-check"] == "<(amount, 995)"


def test_another_call_is_other_work_unless_it_has_the_same_token(
    spark: SparkSession, scene: Scene, queue: str
) -> None:
    for _ in range(2):
        quarantine(
            numbers(spark),
            "amount IS NOT NULL",
            queue=queue,
            endpoint=scene.server.address,
            dedupe_token="monday",
        ).count()
    assert dead_ids(scene, queue) == SEVENS
    quarantine(numbers(spark), "amount IS NOT NULL", queue=queue, endpoint=scene.server.address).count()
    assert len(dead_ids(scene, queue)) == 20


def test_functions_of_rows_and_of_batches(spark: SparkSession, scene: Scene) -> None:
    def by_row(row: dict[str, Any]) -> str | None:
        if row["id"] == 13:
            raise ValueError("thirteen")
        return None if row["amount"] is not None else f"{row['id']} has no amount"

    def by_batch(batch: pa.RecordBatch) -> Any:
        return batch.column("amount").is_valid()

    by_batch.__annotations__["batch"] = pa.RecordBatch
    rows, other = scene.new_queue(), scene.new_queue()
    assert quarantine(numbers(spark), by_row, queue=rows, endpoint=scene.server.address).count() == 989
    assert (
        quarantine(
            numbers(spark), by_batch, queue=other, endpoint=scene.server.address, reason="poison_message"
        ).count()
        == 990
    )
    told = {
        json.loads(one.payload)["id"]: (one.failures[-1].reason, one.failures[-1].error)
        for one in dead(scene, rows)
    }
    assert told[13] == (2, "ValueError: thirteen")
    assert told[107] == (3, "107 has no amount")
    assert dead_ids(scene, other) == SEVENS
    assert {one.failures[-1].reason for one in dead(scene, other)} == {7}


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(name, "10")
    yield
    spark.conf.unset(name)


@pytest.mark.usefixtures("small_batches")
def test_an_action_that_stops_early_leaves_nothing_of_a_partition_it_has_not_read(
    spark: SparkSession, scene: Scene, queue: str
) -> None:
    wide = spark.range(0, 4000, 1, 2).selectExpr("id", "repeat('x', 3000) AS text")
    good = quarantine(wide, "id % 2 = 0", queue=queue, endpoint=scene.server.address)
    for count in (1, 30, 300):
        assert len(good.select("id").limit(count).collect()) == count
    assert dead_ids(scene, queue) == []
    assert good.count() == 2000
    assert dead_ids(scene, queue) == list(range(1, 4000, 2))


@pytest.mark.usefixtures("small_batches")
def test_a_task_whose_rows_fail_to_come_leaves_nothing(
    spark: SparkSession, scene: Scene, queue: str, tmp_path: Path
) -> None:
    """All earlier rows are bad, so Spark has no unread rows when it closes the connection, which looks like
    the end of the rows.
    """
    workers = tmp_path / "workers"
    workers.mkdir()

    def check(row: dict[str, Any]) -> bool:
        (workers / str(os.getpid())).touch()
        return False

    broken = spark.range(0, 4000, 1, 1).selectExpr(
        "id", "repeat('x', 3000) AS text", "if(id = 3000, raise_error('no more'), 1) AS one"
    )
    with pytest.raises(PySparkException, match="no more"):
        quarantine(broken, check, queue=queue, endpoint=scene.server.address).count()
    # Spark does not wait for a worker whose connection it has closed.
    (worker,) = [int(one.name) for one in workers.iterdir()]
    wait_for_end(worker)
    assert dead_ids(scene, queue) == []


def wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.02)


def test_partitions_that_are_cut_otherwise_lose_no_row_and_those_of_a_cache_stay_as_they_are(
    spark: SparkSession, scene: Scene
) -> None:
    lost, cached = scene.new_queue(), scene.new_queue()
    shuffled = (
        spark.range(0, 1000, 1, 4)
        .selectExpr("reverse(string(id)) AS di", "id")
        .groupBy("di")
        .agg(f.max("id").alias("id"))
    )
    plain = quarantine(shuffled, "id % 10 > 0", queue=lost, endpoint=scene.server.address)
    kept = quarantine(shuffled, "id % 10 > 0", queue=cached, endpoint=scene.server.address).cache()
    # Spark may do this by itself when its executors change.
    many = "spark.sql.shuffle.partitions"
    before = spark.conf.get(many)
    try:
        for count in ("2", "3"):
            spark.conf.set(many, count)
            spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
            assert plain.count() == kept.count() == 900
    finally:
        spark.conf.set(many, before)
        spark.conf.unset("spark.sql.adaptive.coalescePartitions.enabled")
        kept.unpersist()
    assert set(dead_ids(scene, lost)) == set(range(0, 1000, 10))
    assert len(dead_ids(scene, lost)) > 100, (
        "this test is about partitions that are not the same the second time"
    )
    assert dead_ids(scene, cached) == list(range(0, 1000, 10))


def orders(spark: SparkSession, inbox: Path) -> DataFrame:
    return spark.readStream.option("maxFilesPerTrigger", 1).schema("id LONG, amount INT").json(str(inbox))


def put(inbox: Path, name: str, ids: range) -> None:
    inbox.mkdir(exist_ok=True)
    (inbox / name).write_text("\n".join(json.dumps({"id": number, "amount": number % 10}) for number in ids))


def test_a_micro_batch_that_is_replayed_gives_its_bad_rows_once(
    spark: SparkSession, scene: Scene, queue: str, tmp_path: Path
) -> None:
    other, checkpoint = scene.new_queue(), tmp_path / "checkpoint"
    put(tmp_path / "inbox", "1", range(50))
    put(tmp_path / "inbox", "2", range(50, 100))
    for _ in range(2):
        # Two checks in one query: the second never sees bad rows of the first.
        first = quarantine(
            orders(spark, tmp_path / "inbox"), "amount <> 3", queue=queue, endpoint=scene.server.address
        )
        good = quarantine(first, lambda row: row["amount"] != 4, queue=other, endpoint=scene.server.address)
        run(good.writeStream.queryName("sieve"), checkpoint, "parquet", path=str(tmp_path / "out"))
        forget_commit(checkpoint, 1)
    assert dead_ids(scene, queue) == list(range(3, 100, 10))
    assert dead_ids(scene, other) == list(range(4, 100, 10))
    assert spark.read.parquet(str(tmp_path / "out")).count() == 80


def test_in_a_for_each_batch_the_batch_is_the_token(
    spark: SparkSession, scene: Scene, queue: str, tmp_path: Path
) -> None:
    put(tmp_path / "inbox", "1", range(50))
    checkpoint, counts = tmp_path / "checkpoint", []

    def work(batch: DataFrame, _number: int) -> None:
        counts.append(quarantine(batch, "amount <> 3", queue=queue, endpoint=scene.server.address).count())

    for _ in range(2):
        run(orders(spark, tmp_path / "inbox").writeStream.foreachBatch(work), checkpoint, None)
        forget_commit(checkpoint, 0)
    assert counts == [45, 45]
    assert dead_ids(scene, queue) == list(range(3, 50, 10))


def test_what_is_fixed_comes_back_through_the_same_job(
    spark: SparkSession, scene: Scene, queue: str, tmp_path: Path
) -> None:
    put(tmp_path / "inbox", "1", range(50))
    where = {"queue": queue, "endpoint": scene.server.address}

    def job(check: str) -> None:
        rows = orders(spark, tmp_path / "inbox")
        both = rows.unionByName(returned(spark, queue, schema=rows.schema, endpoint=scene.server.address))
        run(
            quarantine(both, check, **where).writeStream,
            tmp_path / "checkpoint",
            "parquet",
            path=str(tmp_path / "out"),
        )

    job("amount < 8")
    assert dead_ids(scene, queue) == [8, 9, 18, 19, 28, 29, 38, 39, 48, 49]
    scene.client.redrive(queue)
    job("amount < 9")
    assert dead_ids(scene, queue) == [9, 19, 29, 39, 49], "what is still bad is a dead letter again"
    assert sorted(row.id for row in spark.read.parquet(str(tmp_path / "out")).collect()) == [
        n for n in range(50) if n % 10 != 9
    ]
    assert scene.client.stats(queue).ready == scene.client.stats(queue).leased == 0


def test_what_is_no_row_is_a_dead_letter_again_and_ends_nothing(
    spark: SparkSession, scene: Scene, queue: str, tmp_path: Path
) -> None:
    wrong = [b"", b"no json", b'{"id": "seven"}', b"[1]", b"\xff\xfe"]
    scene.client.enqueue_many(
        queue, [fairlead.NewMessage(one) for one in [*wrong, b'{"id": 7}', b'{"id": null, "more": 1}']]
    )
    rows: list[Any] = []
    back = returned(
        spark, queue, schema="id INT", endpoint=scene.server.address, message="about", num_partitions="2"
    )
    run(
        back.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect())),
        tmp_path / "checkpoint",
        None,
    )
    assert sorted((row.id for row in rows), key=str) == [7, None]
    assert all(row.about.id and row.about.headers == {} for row in rows)
    found = dead(scene, queue)
    assert sorted(one.payload for one in found) == sorted(wrong)
    assert {one.failures[-1].reason for one in found} == {5}


def test_a_row_of_any_schema_comes_back_as_it_was(
    spark: SparkSession, scene: Scene, queue: str, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(1 << 31)
    rng = random.Random(seed)
    schema = t.StructType([t.StructField("n", t.LongType())])
    for at in range(60):
        schema.add(
            f"c{at}" if at % 7 else f"odd name. {at}`é", LEAVES[at] if at < len(LEAVES) else any_type(rng, 3)
        )
    data = [
        (n, *(any_value(rng, field.dataType, empty=n < 2) for field in schema.fields[1:])) for n in range(60)
    ]
    # Spark has years after 9999, and Python has not.
    far = (
        "date'+12345-06-07' AS far_day",
        "timestamp'+12345-06-07 08:09:10.000011' AS far_time",
        "date'-0044-03-15' AS ides",
    )
    rows = spark.createDataFrame(data, schema).selectExpr("*", *far).localCheckpoint()
    assert quarantine(rows, f.lit(False), queue=queue, endpoint=scene.server.address).count() == 0
    assert scene.client.redrive(queue).moved == 60
    back = returned(spark, queue, schema=rows.schema, endpoint=scene.server.address)
    run(back.writeStream, tmp_path / "checkpoint", "memory", queryName="came_back")
    came = spark.table("came_back")
    quoted = ["`{}`".format(name.replace("`", "``")) for name in schema.names]
    shown = [*map(f.col, quoted), *(f.col(one).cast("string") for one in ("far_day", "far_time", "ides"))]
    for one, other in zip(
        rows.select(*shown).orderBy("n").collect(), came.select(*shown).orderBy("n").collect(), strict=True
    ):
        for name, left, right in zip(one.__fields__, one, other, strict=True):
            assert repr(left) == repr(right), f"column {name} of row {one.n}, seed {seed}"
    assert came.schema.simpleString() == rows.schema.simpleString()
    spark.sql("DROP VIEW came_back")


@pytest.mark.parametrize(
    ("column", "more", "match"),
    [
        ("parse_json('1') AS v", {}, "column 'v' to be of a type that JSON can represent"),
        ("array(interval '1' month) AS v", {}, "column 'v' to be of a type"),
        ("1 AS id", {}, "to be unique"),
        ("named_struct('a', 1, 'a', 2) AS v", {}, "to be unique"),
        ("1 AS v", {"reason": "bad"}, "expected reason to be one of"),
        ("1 AS v", {"consumer": "x"}, "left out of a quarantine"),
        ("1 AS v", {"dedupe_token": "x" * 129}, "dedupe_token"),
        ("1 AS v", {"name": ""}, "name"),
        ("1 AS v", {"headers": {"a": 1}}, "text to text"),
        ("1 AS v", {"api_key_fil": "x"}, "did you mean apiKeyFile"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(
    spark: SparkSession, column: str, more: dict[str, Any], match: str
) -> None:
    with pytest.raises(InvalidRequest, match=match):
        quarantine(
            spark.range(1).selectExpr("id", column),
            "true",
            **{"queue": "q", "endpoint": "127.0.0.1:1", **more},
        )


def test_a_check_that_is_none_and_a_token_for_a_stream_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    where = {"queue": "q", "endpoint": "127.0.0.1:1"}
    with pytest.raises(InvalidRequest, match="a condition"):
        quarantine(spark.range(1), 5, **where)  # type: ignore[arg-type]
    put(tmp_path / "inbox", "1", range(1))
    with pytest.raises(InvalidRequest, match="left out for a stream"):
        quarantine(orders(spark, tmp_path / "inbox"), "true", dedupe_token="x", **where)
    with pytest.raises(InvalidRequest, match="no column of the rows"):
        returned(spark, "q", schema="id INT", endpoint="127.0.0.1:1", message="id")


# Random types and values

LEAVES: list[t.DataType] = [
    t.StringType(),
    t.BinaryType(),
    t.BooleanType(),
    t.ByteType(),
    t.ShortType(),
    t.IntegerType(),
    t.LongType(),
    t.FloatType(),
    t.DoubleType(),
    t.DecimalType(38, 18),
    t.DecimalType(5, 0),
    t.DateType(),
    t.TimestampType(),
    t.TimestampNTZType(),
    t.DayTimeIntervalType(),
    t.DayTimeIntervalType(0, 0),
    t.DayTimeIntervalType(1, 2),
]
KEYS = [one for one in LEAVES if not isinstance(one, (t.BinaryType, t.FloatType, t.DoubleType))]


def any_type(rng: random.Random, depth: int) -> t.DataType:
    kind = rng.choice(["leaf", "array", "map", "struct"]) if depth else "leaf"
    if kind == "array":
        return t.ArrayType(any_type(rng, depth - 1))
    if kind == "map":
        return t.MapType(rng.choice([t.StringType(), rng.choice(KEYS)]), any_type(rng, depth - 1))
    if kind == "struct":
        return t.StructType(
            [t.StructField(f"{at}. field", any_type(rng, depth - 1)) for at in range(rng.randint(1, 3))]
        )
    return rng.choice(LEAVES)


def any_value(rng: random.Random, kind: t.DataType, *, empty: bool = False, null: bool = True) -> Any:
    """`empty`: null, or the shortest value."""
    if null and rng.random() < (0.5 if empty else 0.1):
        return None
    if isinstance(kind, t.ArrayType):
        return [any_value(rng, kind.elementType) for _ in range(0 if empty else rng.randint(0, 3))]
    if isinstance(kind, t.MapType):
        return {
            any_value(rng, kind.keyType, null=False): any_value(rng, kind.valueType)
            for _ in range(0 if empty else rng.randint(0, 3))
        }
    if isinstance(kind, t.StructType):
        return tuple(any_value(rng, field.dataType, empty=empty) for field in kind.fields)
    return VALUES[type(kind)](rng, kind)


def whole(bits: int) -> Callable[[random.Random, Any], int]:
    return lambda rng, _: rng.choice([-(1 << bits - 1), (1 << bits - 1) - 1, 0, rng.randint(-100, 100)])


def any_float(rng: random.Random, kind: Any) -> float:
    wild = [
        float("nan"),
        float("inf"),
        float("-inf"),
        -0.0,
        5e-324,
        1.7976931348623157e308,
        rng.uniform(-1, 1),
        rng.uniform(-1e300, 1e300),
    ]
    return rng.choice(wild)


def any_decimal(rng: random.Random, kind: Any) -> Decimal:
    return (
        Decimal(rng.randint(-(10**kind.precision) + 1, 10**kind.precision - 1)).scaleb(-kind.scale)
        if rng.random() < 0.8
        else Decimal(0)
    )


def any_interval(rng: random.Random, kind: Any) -> timedelta:
    unit = [timedelta(days=1), timedelta(hours=1), timedelta(minutes=1), timedelta(microseconds=1)][
        kind.endField
    ]
    return rng.randint(-10_000, 10_000) * unit


def any_time(rng: random.Random, _kind: Any) -> datetime:
    return datetime(1, 1, 2) + timedelta(microseconds=rng.randint(0, 9_997 * 365 * 86_400_000_000))  # noqa: DTZ001 - as Spark gives them


VALUES: dict[type[t.DataType], Callable[[random.Random, Any], Any]] = {
    t.StringType: lambda rng, _: rng.choice(
        ["", "a", '"\\/\n\t\0', "é𝄞\u2028", "null", "NaN", "1", "{}", " 2024-01-01 ", "x" * 300]
    ),
    t.BinaryType: lambda rng, _: bytearray(rng.randbytes(rng.choice([0, 1, 2, 3, 50]))),
    t.BooleanType: lambda rng, _: rng.random() < 0.5,
    t.ByteType: whole(8),
    t.ShortType: whole(16),
    t.IntegerType: whole(32),
    t.LongType: whole(64),
    t.FloatType: lambda rng, kind: rng.choice(
        [float("nan"), float("inf"), -0.0, 1.1, 16777217.0, 3.4e38, rng.uniform(-1, 1)]
    ),
    t.DoubleType: any_float,
    t.DecimalType: any_decimal,
    t.DateType: lambda rng, _: date.fromordinal(rng.randint(1, date(9999, 12, 31).toordinal())),
    t.TimestampType: lambda rng, kind: any_time(rng, kind).replace(tzinfo=UTC),
    t.TimestampNTZType: any_time,
    t.DayTimeIntervalType: any_interval,
}
