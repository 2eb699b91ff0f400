"""fairlead on Apache Spark: sessions, the data source `format("fairlead")`, runbook workers, quarantine of
bad rows.

Folders: `runtime` (Java and session), `data_source`, `worker`, `bad_rows`. Modules: `options` (of the data
source), `connection` (clients of Spark's processes), `heartbeats` (of durable consumers).

Guarantees: Arrow batches travel between broker and executor without Python code per payload; importing this
folder imports neither pyspark nor pyarrow. Nothing else in fairlead may need this folder, except the command
line, and it must not bring the engine to an executor. Start at `runtime.spark_session`, then the folder you
need.
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

#: The public names and their modules. A name must not equal that of a module in this folder, which would
#: replace it.
_MODULES = {
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
    """Register `format("fairlead")` in a session that does not find it by itself, such as one of Spark
    Connect.
    """
    from fairlead.spark.data_source.source import FairleadDataSource

    spark.dataSource.register(FairleadDataSource)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
