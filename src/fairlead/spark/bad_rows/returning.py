"""`returned`: rows of redriven dead letters as a stream, so that the same job can process them again."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

from fairlead.errors import InvalidRequest
from fairlead.spark.bad_rows.quarantining import quarantine
from fairlead.spark.bad_rows.row_json import check_rows_fit_json, json_type, restored
from fairlead.spark.options import OPTIONS, spelled_as_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_MESSAGE: Final = ("id", "fairness_key", "headers", "attempts", "deliveries", "enqueued_at", "receipt")
_UNREAD: Final = "__fairlead_unread"


def returned(
    spark: SparkSession,
    queue: str,
    *,
    schema: StructType | str,
    endpoint: str,
    consumer: str | None = None,
    message: str | None = None,
    **options: str,
) -> DataFrame:
    """Return the rows that `fairlead redrive` returned to `queue`, as a streaming DataFrame with their former
    schema.

    A message is completed when its micro-batch is in Spark's commit log, as in any stream from a queue.
    `options` are those of such a stream; `consumer` defaults to `returned:<queue>`. With `message`, a column
    of that name has the message's id, fairness key, headers, attempts, deliveries, time of the enqueue and
    receipt. A message that is not a row of this schema becomes a dead letter again, unchanged, with the
    reason `serialization_error`; it does not end the query, and never appears as a row of nulls.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructType

    # Many branches for radon, which counts comprehensions: the function is a straight line.
    wanted = _read_schema(schema)
    if message is not None and message in wanted.names:
        raise InvalidRequest("message", "a name that is no column of the rows", message)
    given = spelled_as_options(options)
    consumer = consumer or f"returned:{queue}"
    reader = spark.readStream.format("fairlead").options(
        **{**given, "endpoint": endpoint, "consumer": consumer}
    )
    written = json_type(wanted)
    assert isinstance(written, StructType)
    # The text that could not be read is kept in a column: only this tells a wrong payload from a row of
    # nulls.
    read = f.from_json(
        f.col("payload").cast("string"),
        StructType([*written.fields]).add(_UNREAD, StringType()),
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _UNREAD},
    )
    messages = reader.load(queue).select(f.struct(*_MESSAGE).alias("message"), "payload", read.alias("row"))
    connection_names = {name.lower() for name, option in OPTIONS.items() if "quarantine" in option.directions}
    connection = {name: value for name, value in given.items() if name.lower() in connection_names}
    rows = quarantine(
        messages,
        f.col("row").isNotNull() & f.col(f"row.{_UNREAD}").isNull(),
        queue=queue,
        endpoint=endpoint,
        reason="serialization_error",
        name=f"returned-{sha256(consumer.encode()).hexdigest()[:16]}",
        payload="payload",
        fairness_key="message.fairness_key",
        headers=None,
        **connection,
    )
    columns = [
        restored(f.col("row").getField(field.name), field.dataType).alias(field.name)
        for field in wanted.fields
    ]
    return rows.select(*columns, *([f.col("message").alias(message)] if message is not None else []))


def _read_schema(schema: StructType | str) -> StructType:
    from pyspark.sql.types import StructType

    wanted = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(wanted, StructType):
        raise InvalidRequest("schema", "a StructType, such as df.schema, or its text", type(schema))
    check_rows_fit_json(wanted)
    return wanted
