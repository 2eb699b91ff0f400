"""Sources and sinks that break one promise each, to test that the audit finds the breach. Everything else is
the real code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, InputPartition
from pyspark.sql.types import StructType

from fairlead.spark.connection import client_for
from fairlead.spark.data_source.source import FairleadDataSource
from fairlead.spark.data_source.stream_read import SlicePartition, StreamReader
from fairlead.spark.data_source.write import ProduceStreamWriter, StagedAttempt, stage_rows

if TYPE_CHECKING:
    import pyarrow as pa


class ClosesEarly(FairleadDataSource):
    """A task that has read its slice closes the whole claim."""

    @classmethod
    def name(cls) -> str:
        return "closes_early"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _ClosingReader(self.checked.for_direction("stream read"), schema)


class _ClosingReader(StreamReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SlicePartition)
        yield from super().read(partition)
        client_for(self._options).consumers.close(
            partition.consumer, self._options.queue, partition.generation, partition.number
        )


class TokenByChance(FairleadDataSource):
    """A repeated write has another token, so the broker takes it for a new write."""

    @classmethod
    def name(cls) -> str:
        return "token_by_chance"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return cast(Any, _ChanceWriter(self.checked.for_direction("stream write"), schema))


class _ChanceWriter(ProduceStreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedAttempt:
        return stage_rows(self._options, self._schema, uuid4().hex, iterator)


BREACHES = {"closes_early": ClosesEarly, "token_by_chance": TokenByChance}
