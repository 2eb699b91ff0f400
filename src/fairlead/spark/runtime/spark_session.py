"""Makes a Spark session for work with queues: on loopback, quiet, in UTC, with Arrow, and with as many
shuffle partitions as cores.

For a builder of your own, call `prepare("local[2]")`, then
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

# Without a level for the gateway class, Spark would set the root logger to warn, and print that it did.
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
#: Only the faster of the JVM's two compilers, and the garbage collector without extra threads.
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
    """Return the session of this process, and start it if there is none.

    `master` defaults to that of the running session or of `spark-submit`, else `local[*]`. `memory` is the
    driver's heap, 2g by default. `quiet` leaves only errors on stderr. `class_data` starts the JVM from an
    archive of Spark's classes in the user's cache; the first start makes the archive, and takes a minute
    longer. `short_job` uses only the JVM's faster compiler: less work at the start, and less speed in jobs of
    minutes. `config` has settings of Spark, which win over all others.

    Raises `SparkNotReady` if pyspark or a Java is missing, or if the running session has another master or
    other settings. Sets JAVA_HOME, and SPARK_LOCAL_IP and PYSPARK_PYTHON if unset, in the environment of this
    process for the new JVM.
    """
    require_packages()
    from pyspark.sql import SparkSession

    config = dict(config or {})
    _refuse_connect(master)
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


def _refuse_connect(master: str | None) -> None:
    if master is not None and master.startswith("sc://"):
        advice = "Connect with SparkSession.builder.remote(...), then register(spark)"
        raise SparkNotReady("a master to start a driver for", f"{master!r}, a Spark Connect server", advice)


def settings(
    master: str = DEFAULT_MASTER,
    *,
    memory: str = DEFAULT_MEMORY,
    quiet: bool = True,
    short_job: bool = False,
    config: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The settings of `session`, without master and name. Settings of the JVM take effect only before it
    starts.
    """
    config = dict(config or {})
    options = []
    if quiet:
        log_settings = kept_file(user_cache(), f"log4j2-{digest(_LOG_SETTINGS)}.properties", _LOG_SETTINGS)
        options.append(f"-Dlog4j2.configurationFile={log_settings.as_uri()}")
    if short_job:
        options += _SHORT_JOB
    # The caller's options come last, because in the JVM the last option wins.
    jvm = {
        "spark.driver.memory": memory,
        _JAVA_OPTIONS: " ".join([*map(shlex.quote, options), config.pop(_JAVA_OPTIONS, "")]).strip(),
    }
    return work_settings(master) | {name: value for name, value in jvm.items() if value} | config


def work_settings(master: str) -> dict[str, str]:
    """The settings that also take effect in a running JVM."""
    chosen = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    cores = local_cores(master)
    if cores is not None:
        chosen["spark.sql.shuffle.partitions"] = str(cores)
    if is_on_this_machine(master):
        chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return chosen


def prepare(
    master: str = DEFAULT_MASTER, *, quiet: bool = True, environ: MutableMapping[str, str] = os.environ
) -> Java:
    """Set the environment variables for the JVM that this process starts next. `session` calls this function.

    Sets JAVA_HOME; for a master on this machine also SPARK_LOCAL_IP and PYSPARK_PYTHON, if unset. Without the
    latter Python workers would run `python3`, which may be another Python.
    """
    if is_on_this_machine(master):
        if "PYSPARK_PYTHON" not in environ:
            environ["PYSPARK_PYTHON"] = worker_python(environ)
        environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return use_java(quiet=quiet, environ=environ)


def local_cores(master: str) -> int | None:
    """How many tasks a local master runs at once; None for a cluster, whose size is unknown here."""
    cluster = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*]", master)
    if cluster:
        return int(cluster[1]) * int(cluster[2])
    local = re.fullmatch(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*\d+\s*)?])?", master)
    if local is None:
        return None
    return len(os.sched_getaffinity(0)) if local[1] == "*" else int(local[1] or 1)


def is_on_this_machine(master: str) -> bool:
    """Whether all executors run on this machine: then they reach the driver on loopback, and have this
    Python.
    """
    if local_cores(master) is not None:
        return True
    return master.startswith("spark://") and all(
        listens_on_loopback(address) for address in master.removeprefix("spark://").split(",")
    )


def _joined(running: SparkSession, master: str | None, asked: Mapping[str, str]) -> SparkSession:
    """Return the running session with the wanted settings. Raises `SparkNotReady` for a setting that cannot
    be changed.
    """
    stop = "Stop the session first (spark.stop()), or leave this argument out"
    has_master = running.conf.get("spark.master", None)
    if master is not None and master != has_master:
        raise SparkNotReady(
            f"no session, or one with master {master!r}", f"a running session with {has_master!r}", stop
        )
    for name, value in asked.items():
        if running.conf.isModifiable(name):
            running.conf.set(name, value)
        elif running.conf.get(name, None) != value:
            raise SparkNotReady(
                f"no session, or one with {name} = {value!r}",
                f"a running session with {running.conf.get(name, None)!r}",
                stop,
            )
    return running


def _submitted_master() -> str:
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    found: Any = SparkConf().get("spark.master", DEFAULT_MASTER)
    return str(found)
