"""The training run of `class_data`: a short Spark program that loads the classes which jobs on queues need.

Run as `python -m fairlead.spark.runtime.training OPTION...`, with the options that make the JVM write its
class data when it ends.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.functions import udf

from fairlead.spark.runtime.class_data import class_data_for
from fairlead.spark.runtime.spark_session import prepare, settings

if TYPE_CHECKING:
    import pyarrow as pa

_MASTER = "local[2]"
_END_S = 1200


def main(java_options: list[str]) -> None:
    data = class_data_for(prepare(_MASTER))
    if data is None:
        raise SystemExit("no pyspark, or no place for class data")
    data.prepare(os.environ)
    config = settings(
        _MASTER, config={"spark.driver.extraJavaOptions": " ".join(map(shlex.quote, java_options))}
    )
    spark = (
        SparkSession.builder.appName("fairlead-training").config(map={**config}).master(_MASTER).getOrCreate()
    )
    with tempfile.TemporaryDirectory() as directory:
        work(spark, directory)
    gateway: Any = spark.sparkContext._gateway
    process = gateway.proc
    spark.stop()
    # The JVM ends, and writes the archive, when its stdin is closed.
    process.stdin.close()
    process.wait(_END_S)


def work(spark: SparkSession, directory: str) -> None:
    rows = spark.range(0, 1000, 1, 2)
    rows.select(udf(lambda number: number + 1, "long")("id").alias("n")).groupBy("n").count().collect()
    rows.mapInArrow(_same, "id long").write.parquet(f"{directory}/rows")
    spark.read.parquet(f"{directory}/rows").createOrReplaceTempView("rows")
    spark.sql("select id % 7 as k, count(*), max(id) from rows where id > 10 group by 1 order by 2").collect()
    spark.dataSource.register(_TrainingSource)
    spark.read.format("fairlead-training").load().write.format("fairlead-training").mode("append").save()
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    query = (
        stream.writeStream.format("fairlead-training")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(_END_S)


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


class _TrainingSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "fairlead-training"

    def schema(self) -> str:
        return "id long"

    def reader(self, schema: Any) -> DataSourceReader:
        return _TrainingReader()

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        return _TrainingWriter()

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return _TrainingStreamWriter()


class _TrainingReader(DataSourceReader):
    def read(self, partition: Any) -> Iterator[tuple[Any, ...]]:
        yield from ((number,) for number in range(10))


class _TrainingWriter(DataSourceWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class _TrainingStreamWriter(DataSourceStreamWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass


if __name__ == "__main__":
    main(sys.argv[1:])
