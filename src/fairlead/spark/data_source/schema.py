"""The columns of rows read: one table for Spark's schema, for the check of a schema that somebody gives, and
for the docs.

All columns may be null for Spark, as with other sources; the words say which ever are.
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
    words: str


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
    "id": ReadColumn(StringType(), "the message's id, a UUID; ids sort by the time of enqueuing"),
    "queue": ReadColumn(StringType(), "the queue it is read from"),
    "fairness_key": ReadColumn(StringType(), "its fairness key, `default` unless it was given one"),
    "weight": ReadColumn(IntegerType(), "weight of its fairness key"),
    "throttle_keys": ReadColumn(ArrayType(StringType()), "its throttle keys; empty when it has none"),
    "stream": ReadColumn(StringType(), "its stream, null when it is in none"),
    "seq": ReadColumn(LongType(), "its place in the stream, null when it is in none"),
    "payload": ReadColumn(
        BinaryType(),
        "what it carries; null with `includePayload` false, and in batch reads where the key may not read it",
    ),
    "headers": ReadColumn(
        MapType(StringType(), StringType()),
        "its headers; empty when it has none, null with `includeHeaders` false",
    ),
    "attempts": ReadColumn(IntegerType(), "failed tries so far"),
    "deliveries": ReadColumn(IntegerType(), "how often it was handed out, this time included"),
    "progress": ReadColumn(LongType(), "steps done so far, as bits"),
    "carry": ReadColumn(BinaryType(), "what an earlier try left for the next, null when there is nothing"),
    "enqueued_at": ReadColumn(TimestampType(), "when it was enqueued"),
    "receipt": ReadColumn(
        StringType(), "what `operation = settle` needs to say what became of it; null in batch reads"
    ),
}

#: Behind the others, with `view = dead`.
DEAD_COLUMNS: Final = {
    "dead_since": ReadColumn(TimestampType(), "when it became a dead letter"),
    "reason": ReadColumn(StringType(), "reason of the last failure, such as `timeout_exceeded`"),
    "rule": ReadColumn(StringType(), "what decided that it is dead"),
    "error": ReadColumn(StringType(), "text of the last failure"),
    "failures": ReadColumn(ArrayType(_FAILURE), "the first failure and the last 31, oldest first"),
    "source": ReadColumn(StringType(), "the queue it came from"),
}


def read_schema(view: str = "messages") -> StructType:
    columns = COLUMNS | DEAD_COLUMNS if view == "dead" else COLUMNS
    return StructType([StructField(name, column.kind) for name, column in columns.items()])


def check_read_schema(given: StructType, view: str = "messages") -> None:
    """Raises `InvalidRequest` that names the first column of a given schema that is not as the source has it."""
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
    """Exactly what Spark expects of a record batch with this schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def columns_table(columns: dict[str, ReadColumn]) -> Iterator[str]:
    yield "| column | type | meaning |"
    yield "|---|---|---|"
    for name, column in columns.items():
        yield f"| `{name}` | `{column.kind.simpleString()}` | {column.words} |"


def _alike(given: DataType, wanted: DataType) -> bool:
    """Whether nulls may be inside is of no account."""
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
