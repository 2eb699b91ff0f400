"""fairlead on Apache Spark: a session, and the data source `format("fairlead")`.

Promises: Arrow batches from broker to executor and back, with no Python per payload. Must not: be needed by anything else
in fairlead, or bring the engine to an executor. Start at `session`, then `source`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Tell a session of `format("fairlead")`, where it does not find it by itself: with a server of Spark Connect, say."""
    from fairlead.spark.source import FairleadDataSource

    spark.dataSource.register(FairleadDataSource)
