"""fairlead on Apache Spark: a session, the data source `format("fairlead")`, workers of runbooks, quarantine
for bad rows.

Promises: Arrow batches from broker to executor and back, with no Python per payload; importing this folder
imports neither pyspark nor pyarrow. Must not: be needed by anything else in fairlead, or bring the engine to
an executor. Start at `runtime.spark_session`, then the folder you need: `data_source`, `worker`, `bad_rows`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fairlead.spark.bad_rows.quarantining import quarantine
    from fairlead.spark.bad_rows.returning import returned
    from fairlead.spark.runtime.java import Java, find_java, use_java
    from fairlead.spark.runtime.spark_session import prepare, session, settings
    from fairlead.spark.worker.run_worker import run_worker

#: What is offered here, and where it lives. A name must not be that of a module of this folder, which would
#: take its place.
_HOMES = {
    "Java": "runtime.java",
    "find_java": "runtime.java",
    "prepare": "runtime.spark_session",
    "quarantine": "bad_rows.quarantining",
    "returned": "bad_rows.returning",
    "run_worker": "worker.run_worker",
    "session": "runtime.spark_session",
    "settings": "runtime.spark_session",
    "use_java": "runtime.java",
}

__all__ = [
    "Java",
    "find_java",
    "prepare",
    "quarantine",
    "register",
    "returned",
    "run_worker",
    "session",
    "settings",
    "use_java",
]


def register(spark: SparkSession) -> None:
    """Tell a session of `format("fairlead")`, where it does not find it by itself: with a server of Spark
    Connect, say.
    """
    from fairlead.spark.data_source.source import FairleadDataSource

    spark.dataSource.register(FairleadDataSource)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
