"""`quarantine`: the bad rows of a DataFrame become dead letters of a queue, the good ones flow on.

A narrow transformation like any other: nothing happens until Spark wants the good rows, and then each task
looks at the rows of its partition. When it has seen the last of them, and before Spark takes the partition
for done, it publishes its bad rows (set_aside.py says under which token). What was read of a partition that
is not read to its end leads to nothing.
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

#: Behind the columns of the user, in this order, those that are needed.
_PARTITION: Final = "__fairlead_partition"
_SAID: Final = "__fairlead_said"
_KEY: Final = "__fairlead_key"
_PAYLOAD: Final = "__fairlead_payload"

#: Together with the name of a queue and the rest they are a token, which has at most 512 bytes.
_MAX_NAME_BYTES = 64
_MAX_TOKEN_BYTES = 128
#: Of the text of a check in a header, and in an error.
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
    """The good rows of `df`, with its schema; the bad ones become dead letters of `queue` as the good ones
    are computed.

    `check` is a condition, as a Column or in SQL, where true is good and false and null are bad; or a
    function of a row (a dict) that returns None or True for a good one, False or a text for a bad one, or
    raises; or the same for whole batches, where its parameter is annotated as `pa.RecordBatch`, `pa.Table` or
    `pd.DataFrame`. A row that makes the function raise has the reason `handler_exception`.

    A dead letter carries its row as JSON, from which `returned` makes the same row again, or what the column
    `payload` has. The rows of a partition become dead letters together, once: for a stream per query,
    micro-batch and partition, for a batch per call of this function or `dedupe_token`, and partition. `name`
    tells two of one query, or under one token, apart that have the same check. A task whose rows cannot be
    published fails, and Spark tries it again: no row is lost. `connection` takes the options of
    `format("fairlead")` that say how to reach the server.
    """
    from pyspark.sql import functions as f

    options = _read_connection(connection, endpoint=endpoint, queue=queue)
    word = read_reason(reason).word
    schema = df.schema
    judge, words, condition = _read_check(check, word)
    hidden = {_PARTITION: f.spark_partition_id()}
    if condition is not None:
        hidden[_SAID] = condition.cast("boolean")
    if fairness_key is not None:
        hidden[_KEY] = _as_column(fairness_key).cast("string")
    if payload is not None:
        hidden[_PAYLOAD] = _as_column(payload).cast("binary")
    else:
        check_rows_fit_json(schema)
    shown = words if len(words) <= _SHOWN_CHARACTERS else words[: _SHOWN_CHARACTERS - 3] + "..."
    name = (
        check_text(name, "name", _MAX_NAME_BYTES)
        if name is not None
        else _name_of(word, words, check, schema)
    )
    task = QuarantineTask(
        options,
        judge,
        schema,
        tuple(hidden),
        _run_of(df, dedupe_token),
        name,
        _checked_headers(headers, shown),
    )

    def sift(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batches)

    rows = df.select("*", *hidden.values())
    # By number, since mapInArrow of Spark 4.3 does not find a column with a dot or a backtick in its name.
    return rows.toDF(*map(str, range(len(schema.fields) + len(hidden)))).mapInArrow(sift, schema)


@dataclass(frozen=True)
class QuarantineTask:
    """What a task does with its partition; made by the driver, and pickled."""

    options: SparkOptions
    judge: RowCheck
    schema: StructType
    hidden: tuple[str, ...]
    #: None: of a stream, whose micro-batch the task knows.
    run: str | None
    name: str
    headers: Mapping[str, str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partition = -1
        with closing(BadRows(self.options)) as bad:
            for batch in batches:
                rows, beside = self._split(batch)
                defects = self.judge.of(rows, beside.get(_SAID))
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
                # The partition of this transformation, not of the task: in one task there may be several, and
                # one in several.
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
    """Who judges, how it is called, and what Spark is to compute for it."""
    from pyspark.sql import Column
    from pyspark.sql import functions as f

    if isinstance(check, str):
        return ColumnCheck(check, reason), check, f.expr(check)
    if isinstance(check, Column):
        words = _column_words(check)
        return ColumnCheck(words, reason), words, check
    if not callable(check):
        raise InvalidRequest("check", "a condition (a Column or SQL), or a function of a row", type(check))
    return check_of(check, reason), _function_words(check), None


def _run_of(df: DataFrame, dedupe_token: str | None) -> str | None:
    """What does not change when the same work is done again: None for a stream, whose tasks know it."""
    if df.isStreaming:
        if dedupe_token is not None:
            raise InvalidRequest(
                "dedupe_token",
                "left out for a stream, which has its query and micro-batch for it",
                dedupe_token,
            )
        return None
    if dedupe_token is not None:
        return check_text(dedupe_token, "dedupe_token", _MAX_TOKEN_BYTES)
    query, batch = _micro_batch_of_this_thread(df)
    return f"{query}/{batch}" if query and batch else str(uuid4())


def _micro_batch_of_this_thread(df: DataFrame) -> tuple[str | None, str | None]:
    """In a `foreachBatch`, the batch it is for: when that is run again, this call is the same one."""
    try:
        context = df.sparkSession.sparkContext
    except Exception:
        # Spark Connect has none to ask.
        return None, None
    return context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)


def _read_connection(connection: Mapping[str, str], *, endpoint: str, queue: str) -> SparkOptions:
    return read_options(
        {**spelled_as_options(connection), "endpoint": endpoint, "queue": queue}
    ).for_direction("quarantine")


def _name_of(reason: str, words: str, check: object, schema: StructType) -> str:
    """The same whenever the same program is run."""
    return sha256("\0".join([reason, words, fingerprint(check), schema.simpleString()]).encode()).hexdigest()[
        :16
    ]


def _checked_headers(headers: Mapping[str, str] | None, shown: str) -> dict[str, str]:
    made = dict(headers or {})
    if not all(isinstance(name, str) and isinstance(value, str) for name, value in made.items()):
        raise InvalidRequest("headers", "a mapping of text to text", made)
    made["fairlead-check"] = shown
    size = sum(len(name.encode()) + len(value.encode()) for name, value in made.items())
    if size > MAX_HEADERS_BYTES // 2:
        raise InvalidRequest("headers", f"at most {MAX_HEADERS_BYTES // 2} bytes", f"{size} bytes")
    return made


def _as_column(value: Column | str) -> Column:
    from pyspark.sql import functions as f

    return f.col(value) if isinstance(value, str) else value


def _column_words(check: Column) -> str:
    """Spark shows a Column as Column<'...'>."""
    text = str(check)
    return text[8:-2] if text.startswith("Column<'") and text.endswith("'>") else text


def _function_words(check: Callable[[Any], Any]) -> str:
    function = getattr(check, "func", check)
    module, name = (
        getattr(function, "__module__", None),
        getattr(function, "__qualname__", type(function).__qualname__),
    )
    return f"{module}.{name}" if module else name
