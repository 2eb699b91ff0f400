from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cli import spark_checks
from fairlead.cli.findings import Finding
from fairlead.cli.spark_checks import java, other_python, other_spark, spark
from fairlead.spark.runtime import installed
from tests.spark_unit.test_java import fake_java


def levels(found: Iterator[Finding]) -> dict[str, str]:
    return {finding.name: finding.level for finding in found}


def pretend(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    for module in (installed, spark_checks):
        monkeypatch.setattr(module, "found_version", versions.get)


def test_without_pyspark_there_is_one_line_with_the_command_and_no_java_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(monkeypatch, pandas="2.3.3")
    (found,) = spark({})
    assert (found.level, found.advice) == ("info", "pip install 'fairlead[spark]'")


def test_a_package_that_is_missing_or_does_not_fit_is_a_warning_with_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(monkeypatch, pyspark="4.3.0", pandas="3.0.1")
    found = spark_checks.spark_packages()
    assert (found.level, found.advice) == ("warn", "pip install 'fairlead[spark]'")
    assert (
        found.found
        == "pyspark 4.3.0, pandas 3.0.1; pandas 3.0.1 instead of pandas 2.2 or later, before 3; no hiredis 3 or later; no pyarrow 20 or later"
    )


def test_the_chosen_java_is_named_with_the_reason_and_those_passed_over(tmp_path: Path) -> None:
    fake_java(tmp_path / "old", "11.0.2")
    command = fake_java(tmp_path / "new", "21.0.8")
    found = java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "new" / "bin")})
    assert found.level == "ok"
    assert found.found.startswith(
        f"21.0.8 at {command}: the first on the path; JAVA_HOME's {tmp_path / 'old'}"
    )
    assert "is version 11.0.2" in found.found
    assert java({"JAVA_HOME": str(tmp_path / "new")}).found.endswith("named by JAVA_HOME")


def test_with_no_java_at_all_the_line_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.spark.runtime.java.bundled_java", lambda: None)
    found = java({"PATH": ""})
    assert (found.level, "pip install 'fairlead[spark]'" in found.advice) == ("warn", True)


def test_a_spark_home_of_another_version_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, pyspark="4.3.0")
    assert levels(other_spark({})) == {}
    assert levels(other_spark({"SPARK_HOME": str(tmp_path)})) == {"SPARK_HOME": "warn"}
    (tmp_path / "jars").mkdir()
    jar = tmp_path / "jars" / "spark-core_2.13-3.5.1.jar"
    jar.touch()
    (found,) = other_spark({"SPARK_HOME": str(tmp_path)})
    assert (found.level, "is Spark 3.5.1, and pyspark is 4.3.0" in found.found) == ("warn", True)
    jar.rename(tmp_path / "jars" / "spark-core_2.13-4.3.0.jar")
    assert levels(other_spark({"SPARK_HOME": str(tmp_path)})) == {"SPARK_HOME": "ok"}


def test_a_python_for_the_workers_that_is_another_is_told_and_one_that_is_not_there_is_a_warning(
    tmp_path: Path,
) -> None:
    assert levels(other_python({"PYSPARK_PYTHON": sys.executable})) == {}
    assert levels(other_python({"PYSPARK_PYTHON": "/bin/sh"})) == {"PYSPARK_PYTHON": "info"}
    assert levels(other_python({"PYSPARK_PYTHON": str(tmp_path / "python3")})) == {"PYSPARK_PYTHON": "warn"}


def test_without_bash_there_is_a_warning(tmp_path: Path) -> None:
    assert levels(spark({"PATH": str(tmp_path)}))["bash"] == "warn"
    assert "bash" not in levels(spark({"PATH": "/usr/bin:/bin"}))


def test_the_checks_import_no_spark() -> None:
    code = "import os, sys; from fairlead.cli.spark_checks import spark; list(spark(os.environ)); print('pyspark' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "False\n"
    )
