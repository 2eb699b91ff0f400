"""Lets Spark find `format("fairlead")`: every session imports each module named pyspark_*, so this one
imports little.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    """Making an instance gives a `fairlead.spark.data_source.source.FairleadDataSource`."""

    def __new__(cls, options: Mapping[str, str]) -> Any:
        # Imported here, so that sessions that do not use fairlead do not load its client.
        from fairlead.spark.data_source.source import FairleadDataSource

        return FairleadDataSource(options)

    @classmethod
    def name(cls) -> str:
        return "fairlead"
