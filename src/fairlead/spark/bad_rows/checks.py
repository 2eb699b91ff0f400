"""Which rows of a batch are bad, and why: from what Spark has computed, or by asking a function about rows or
whole batches.

Whatever a function does to a row is that row's own affair: it raises, says nonsense, or cannot even be shown
the row, and only that row is bad. What is wrong with the function itself (as many answers as there are rows
is the least) ends the task.
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

#: More would make a request of many bad rows large; the first lines of a text say what is wrong.
_MAX_CHARACTERS = 2000
_Kind = Literal["batch", "table", "pandas"]
_BATCHES: dict[tuple[str, str], _Kind] = {
    ("pyarrow", "RecordBatch"): "batch",
    ("pyarrow", "Table"): "table",
    ("pandas", "DataFrame"): "pandas",
}


class Defect(NamedTuple):
    """Why a row is bad: a failure reason by its word, and a text for whoever looks at the dead letter."""

    reason: str
    error: str


#: By their place in the batch.
Defects = dict[int, Defect]


class RowCheck(Protocol):
    """`said` is the column that Spark has computed, None where it has none to compute."""

    def of(self, rows: pa.RecordBatch, said: pa.Array | None) -> Defects: ...


class ColumnCheck:
    """A condition that Spark has looked at: true is good."""

    def __init__(self, words: str, reason: str) -> None:
        self._false = Defect(reason, _cut(f"{words} is false"))
        self._null = Defect(reason, _cut(f"{words} is null"))

    def of(self, rows: pa.RecordBatch, said: pa.Array | None) -> Defects:
        assert said is not None
        if said.null_count == 0 and said.true_count == len(said):
            return {}
        nulls = said.is_null()
        bad = pc.indices_nonzero(pc.invert(pc.fill_null(said, False))).to_pylist()
        return {at: self._null if nulls[at].as_py() else self._false for at in bad}


class RowFunction:
    """A function of one row, as a dict with its columns."""

    def __init__(self, function: Callable[[dict[str, Any]], Any], reason: str) -> None:
        self._function = function
        self._reason = reason

    def of(self, rows: pa.RecordBatch, said: pa.Array | None) -> Defects:
        found: Defects = {}
        for at, row in enumerate(_shown(rows)):
            if isinstance(row, Defect):
                found[at] = row
                continue
            try:
                answer = self._function(row)
            except Exception as raised:
                found[at] = _of_raised(raised)
                continue
            if (
                answer is not None
                and answer is not True
                and (defect := _read(answer, self._reason)) is not None
            ):
                found[at] = defect
        return found


class BatchFunction:
    """A function of a whole batch, as what it asks for. Where it raises, the batch is halved until the guilty
    rows are alone.
    """

    def __init__(self, function: Callable[[Any], Any], kind: _Kind, reason: str) -> None:
        self._function = function
        self._kind = kind
        self._reason = reason

    def of(self, rows: pa.RecordBatch, said: pa.Array | None) -> Defects:
        found: Defects = {}
        parts = [(0, rows)]
        while parts:
            start, part = parts.pop()
            try:
                answers = self._function(self._asked_for(part))
            except Exception as raised:
                half = part.num_rows // 2
                if not half:
                    found[start] = _of_raised(raised)
                    continue
                parts += [(start, part.slice(0, half)), (start + half, part.slice(half))]
                continue
            for at, answer in enumerate(_listed(answers, part.num_rows)):
                if (
                    answer is not None
                    and answer is not True
                    and (defect := _read(answer, self._reason)) is not None
                ):
                    found[start + at] = defect
        return found

    def _asked_for(self, part: pa.RecordBatch) -> Any:
        match self._kind:
            case "batch":
                return part
            case "table":
                return pa.Table.from_batches([part])
            case "pandas":
                return part.to_pandas()


def check_of(function: Callable[[Any], Any], reason: str) -> RowCheck:
    """A function says by the annotation of its parameter what it wants to see; without one it sees a row."""
    kind = _annotated(function)
    return RowFunction(function, reason) if kind is None else BatchFunction(function, kind, reason)


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
    # Asked by name, so that nobody who uses neither needs to have pandas.
    return _BATCHES.get(
        (str(getattr(wanted, "__module__", "")).partition(".")[0], getattr(wanted, "__name__", ""))
    )


def _shown(rows: pa.RecordBatch) -> Sequence[dict[str, Any] | Defect]:
    try:
        shown: list[dict[str, Any] | Defect] = rows.to_pylist(maps_as_pydicts="strict")
    except Exception as raised:
        # A value that Python has no place for, such as a date behind the year 9999: one by one the others are
        # shown.
        if rows.num_rows == 1:
            return [Defect("serialization_error", _cut(f"Python cannot hold this row: {_told(raised)}"))]
        return [one for at in range(rows.num_rows) for one in _shown(rows.slice(at, 1))]
    return shown


def _read(answer: Any, reason: str) -> Defect | None:
    """None where the row is good after all."""
    if isinstance(answer, str):
        return Defect(reason, _cut(answer) or "the check said no")
    if isinstance(answer, (bool, np.bool_)):
        return None if answer else Defect(reason, "the check said no")
    if isinstance(answer, BaseException):
        return _of_raised(answer)
    return Defect(
        "handler_exception",
        _cut(
            f"the check gave {answer!r}: expected None or True for a good row, False or a text for a bad one"
        ),
    )


def _listed(answers: Any, count: int) -> Sequence[Any]:
    if answers is None:
        return [None] * count
    if isinstance(answers, (pa.Array, pa.ChunkedArray)):
        # A condition that is null is not true, as with a column; a text that is null says nothing.
        answers = pc.fill_null(answers, False) if pa.types.is_boolean(answers.type) else answers
        answers = texts_in(answers)
    elif hasattr(answers, "tolist"):
        answers = answers.tolist()
    if not isinstance(answers, Sequence) or isinstance(answers, (str, bytes)) or len(answers) != count:
        got = (
            f"{len(answers)} of them"
            if isinstance(answers, Sequence) and not isinstance(answers, (str, bytes))
            else type(answers).__name__
        )
        raise InvalidRequest(
            "what a check of batches returns",
            f"one answer for each of its {count} rows, or None when all are good",
            got,
        )
    return answers


def _of_raised(raised: BaseException) -> Defect:
    """`StepFailed` names its reason, as in a step of a pipeline."""
    reason = getattr(raised, "reason", None)
    try:
        word = read_reason(reason).word
    except InvalidRequest:
        word = "handler_exception"
    return Defect(word, _cut(_told(raised)))


def _told(raised: BaseException) -> str:
    return f"{type(raised).__name__}: {raised}" if str(raised) else type(raised).__name__


def _cut(text: str) -> str:
    text = text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 3] + "..."
    # Python lets a text have half a character (a lone surrogate), Arrow does not.
    return text.encode("utf-8", "replace").decode()
