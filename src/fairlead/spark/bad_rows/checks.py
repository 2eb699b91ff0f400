"""Finds the bad rows of a batch: by a condition that Spark computed, or by a function of rows or whole
batches.

A function that raises for a row, returns a wrong value, or cannot be given the row makes only this row bad. A
wrong function, such as one that returns fewer answers than rows, fails the task.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairlead.errors import InvalidRequest
from fairlead.model.failure import read_reason
from fairlead.spark.bad_rows.row_json import texts_in

#: Longer texts would make requests of many bad rows large. The first lines of a text tell the error.
_MAX_CHARACTERS = 2000
_Kind = Literal["batch", "table", "pandas"]
_BATCHES: dict[tuple[str, str], _Kind] = {
    ("pyarrow", "RecordBatch"): "batch",
    ("pyarrow", "Table"): "table",
    ("pandas", "DataFrame"): "pandas",
}


class RowDefect(NamedTuple):
    """Why a row is bad: the word of a failure reason, and the error text of the dead letter."""

    reason: str
    error: str


#: The defects of a batch by the index of the row.
RowDefects = dict[int, RowDefect]


class RowCheck(Protocol):
    """`good` is the condition that Spark computed, or None for a function."""

    def find_defects(self, rows: pa.RecordBatch, good: pa.Array | None) -> RowDefects: ...


class ColumnCheck:
    """A condition that Spark computed: true is good."""

    def __init__(self, text: str, reason: str) -> None:
        self._false = RowDefect(reason, _cut(f"{text} is false"))
        self._null = RowDefect(reason, _cut(f"{text} is null"))

    def find_defects(self, rows: pa.RecordBatch, good: pa.Array | None) -> RowDefects:
        assert good is not None
        if good.null_count == 0 and good.true_count == len(good):
            return {}
        nulls = good.is_null()
        bad = pc.indices_nonzero(pc.invert(pc.fill_null(good, False))).to_pylist()
        return {at: self._null if nulls[at].as_py() else self._false for at in bad}


class RowFunctionCheck:
    """A function of one row, given as a dict of its columns."""

    def __init__(self, function: Callable[[dict[str, Any]], Any], reason: str) -> None:
        self._function = function
        self._reason = reason

    def find_defects(self, rows: pa.RecordBatch, good: pa.Array | None) -> RowDefects:
        found: RowDefects = {}
        for at, row in enumerate(_as_dicts(rows)):
            if isinstance(row, RowDefect):
                found[at] = row
                continue
            try:
                answer = self._function(row)
            except Exception as raised:
                found[at] = _of_raised(raised)
                continue
            if answer is None or answer is True:
                continue
            defect = _defect_of(answer, self._reason)
            if defect is not None:
                found[at] = defect
        return found


class BatchFunctionCheck:
    """A function of a whole batch, in the type of its parameter. A batch for which the function raises is
    halved until each bad row is alone.
    """

    def __init__(self, function: Callable[[Any], Any], kind: _Kind, reason: str) -> None:
        self._function = function
        self._kind = kind
        self._reason = reason

    def find_defects(self, rows: pa.RecordBatch, good: pa.Array | None) -> RowDefects:
        found: RowDefects = {}
        parts = [(0, rows)]
        while parts:
            start, part = parts.pop()
            try:
                answers = self._function(self._as_parameter(part))
            except Exception as raised:
                half = part.num_rows // 2
                if not half:
                    found[start] = _of_raised(raised)
                    continue
                parts += [(start, part.slice(0, half)), (start + half, part.slice(half))]
                continue
            for at, answer in enumerate(_listed(answers, part.num_rows)):
                if answer is None or answer is True:
                    continue
                defect = _defect_of(answer, self._reason)
                if defect is not None:
                    found[start + at] = defect
        return found

    def _as_parameter(self, part: pa.RecordBatch) -> Any:
        match self._kind:
            case "batch":
                return part
            case "table":
                return pa.Table.from_batches([part])
            case "pandas":
                return part.to_pandas()


def check_of(function: Callable[[Any], Any], reason: str) -> RowCheck:
    """The annotation of the function's parameter chooses rows or batches; without an annotation it gets rows."""
    kind = _annotated(function)
    return RowFunctionCheck(function, reason) if kind is None else BatchFunctionCheck(function, kind, reason)


def _annotated(function: Callable[[Any], Any]) -> _Kind | None:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    if not parameters:
        raise InvalidRequest(
            "check",
            "a function of one row, or of a batch of rows",
            f"{getattr(function, '__name__', function)}()",
        )
    wanted = parameters[0].annotation
    if isinstance(wanted, str):
        return next((kind for (_, name), kind in _BATCHES.items() if wanted.rpartition(".")[2] == name), None)
    # Compared by name, so that pandas need not be installed.
    return _BATCHES.get(
        (str(getattr(wanted, "__module__", "")).partition(".")[0], getattr(wanted, "__name__", ""))
    )


def _as_dicts(rows: pa.RecordBatch) -> Sequence[dict[str, Any] | RowDefect]:
    try:
        shown: list[dict[str, Any] | RowDefect] = rows.to_pylist(maps_as_pydicts="strict")
    except Exception as raised:
        # A value that Python cannot represent, such as a date after the year 9999. Convert the rows one by
        # one.
        if rows.num_rows == 1:
            return [
                RowDefect("serialization_error", _cut(f"Python cannot hold this row: {_describe(raised)}"))
            ]
        return [one for at in range(rows.num_rows) for one in _as_dicts(rows.slice(at, 1))]
    return shown


def _defect_of(answer: Any, reason: str) -> RowDefect | None:
    """The defect that an answer of a function means; None for a good row."""
    if isinstance(answer, str):
        return RowDefect(reason, _cut(answer) or "the check returned false")
    if isinstance(answer, (bool, np.bool_)):
        return None if answer else RowDefect(reason, "the check returned false")
    if isinstance(answer, BaseException):
        return _of_raised(answer)
    return RowDefect(
        "handler_exception",
        _cut(
            f"expected the check to return None or True for a good row, False or a text for a bad row, got {answer!r}"
        ),
    )


def _listed(answers: Any, count: int) -> Sequence[Any]:
    if answers is None:
        return [None] * count
    if isinstance(answers, (pa.Array, pa.ChunkedArray)):
        # A null condition is not true, as in a column. A null text means a good row.
        answers = pc.fill_null(answers, False) if pa.types.is_boolean(answers.type) else answers
        answers = texts_in(answers)
    elif hasattr(answers, "tolist"):
        answers = answers.tolist()
    if isinstance(answers, Sequence) and not isinstance(answers, str | bytes):
        if len(answers) == count:
            return answers
        got = f"{len(answers)} answers"
    else:
        got = type(answers).__name__
    raise InvalidRequest(
        "the result of a check of batches",
        f"one answer for each of its {count} rows, or None when all are good",
        got,
    )


def _of_raised(raised: BaseException) -> RowDefect:
    """The defect of a raised error. An error with a `reason`, such as `StepFailed`, chooses its failure
    reason.
    """
    reason = getattr(raised, "reason", None)
    try:
        word = read_reason(reason).word
    except InvalidRequest:
        word = "handler_exception"
    return RowDefect(word, _cut(_describe(raised)))


def _describe(raised: BaseException) -> str:
    return f"{type(raised).__name__}: {raised}" if str(raised) else type(raised).__name__


def _cut(text: str) -> str:
    text = text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 3] + "..."
    # Python allows a lone surrogate in a text, Arrow does not.
    return text.encode("utf-8", "replace").decode()
