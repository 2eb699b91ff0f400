"""`format("fairlead")`: chooses the reader or writer. Nothing here calls a broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from pyspark.sql.datasource import DataSource

from fairlead.errors import InvalidRequest
from fairlead.spark.data_source.schema import check_read_schema, read_schema
from fairlead.spark.options import read_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

NAME = "fairlead"


class FairleadDataSource(DataSource):
    """Spark makes a data source for every `load` and every write, in separate processes. Raises
    `InvalidRequest` for wrong options or columns.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        # Only the checked options are pickled and sent to other processes.
        self.checked = read_options(options)

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return read_schema(self.checked.view)

    def reader(self, schema: StructType) -> DataSourceReader:
        from fairlead.spark.data_source.batch_read import BatchReader

        options = self.checked.for_direction("batch read")
        check_read_schema(schema, options.view)
        return BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from fairlead.spark.data_source.stream_read import RefusedReader, StreamReader

        try:
            options = self.checked.for_direction("stream read")
            check_read_schema(schema)
        except InvalidRequest as refused:
            return RefusedReader(refused)
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = self.checked.for_direction("batch write")
        if options.operation == "settle":
            from fairlead.spark.data_source.settle import SettleWriter

            return cast("DataSourceWriter", SettleWriter(options, schema, overwrite=overwrite))
        from fairlead.spark.data_source.write import ProduceWriter

        return cast("DataSourceWriter", ProduceWriter(options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = self.checked.for_direction("stream write")
        if options.operation == "settle":
            from fairlead.spark.data_source.settle import SettleStreamWriter

            return cast("DataSourceStreamWriter", SettleStreamWriter(options, schema, overwrite=overwrite))
        from fairlead.spark.data_source.write import ProduceStreamWriter

        return cast("DataSourceStreamWriter", ProduceStreamWriter(options, schema, overwrite=overwrite))
