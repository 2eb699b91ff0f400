"""The same small job with every kind of master. It uses the JVM and a Python worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.cluster import Cluster
from tests.spark.driver import run_driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COUNT_PYTHONS = """
import json, os
import fairlead.spark
spark = fairlead.spark.session(master=os.environ["FAIRLEAD_SPARK_MASTER"], config={"spark.executor.memory": "512m"})

def who(batches):
    import os
    import pyarrow as pa
    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"parent": [os.getppid()], "rows": [rows]})

found = spark.range(0, 100, 1, 2).mapInArrow(who, "parent long, rows long").collect()
print(json.dumps({"rows": sum(row.rows for row in found), "daemons": len({row.parent for row in found})}))
spark.stop()
"""


def test_the_shared_session_runs_python_on_loopback_in_utc(spark: SparkSession) -> None:
    from pyspark.sql.functions import udf

    total = (
        spark.range(10)
        .select(udf(lambda number: number * 2, "long")("id").alias("n"))
        .groupBy()
        .sum("n")
        .first()
    )
    assert total is not None
    assert total[0] == 90
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_a_driver_runs_on_a_cluster_of_a_master_and_two_workers(cluster: Cluster, tmp_path: Path) -> None:
    driver = run_driver(tmp_path, _COUNT_PYTHONS, cluster.url)
    assert driver.answer == {"rows": 100, "daemons": 2}
    assert json.loads(driver.out) == driver.answer


def test_a_driver_runs_on_a_local_cluster_of_two_processes(tmp_path: Path) -> None:
    driver = run_driver(tmp_path, _COUNT_PYTHONS, "local-cluster[2,1,1024]")
    assert driver.answer == {"rows": 100, "daemons": 2}
    assert driver.family.pids() == []
