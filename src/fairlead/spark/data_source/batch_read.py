"""Batch read: browse messages without claiming them. A read changes nothing and can be repeated.

A read is no snapshot. A message that is in the queue from the start of the first task to the end of the last
one is read exactly once, even if it moves meanwhile. A message that arrives or leaves meanwhile may be read
or not. Spark computes the partitions once for each loaded DataFrame, so a second action reads again within
the same ranges of ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from fairlead.model.ids import first_id_of, show_id
from fairlead.model.names import dead_letter_name, is_dead_letter_name
from fairlead.spark.connection import client_for
from fairlead.spark.options import SparkOptions

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class IdRange(InputPartition):
    """Ids from `low`, inclusive, to `high`, exclusive. "" is no bound."""

    low: str
    high: str


class BatchReader(DataSourceReader):
    # No pushFilters: Spark 4.3 keeps a pushed filter for later actions that do not have it.

    def __init__(self, options: SparkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        splits = client_for(options).browse_splits(options.queue, options.view, options.partition_count)
        lowest = show_id(first_id_of(options.starting_from)) if options.starting_from else ""
        # Ids sort by time, so a range that ends before the start time has no messages to read.
        return [IdRange(max(low, lowest), high) for low, high in splits if not high or high > lowest]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from fairlead.spark.data_source.rows import BatchConverter

        assert isinstance(partition, IdRange)
        options = self._options
        is_dead = options.view == "dead" and not is_dead_letter_name(options.queue)
        converter = BatchConverter(
            self._schema,
            dead_letter_name(options.queue) if is_dead else options.queue,
            headers=options.include_headers,
        )
        batches = client_for(options).browse_batches(
            options.queue,
            view=options.view,
            low=partition.low,
            high=partition.high,
            payloads=options.include_payload,
        )
        for batch in batches:
            yield converter.convert(batch)
