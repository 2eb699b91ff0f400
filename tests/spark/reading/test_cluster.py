"""Reads by executors of a cluster, in separate processes."""

from __future__ import annotations

from pathlib import Path

import fairlead
from fairlead.testing import ServerProcess
from tests.spark.cluster import Cluster
from tests.spark.driver import run_driver

_READ = """
import json, os, sys
import fairlead.spark

endpoint, queue, folder = sys.argv[1:]
spark = fairlead.spark.session(master=os.environ["FAIRLEAD_SPARK_MASTER"], config={"spark.executor.memory": "512m"})
there = spark.read.format("fairlead").options(endpoint=endpoint, numPartitions=2).load(queue).count()
frame = spark.readStream.format("fairlead").options(endpoint=endpoint, consumer="cluster", maxMessagesPerTrigger=30, numPartitions=4).load(queue)
writer = frame.select("id", "payload").writeStream.format("parquet").option("checkpointLocation", folder + "/checkpoint")
query = writer.trigger(availableNow=True).start(folder + "/out")
query.awaitTermination()
saved = spark.read.parquet(folder + "/out").selectExpr("int(string(payload)) AS n").collect()
print(json.dumps({"there": there, "saved": sorted(row.n for row in saved)}))
spark.stop()
"""


def test_executors_read_their_slices_and_warn_of_an_endpoint_that_only_this_machine_knows(
    cluster: Cluster, server: ServerProcess, client: fairlead.Client, queue: str, tmp_path: Path
):
    client.enqueue_many(queue, [fairlead.NewMessage(str(n).encode(), stream=f"s{n % 9}") for n in range(100)])
    driver = run_driver(tmp_path, _READ, cluster.url, server.address, queue, str(tmp_path))
    assert driver.answer == {"there": 100, "saved": list(range(100))}
    assert client.stats(queue).totals.completed == 100
    said = "".join(log.read_text() for log in cluster.family.logs.glob("worker-*/app-*/*/stderr"))
    assert f"endpoint {server.address} is a loopback address" in said
