"""A Python data source that does nothing but what Spark asks of one: it yields prepared record batches, and
swallows what it is given.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from fairlead.spark.data_source.schema import arrow_schema, read_schema

#: As the client cuts what it reads.
_BATCH_ROWS = 5_000


class BareDataSource(DataSource):
    """`rows` a micro-batch, `batches` micro-batches, `slices` partitions, in the schema of the fairlead
    source.
    """

    @classmethod
    def name(cls) -> str:
        return "bare"

    def schema(self) -> StructType:
        return read_schema()

    def streamReader(self, schema: StructType) -> BareStreamReader:
        return BareStreamReader(schema, {key.lower(): int(value) for key, value in self.options.items()})

    def writer(self, schema: StructType, overwrite: bool) -> BareWriter:
        return BareWriter()


class BareSlice(InputPartition):
    pass


class BareStreamReader(DataSourceStreamReader):
    def __init__(self, schema: StructType, options: dict[str, int]) -> None:
        self._schema = schema
        self._rows, self._batches, self._slices = options["rows"], options["batches"], options["slices"]

    def initialOffset(self) -> dict[str, Any]:
        return {"number": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"number": min(start["number"] + 1, self._batches)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [BareSlice(at) for at in range(self._slices)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = self._rows // self._slices
        whole = prepared(self._schema)
        while left:
            batch = whole.slice(0, min(left, _BATCH_ROWS))
            left -= batch.num_rows
            yield batch


_prepared: dict[str, pa.RecordBatch] = {}


def prepared(schema: StructType) -> pa.RecordBatch:
    """Made once in the life of a process, which serves many tasks."""
    if "batch" not in _prepared:
        _prepared["batch"] = _make(arrow_schema(schema))
    return _prepared["batch"]


def _make(schema: pa.Schema) -> pa.RecordBatch:
    """Rows as messages have them: an id, a kilobyte, a time, no headers."""
    values: dict[str, Any] = {
        "id": "0198b2a4-7f00-7000-8000-000000000000",
        "queue": "orders",
        "payload": os.urandom(1024),
        "fairness_key": "default",
        "receipt": "bench/1/1/1",
        "throttle_keys": [],
        "headers": [],
        "weight": 1,
        "attempts": 0,
        "deliveries": 1,
        "progress": 0,
        "enqueued_at": 1_760_000_000_000_000,
    }
    columns = [pa.array([values.get(field.name)] * _BATCH_ROWS, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class BareWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for batch in iterator:
            batch.num_rows  # noqa: B018 - each is taken, and dropped
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None: ...
