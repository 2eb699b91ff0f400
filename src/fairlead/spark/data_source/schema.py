"""The columns of rows that are read: one table for Spark's schema, the check of a given schema, and the docs.

All columns are nullable for Spark, as in other sources. The meanings tell which columns can be null.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from fairlead.errors import InvalidRequest

if TYPE_CHECKING:
    import pyarrow as pa


class ReadColumn(NamedTuple):
    kind: DataType
    meaning: str


_FAILURE = StructType(
    [
        StructField("at", TimestampType()),
        StructField("attempt", IntegerType()),
        StructField("reason", StringType()),
        StructField("error", StringType()),
        StructField("consumer", StringType()),
        StructField("rule", StringType()),
        StructField("due", TimestampType()),
    ]
)

COLUMNS: Final = {
    "id": ReadColumn(StringType(), "the message's id, a UUID; ids sort by the time of the enqueue"),
    "queue": ReadColumn(StringType(), "the queue that the row is read from"),
    "fairness_key": ReadColumn(StringType(), "the fairness key; `default` for a message without one"),
    "weight": ReadColumn(IntegerType(), "the weight of the fairness key"),
    "throttle_keys": ReadColumn(ArrayType(StringType()), "the throttle keys; empty without any"),
    "stream": ReadColumn(StringType(), "the stream; null without one"),
    "seq": ReadColumn(LongType(), "the position in the stream; null without a stream"),
    "payload": ReadColumn(
        BinaryType(),
        "the payload; null with `includePayload` false, and in batch reads whose API key may not read payloads",
    ),
    "headers": ReadColumn(
        MapType(StringType(), StringType()),
        "the headers; empty without any, null with `includeHeaders` false",
    ),
    "attempts": ReadColumn(IntegerType(), "failed tries so far"),
    "deliveries": ReadColumn(IntegerType(), "deliveries so far, including this one"),
    "progress": ReadColumn(LongType(), "completed steps, as bits"),
    "carry": ReadColumn(BinaryType(), "the value that an earlier try stored for the next; null without one"),
    "enqueued_at": ReadColumn(TimestampType(), "the time of the enqueue"),
    "receipt": ReadColumn(
        StringType(), "identifies the delivery for `operation = settle`; null in batch reads"
    ),
}

#: After the other columns, with `view = dead`.
DEAD_COLUMNS: Final = {
    "dead_since": ReadColumn(TimestampType(), "the time when the message became a dead letter"),
    "reason": ReadColumn(StringType(), "the reason of the last failure, such as `timeout_exceeded`"),
    "rule": ReadColumn(StringType(), "the rule that decided that the message is dead"),
    "error": ReadColumn(StringType(), "the error text of the last failure"),
    "failures": ReadColumn(ArrayType(_FAILURE), "the first failure and the last 31, oldest first"),
    "source": ReadColumn(StringType(), "the queue that the message came from"),
}


def read_schema(view: str = "messages") -> StructType:
    columns = COLUMNS | DEAD_COLUMNS if view == "dead" else COLUMNS
    return StructType([StructField(name, column.kind) for name, column in columns.items()])


def check_read_schema(given: StructType, view: str = "messages") -> None:
    """Raises `InvalidRequest` for the first column that differs from the source's schema."""
    wanted = read_schema(view)
    hint = "leave .schema(...) out, and select or cast afterwards"
    for at, field in enumerate(given.fields):
        if field.name not in wanted.names:
            raise InvalidRequest("the schema's columns", f"{', '.join(wanted.names)}; {hint}", field.name)
        kind = wanted[field.name].dataType
        if not _alike(field.dataType, kind):
            raise InvalidRequest(
                f"column {field.name!r} of the schema",
                f"{kind.simpleString()}; {hint}",
                field.dataType.simpleString(),
            )
        if at >= len(wanted.names) or field.name != wanted.names[at]:
            raise InvalidRequest(
                f"column {field.name!r} of the schema",
                f"there once, at place {wanted.names.index(field.name) + 1}; {hint}",
                at + 1,
            )
    if len(given.fields) < len(wanted.fields):
        raise InvalidRequest(
            f"column {wanted.names[len(given.fields)]!r}", f"in the schema; {hint}", given.names
        )


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark requires of record batches with this schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def columns_table(columns: dict[str, ReadColumn]) -> Iterator[str]:
    yield "| column | type | meaning |"
    yield "|---|---|---|"
    for name, column in columns.items():
        yield f"| `{name}` | `{column.kind.simpleString()}` | {column.meaning} |"


def _alike(given: DataType, wanted: DataType) -> bool:
    """Compare types, but not nullability."""
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        pairs = zip(given.fields, wanted.fields, strict=False)
        return given.names == wanted.names and all(
            _alike(one.dataType, other.dataType) for one, other in pairs
        )
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        return _alike(given.elementType, wanted.elementType)
    if isinstance(given, MapType) and isinstance(wanted, MapType):
        return _alike(given.keyType, wanted.keyType) and _alike(given.valueType, wanted.valueType)
    return given == wanted
