"""`quarantine`: bad rows of a DataFrame become dead letters of a queue; good rows pass.

This is a narrow transformation: nothing happens until Spark computes the good rows. Then each task checks the
rows of its partition. After the last row, and before the task is complete, the task publishes its bad rows
(`dead_letters` explains the token). A task that does not read its partition to the end publishes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa

from fairlead.errors import InvalidRequest
from fairlead.model.checks import check_text
from fairlead.model.failure import FailureReason, read_reason
from fairlead.model.limits import MAX_HEADERS_BYTES
from fairlead.spark.bad_rows.checks import ColumnCheck, RowCheck, check_of
from fairlead.spark.bad_rows.dead_letters import BadRows
from fairlead.spark.bad_rows.fingerprint import fingerprint
from fairlead.spark.bad_rows.row_json import check_rows_fit_json, rows_to_json, texts_in
from fairlead.spark.data_source.task import BATCH_ID, QUERY_ID, check_input_ended, micro_batch_token
from fairlead.spark.options import SparkOptions, read_options, spelled_as_options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

#: Columns after those of the user, in this order. Columns that a call does not need are left out.
_PARTITION: Final = "__fairlead_partition"
_GOOD: Final = "__fairlead_good"
_KEY: Final = "__fairlead_key"
_PAYLOAD: Final = "__fairlead_payload"

#: Name and token are parts of the token of a write, which has at most 512 bytes with the name of the queue.
_MAX_NAME_BYTES = 64
_MAX_TOKEN_BYTES = 128
#: How much of the check's text a header shows.
_SHOWN_CHARACTERS = 200


def quarantine(
    df: DataFrame,
    check: Column | str | Callable[[Any], Any],
    *,
    queue: str,
    endpoint: str,
    reason: FailureReason | str = "validation_failure",
    name: str | None = None,
    dedupe_token: str | None = None,
    fairness_key: Column | str | None = None,
    headers: Mapping[str, str] | None = None,
    payload: Column | str | None = None,
    **connection: str,
) -> DataFrame:
    """Return the good rows of `df`, with its schema. Bad rows become dead letters of `queue` when the good
    rows are computed.

    `check` is a condition, as a Column or in SQL: true is good, false and null are bad. Or it is a function
    of a row (a dict) that returns None or True for a good row, False or a text for a bad row, or raises. A
    function whose parameter is annotated as `pa.RecordBatch`, `pa.Table` or `pd.DataFrame` checks whole
    batches. A row for which the function raises has the reason `handler_exception`.

    A dead letter carries its row as JSON, from which `returned` restores the row, or the value of the column
    `payload`. The bad rows of a partition become dead letters together, once: in a stream for each query,
    micro-batch and partition; in a batch for each call of this function, or `dedupe_token`, and partition.
    `name` distinguishes two calls with the same check in one query or under one token. A task whose bad rows
    cannot be published fails, and Spark retries it, so no row is lost. `connection` takes the connection
    options of `format("fairlead")`.
    """
    from pyspark.sql import functions as f

    options = _read_connection(connection, endpoint=endpoint, queue=queue)
    word = read_reason(reason).word
    schema = df.schema
    row_check, text, condition = _read_check(check, word)
    hidden = {_PARTITION: f.spark_partition_id()}
    if condition is not None:
        hidden[_GOOD] = condition.cast("boolean")
    if fairness_key is not None:
        hidden[_KEY] = _as_column(fairness_key).cast("string")
    if payload is not None:
        hidden[_PAYLOAD] = _as_column(payload).cast("binary")
    else:
        check_rows_fit_json(schema)
    if name is None:
        name = _name_of(word, text, check, schema)
    else:
        name = check_text(name, "name", _MAX_NAME_BYTES)
    task = QuarantineTask(
        options,
        row_check,
        schema,
        tuple(hidden),
        _run_of(df, dedupe_token),
        name,
        _checked_headers(headers, text),
    )

    def run_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batches)

    rows = df.select("*", *hidden.values())
    # Columns are named by number: mapInArrow of Spark 4.3 does not find a name with a dot or a backtick.
    return rows.toDF(*map(str, range(len(schema.fields) + len(hidden)))).mapInArrow(run_task, schema)


@dataclass(frozen=True)
class QuarantineTask:
    """The function of a task; made by the driver, and pickled."""

    options: SparkOptions
    check: RowCheck
    schema: StructType
    hidden: tuple[str, ...]
    #: None in a stream: the task reads its micro-batch from Spark.
    run: str | None
    name: str
    headers: Mapping[str, str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partition = -1
        with closing(BadRows(self.options)) as bad:
            for batch in batches:
                rows, beside = self._split(batch)
                defects = self.check.find_defects(rows, beside.get(_GOOD))
                if not defects:
                    yield rows
                    continue
                partition = beside[_PARTITION][0].as_py()
                places = sorted(defects)
                chosen = pa.array(places, pa.int64())
                keys = texts_in(beside[_KEY].take(chosen)) if _KEY in beside else [None] * len(places)
                bad.add(
                    self._payloads(rows.take(chosen), beside, chosen), keys, [defects[at] for at in places]
                )
                good = [True] * rows.num_rows
                for at in places:
                    good[at] = False
                if len(places) < rows.num_rows:
                    yield rows.filter(pa.array(good))
            if bad.count:
                check_input_ended()
                run = micro_batch_token() if self.run is None else self.run
                where = {"fairlead-run": run, "fairlead-partition": str(partition)}
                # The partition of this transformation, not of the task: a task may compute several
                # partitions, and several tasks the same one.
                bad.publish(
                    f"quarantine/{self.options.queue}/{run}/{self.name}/{partition}",
                    {**self.headers, **where},
                )

    def _split(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, pa.Array]]:
        names = self.schema.names
        fields = [batch.schema.field(at).with_name(name) for at, name in enumerate(names)]
        rows = pa.RecordBatch.from_arrays(batch.columns[: len(names)], schema=pa.schema(fields))
        return rows, dict(zip(self.hidden, batch.columns[len(names) :], strict=True))

    def _payloads(
        self, rows: pa.RecordBatch, beside: Mapping[str, pa.Array], chosen: pa.Array
    ) -> list[bytes]:
        if _PAYLOAD in beside:
            return [value or b"" for value in beside[_PAYLOAD].take(chosen).to_pylist()]
        return rows_to_json(rows, self.schema)


def _read_check(check: object, reason: str) -> tuple[RowCheck, str, Column | None]:
    """The check, its text, and the condition that Spark computes for it, if any."""
    from pyspark.sql import Column
    from pyspark.sql import functions as f

    if isinstance(check, str):
        return ColumnCheck(check, reason), check, f.expr(check)
    if isinstance(check, Column):
        text = _column_text(check)
        return ColumnCheck(text, reason), text, check
    if not callable(check):
        raise InvalidRequest("check", "a condition (a Column or SQL), or a function of a row", type(check))
    return check_of(check, reason), _function_text(check), None


def _run_of(df: DataFrame, dedupe_token: str | None) -> str | None:
    """A name for the work that stays the same when the work is repeated; None for a stream, whose tasks know
    it.
    """
    if df.isStreaming:
        if dedupe_token is not None:
            raise InvalidRequest(
                "dedupe_token",
                "left out for a stream, which uses its query and micro-batch",
                dedupe_token,
            )
        return None
    if dedupe_token is not None:
        return check_text(dedupe_token, "dedupe_token", _MAX_TOKEN_BYTES)
    query, batch = _micro_batch_of_this_thread(df)
    return f"{query}/{batch}" if query and batch else str(uuid4())


def _micro_batch_of_this_thread(df: DataFrame) -> tuple[str | None, str | None]:
    """Query and micro-batch of a running `foreachBatch`, which are the same when the batch is run again."""
    try:
        context = df.sparkSession.sparkContext
    except Exception:
        # A session of Spark Connect has no context.
        return None, None
    return context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)


def _read_connection(connection: Mapping[str, str], *, endpoint: str, queue: str) -> SparkOptions:
    return read_options(
        {**spelled_as_options(connection), "endpoint": endpoint, "queue": queue}
    ).for_direction("quarantine")


def _name_of(reason: str, text: str, check: object, schema: StructType) -> str:
    """A name for the check that is the same in every run of the program."""
    return sha256("\0".join([reason, text, fingerprint(check), schema.simpleString()]).encode()).hexdigest()[
        :16
    ]


def _checked_headers(headers: Mapping[str, str] | None, check: str) -> dict[str, str]:
    made = dict(headers or {})
    if not all(isinstance(name, str) and isinstance(value, str) for name, value in made.items()):
        raise InvalidRequest("headers", "a mapping of text to text", made)
    is_long = len(check) > _SHOWN_CHARACTERS
    made["fairlead-check"] = check[: _SHOWN_CHARACTERS - 3] + "..." if is_long else check
    size = sum(len(name.encode()) + len(value.encode()) for name, value in made.items())
    if size > MAX_HEADERS_BYTES // 2:
        raise InvalidRequest("headers", f"at most {MAX_HEADERS_BYTES // 2} bytes", f"{size} bytes")
    return made


def _as_column(value: Column | str) -> Column:
    from pyspark.sql import functions as f

    return f.col(value) if isinstance(value, str) else value


def _column_text(check: Column) -> str:
    """The text of a condition, which Spark shows as Column<'...'>."""
    text = str(check)
    return text[8:-2] if text.startswith("Column<'") and text.endswith("'>") else text


def _function_text(check: Callable[[Any], Any]) -> str:
    function = getattr(check, "func", check)
    module, name = (
        getattr(function, "__module__", None),
        getattr(function, "__qualname__", type(function).__qualname__),
    )
    return f"{module}.{name}" if module else name
