"""Reading through a server of Spark Connect, in a process of its own: a classic session cannot live beside one."""

from __future__ import annotations

from pathlib import Path

import fairlead
from fairlead.testing import ServerProcess
from tests.spark.driver import run_driver

_READ = """
import json, os, sys
from fairlead.spark.java import use_java

use_java()
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession

import fairlead.spark

endpoint, queue, folder = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
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


def test_batches_and_streams_are_read_through_spark_connect(server: ServerProcess, client: fairlead.Client, queue: str, tmp_path: Path):
    client.enqueue_many(queue, [fairlead.NewMessage(str(n).encode()) for n in range(50)])
    on_loopback = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_SUBMIT_ARGS": "--conf spark.ui.enabled=false pyspark-shell"}
    driver = run_driver(tmp_path, _READ, "", server.address, queue, str(tmp_path), environment=on_loopback)
    assert driver.answer == {"there": 50, "saved": list(range(50))}
    assert client.stats(queue).totals.completed == 50
