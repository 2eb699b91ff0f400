"""Where Spark looks for `format("fairlead")`: every session imports each module named pyspark_*, so this one
imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    """Stands for `fairlead.spark.data_source.source.FairleadDataSource`, and is one as soon as somebody asks
    for an instance.
    """

    def __new__(cls, options: Mapping[str, str]) -> Any:
        # Here and not above: sessions that never ask for fairlead must not load its client.
        from fairlead.spark.data_source.source import FairleadDataSource

        return FairleadDataSource(options)

    @classmethod
    def name(cls) -> str:
        return "fairlead"
