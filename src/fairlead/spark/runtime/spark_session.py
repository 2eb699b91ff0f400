"""A Spark session for the work around a queue: on loopback, quiet, in UTC, with Arrow, and no more shuffle
partitions than cores.

The same settings serve a builder of your own: `prepare("local[2]")` first, then
`SparkSession.builder.config(map=settings("local[2]"))`.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from fairlead.config.server import listens_on_loopback
from fairlead.errors import SparkNotReady
from fairlead.spark.runtime.class_data import use_class_data
from fairlead.spark.runtime.installed import require_packages
from fairlead.spark.runtime.java import Java, use_java
from fairlead.spark.runtime.user_cache import digest, kept_file, user_cache
from fairlead.spark.runtime.worker_python import worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"
DEFAULT_MEMORY = "2g"

# The gateway class has a line of its own because Spark would set the level of the root logger to warn, and
# say so, if that class had none.
_LOG_SETTINGS = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
#: Only the quick one of the JVM's two compilers, and the collector without threads of its own.
_SHORT_JOB = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def session(
    app_name: str = "fairlead",
    master: str | None = None,
    *,
    memory: str | None = None,
    class_data: bool = False,
    short_job: bool = False,
    quiet: bool = True,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """The session of this process, started if there is none.

    `master` is by default that of the session that runs, or of `spark-submit`, else `local[*]`. `memory` is
    the driver's heap, 2g by default. `quiet` leaves only errors on stderr. `class_data` keeps what the JVM
    learns of Spark's classes in the user's cache: made at the first start, which takes a minute longer, and
    used by all others. `short_job` makes the JVM compile in haste: half the work at the start, and less speed
    in jobs of minutes. `config` goes to Spark as it is and wins over all this.

    Raises `SparkNotReady` if pyspark or a Java is missing, or if the session that runs has another master or
    settings. JAVA_HOME, SPARK_LOCAL_IP and PYSPARK_PYTHON are set in this process for the JVM that is
    started, the last two only if unset.
    """
    require_packages()
    from pyspark.sql import SparkSession

    config = dict(config or {})
    if master is not None and master.startswith("sc://"):
        advice = "Connect with SparkSession.builder.remote(...), then register(spark)"
        raise SparkNotReady("a master to start a driver for", f"{master!r}, a Spark Connect server", advice)
    running = SparkSession.getActiveSession()
    if running is not None:
        return _joined(running, master, {**({"spark.driver.memory": memory} if memory else {}), **config})
    builder: SparkSession.Builder = SparkSession.builder.appName(app_name)
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        master = master or _submitted_master()
        return builder.config(map={**work_settings(master), **config}).master(master).getOrCreate()
    master = master or DEFAULT_MASTER
    java = prepare(master, quiet=quiet)
    if class_data:
        options = map(shlex.quote, use_class_data(java))
        config[_JAVA_OPTIONS] = " ".join([*options, config.get(_JAVA_OPTIONS, "")])
    chosen = settings(
        master, memory=memory or DEFAULT_MEMORY, quiet=quiet, short_job=short_job, config=config
    )
    return builder.config(map={**chosen}).master(master).getOrCreate()


def settings(
    master: str = DEFAULT_MASTER,
    *,
    memory: str = DEFAULT_MEMORY,
    quiet: bool = True,
    short_job: bool = False,
    config: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """What `session` sets, without the master and the name. Those of the JVM only take effect if it is not
    running yet.
    """
    config = dict(config or {})
    options = []
    if quiet:
        log_settings = kept_file(user_cache(), f"log4j2-{digest(_LOG_SETTINGS)}.properties", _LOG_SETTINGS)
        options.append(f"-Dlog4j2.configurationFile={log_settings.as_uri()}")
    if short_job:
        options += _SHORT_JOB
    # Those of the caller come last: the JVM lets the last one win.
    jvm = {
        "spark.driver.memory": memory,
        _JAVA_OPTIONS: " ".join([*map(shlex.quote, options), config.pop(_JAVA_OPTIONS, "")]).strip(),
    }
    return work_settings(master) | {name: value for name, value in jvm.items() if value} | config


def work_settings(master: str) -> dict[str, str]:
    """Those that a JVM takes which runs already."""
    chosen = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    cores = local_cores(master)
    if cores is not None:
        chosen["spark.sql.shuffle.partitions"] = str(cores)
    if stays_here(master):
        chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return chosen


def prepare(
    master: str = DEFAULT_MASTER, *, quiet: bool = True, environ: MutableMapping[str, str] = os.environ
) -> Java:
    """Set what Spark reads from nowhere but the environment, for the JVM that this process starts next;
    `session` does it by itself.

    JAVA_HOME, and for a master on this machine, if unset, SPARK_LOCAL_IP and PYSPARK_PYTHON: without that the
    workers would run `python3`, which need not be this Python.
    """
    if stays_here(master):
        if "PYSPARK_PYTHON" not in environ:
            environ["PYSPARK_PYTHON"] = worker_python(environ)
        environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return use_java(quiet=quiet, environ=environ)


def local_cores(master: str) -> int | None:
    """How many tasks a local master runs at once; None for a cluster, whose size nobody here knows."""
    cluster = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*]", master)
    if cluster:
        return int(cluster[1]) * int(cluster[2])
    local = re.fullmatch(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*\d+\s*)?])?", master)
    if local is None:
        return None
    return len(os.sched_getaffinity(0)) if local[1] == "*" else int(local[1] or 1)


def stays_here(master: str) -> bool:
    """Whether all executors run on this machine, so that they reach the driver on loopback and have this
    Python.
    """
    if local_cores(master) is not None:
        return True
    return master.startswith("spark://") and all(
        listens_on_loopback(address) for address in master.removeprefix("spark://").split(",")
    )


def _joined(running: SparkSession, master: str | None, asked: Mapping[str, str]) -> SparkSession:
    """The session that runs, changed where it can be; refused where it cannot be what was asked for."""
    stop = "Stop it first (spark.stop()), or leave this out"
    has_master = running.conf.get("spark.master", None)
    if master is not None and master != has_master:
        raise SparkNotReady(
            f"no session, or one with master {master!r}", f"a running one with {has_master!r}", stop
        )
    for name, value in asked.items():
        if running.conf.isModifiable(name):
            running.conf.set(name, value)
        elif running.conf.get(name, None) != value:
            raise SparkNotReady(
                f"no session, or one with {name} = {value!r}",
                f"a running one with {running.conf.get(name, None)!r}",
                stop,
            )
    return running


def _submitted_master() -> str:
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    found: Any = SparkConf().get("spark.master", DEFAULT_MASTER)
    return str(found)
