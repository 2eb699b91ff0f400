"""fairlead on Apache Spark: a session, and the data source `format("fairlead")`.

Promises: Arrow batches from broker to executor and back, with no Python per payload; importing this folder imports neither
pyspark nor pyarrow. Must not: be needed by anything else in fairlead, or bring the engine to an executor. Start at
`spark_session`, then `source`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fairlead.spark.java import Java, find_java, use_java
    from fairlead.spark.quarantining import quarantine
    from fairlead.spark.returning import returned
    from fairlead.spark.spark_session import prepare, session, settings
    from fairlead.spark.spark_worker import run_worker

#: What is offered here, and where it lives. A name must not be that of a module of this folder, which would take its place.
_HOMES = {
    "Java": "java",
    "find_java": "java",
    "prepare": "spark_session",
    "quarantine": "quarantining",
    "returned": "returning",
    "run_worker": "spark_worker",
    "session": "spark_session",
    "settings": "spark_session",
    "use_java": "java",
}

__all__ = ["Java", "find_java", "prepare", "quarantine", "register", "returned", "run_worker", "session", "settings", "use_java"]


def register(spark: SparkSession) -> None:
    """Tell a session of `format("fairlead")`, where it does not find it by itself: with a server of Spark Connect, say."""
    from fairlead.spark.source import FairleadDataSource

    spark.dataSource.register(FairleadDataSource)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
