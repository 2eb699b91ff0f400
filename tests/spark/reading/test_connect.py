"""Writes and reads with Spark Connect, in a separate process, because a process cannot have a classic session
beside one of Spark Connect.
"""

from __future__ import annotations

from pathlib import Path

import fairlead
from fairlead.testing import ServerProcess
from tests.spark.driver import run_driver

_BOTH_WAYS = """
import json, sys
import fairlead.spark
from pyspark.sql import SparkSession

endpoint, queue, folder = sys.argv[1:]
fairlead.spark.prepare("local[2]")
spark = SparkSession.builder.config(map=fairlead.spark.settings("local[2]", memory="512m")).remote("local[2]").getOrCreate()
rows = spark.range(0, 50, 1, 2).selectExpr("cast(id AS string) AS payload", "concat('k', id % 3) AS fairness_key")
for _ in range(2):
    rows.write.format("fairlead").options(endpoint=endpoint, dedupeToken="once").mode("append").save(queue)
there = spark.read.format("fairlead").option("endpoint", endpoint).load(queue).count()
fairlead.spark.register(spark)
frame = spark.readStream.format("fairlead").options(endpoint=endpoint, consumer="connect", maxMessagesPerTrigger=20).load(queue)
writer = frame.select("id", "payload").writeStream.format("parquet").option("checkpointLocation", folder + "/checkpoint")
query = writer.trigger(availableNow=True).start(folder + "/out")
query.awaitTermination()
saved = spark.read.parquet(folder + "/out").selectExpr("int(string(payload)) AS n").collect()
print(json.dumps({"there": there, "saved": sorted(row.n for row in saved)}))
spark.stop()
"""


def test_batches_and_streams_go_through_spark_connect_as_through_any_other_session(
    server: ServerProcess, client: fairlead.Client, queue: str, tmp_path: Path
):
    driver = run_driver(tmp_path, _BOTH_WAYS, "", server.address, queue, str(tmp_path))
    assert driver.answer == {"there": 50, "saved": list(range(50))}
    assert client.stats(queue).totals.completed == 50
