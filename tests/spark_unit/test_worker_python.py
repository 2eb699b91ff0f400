"""The command with which Spark starts Python processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from fairlead.spark.runtime.worker_python import worker_python

_SAY = "import json, os, sys; print(json.dumps([sys.executable, sys.path, os.environ['PYTHONPATH'], sys.argv[1:]]))"


def test_it_is_this_python_with_all_of_the_path_but_the_zips_of_spark(tmp_path: Path) -> None:
    command = worker_python({"XDG_CACHE_HOME": str(tmp_path / "a cache")})
    kept = [str(tmp_path / "my steps"), str(tmp_path / "*"), "/jobs/pyspark.zip.d", "/jobs/theirs.zip"]
    given = ["/spark/python/lib/pyspark.zip", *kept[:2], "/spark/python/lib/py4j-0.10.9.9-src.zip", *kept[2:]]
    environment = {**os.environ, "PYTHONPATH": ":".join(given)}
    said = subprocess.run(
        [command, "-c", _SAY, "two words", "*"],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        check=True,
    )
    executable, path, variable, arguments = json.loads(said.stdout)
    assert executable == sys.executable
    assert path[1 : 1 + len(kept)] == kept
    assert variable == ":".join(kept)
    assert arguments == ["two words", "*"]


def test_without_a_path_there_is_none(tmp_path: Path) -> None:
    command = worker_python({"XDG_CACHE_HOME": str(tmp_path)})
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([command, "-c", "import pyspark.daemon, py4j"], env=environment, cwd=tmp_path, check=True)


def test_somebodys_own_spark_keeps_its_zips(tmp_path: Path) -> None:
    assert worker_python({"XDG_CACHE_HOME": str(tmp_path), "SPARK_HOME": "/opt/spark"}) == sys.executable
