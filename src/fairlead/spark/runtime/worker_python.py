"""The Python of Spark's workers: this Python, with the installed pyspark.

Spark puts its own zip of pyspark first on the path of every Python process that it starts. Modules from a zip
are compiled in each process, which takes more than a second, and a query with a Python data source starts
about seven processes.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from fairlead.spark.runtime.user_cache import digest, kept_file, user_cache

_LAUNCHER = """\
#!/bin/sh
# Python without Spark's zips on its path: pyspark and py4j are installed.
set -f
IFS=:
kept=
for entry in $PYTHONPATH; do
    case $entry in
    */pyspark.zip | */py4j-*-src.zip) ;;
    *) kept=${kept:+$kept:}$entry ;;
    esac
done
PYTHONPATH=$kept exec THIS_PYTHON "$@"
"""


def worker_python(environ: Mapping[str, str] = os.environ) -> str:
    """A command for PYSPARK_PYTHON: a launcher that removes the zips from the path. Without sh, with pyspark
    only in a zip, or with a SPARK_HOME, whose zips belong to its Spark, the command is this Python itself.
    """
    if os.name != "posix" or environ.get("SPARK_HOME") or not all(map(_is_installed, ("pyspark", "py4j"))):
        return sys.executable
    script = _LAUNCHER.replace("THIS_PYTHON", shlex.quote(sys.executable))
    return str(kept_file(user_cache(environ), f"python-{digest(script)}", script, mode=0o700))


def _is_installed(package: str) -> bool:
    found = find_spec(package)
    return found is not None and found.origin is not None and Path(found.origin).is_file()
