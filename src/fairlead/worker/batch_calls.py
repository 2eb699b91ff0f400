"""Calling a batch step: many rows in, an outcome for each of them out.

The annotation of the function's first parameter selects its input: `pa.RecordBatch`, `pa.Table` or
`pd.DataFrame` with the columns `id`, `payload`, `stream`, `attempts` and `value`; without an annotation, a
list of the items. Columns hold payloads as they were enqueued, for readers that parse many at once. Only for
a list are payloads decoded here: a row that is not JSON fails and is not in the list.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, get_origin

import msgspec

from fairlead.errors import StepNotLoaded
from fairlead.model.ids import show_id
from fairlead.runbook.model import StepSpec
from fairlead.worker.loading import adapted, find_function
from fairlead.worker.outcomes import InvalidResult, dump_value, failure_of, not_json
from fairlead.worker.plan import NOTHING
from fairlead.worker.protocol import BatchCall, CallFailed, PipelineSetup
from fairlead.worker.step import BatchStep

_decode = msgspec.json.Decoder().decode

BatchOutcomes = tuple[list[bytes], list[CallFailed]]


class BatchStepFunction:
    """A loaded batch step. The constructor raises `StepNotLoaded`.

    An exception of the function passes through: the worker calls it again with fewer rows.
    """

    def __init__(self, step: StepSpec, setup: PipelineSetup) -> None:
        function = find_function(step)
        self._step = step
        self._setup = setup
        self._function = adapted(step, function)
        self._as_columns = columns_for(step, function)

    def __call__(self, call: BatchCall) -> BatchOutcomes:
        """Values and failures, as in `BatchDone`."""
        if self._as_columns is not None:
            return self._outcomes(self._as_columns(call), call)
        items, failed = self._decoded(call)
        if not failed:
            return self._outcomes(items, call)
        if not items:
            return [], failed
        return self._outcomes_of_rest(items, failed, call)

    def _outcomes_of_rest(
        self, items: list[Any], undecoded: list[CallFailed], call: BatchCall
    ) -> BatchOutcomes:
        """Outcomes of a call without the rows that could not be decoded, by the rows of the whole call."""
        left_out = {failure.ticket for failure in undecoded}
        size = len(call.payloads)
        rows = [row for row in range(size) if row not in left_out]
        values, failed = self._outcomes(items, _only(call, rows))
        failed = [msgspec.structs.replace(failure, ticket=rows[failure.ticket]) for failure in failed]
        if values:
            by_row = dict(zip(rows, values, strict=True))
            values = [by_row.get(row, b"") for row in range(size)]
        return values, undecoded + failed

    def _decoded(self, call: BatchCall) -> tuple[list[Any], list[CallFailed]]:
        items, failed = [], []
        for place, payload in enumerate(call.payloads):
            try:
                items.append(_decode(payload))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                failed.append(self._failure(not_json(error), place))
        return items, failed

    def _outcomes(self, rows: Any, call: BatchCall) -> BatchOutcomes:
        returned = self._function(rows, BatchStep(self._step.name, self._setup.pipeline, call))
        if returned is None:
            return [], []
        size = len(call.raw_ids)
        try:
            entries = _entries(returned, size)
        except InvalidResult as error:
            return [], [self._failure(error, place) for place in range(size)]
        values, failed = [], []
        for place, entry in enumerate(entries):
            value = b""
            try:
                if isinstance(entry, BaseException):
                    failed.append(self._failure(entry, place))
                else:
                    value = dump_value(entry)
            except InvalidResult as error:
                failed.append(self._failure(error, place))
            values.append(value)
        return values, failed

    def _failure(self, error: BaseException, place: int) -> CallFailed:
        return failure_of(error, self._step.name, self._setup.reasons, ticket=place)


def _entries(returned: object, size: int) -> Sequence[object]:
    """One entry for each row; a single exception stands for all rows. Raises `InvalidResult`."""
    if isinstance(returned, BaseException):
        return [returned] * size
    entries = _as_list(returned, size)
    expected = f"expected a batch step to return nothing, one exception, or a list with one entry for each of its {size} rows"
    if entries is None:
        raise InvalidResult(f"{expected}, got {type(returned).__name__}")
    if len(entries) == size:
        return entries
    # A generator is not read to its end.
    is_cut = isinstance(returned, Iterator) and len(entries) > size
    raise InvalidResult(f"{expected}, got {'more' if is_cut else len(entries)}")


def _as_list(returned: object, size: int) -> Sequence[object] | None:
    """None for a value that is no list of entries."""
    if isinstance(returned, (list, tuple)):
        return returned
    if isinstance(returned, Iterator):
        return list(islice(returned, size + 1))
    if hasattr(returned, "columns"):
        return None  # a table, which would be taken for the list of its columns
    to_list = getattr(returned, "to_pylist", None) or getattr(returned, "tolist", None)
    entries = to_list() if to_list is not None else None
    return entries if isinstance(entries, (list, tuple)) else None


def _only(call: BatchCall, places: Collection[int]) -> BatchCall:
    def of(column: list[Any]) -> list[Any]:
        return [column[place] for place in places] if column else []

    columns: tuple[list[Any], ...] = (
        call.raw_ids,
        call.payloads,
        call.headers,
        call.streams,
        call.attempts,
        call.values,
    )
    return BatchCall(call.ticket, call.step, call.queue, *map(of, columns))


def columns_for(step: StepSpec, function: Any) -> Callable[[BatchCall], Any] | None:
    """The conversion of a call to the function's input; None for a function of a list. Raises
    `StepNotLoaded`.
    """
    annotation = _annotation(function)
    kind = _name_of(annotation)
    if kind in _LISTS:
        return None
    if kind not in _COLUMNS:
        what = "expected its first parameter to be annotated as pyarrow.RecordBatch, pyarrow.Table, pandas.DataFrame or list, or not at all"
        raise StepNotLoaded(step.name, step.run or "", f"{what}, got {kind}")
    # Imported here: only such a step needs the package.
    package = kind.partition(".")[0]
    try:
        module = importlib.import_module(package)
    except ImportError as error:
        raise StepNotLoaded(
            step.name, step.run or "", f"it takes a {kind}, and {package} cannot be imported here ({error})"
        ) from None
    return partial(_COLUMNS[kind], module)


def _annotation(function: Any) -> Any:
    """The annotation of the first parameter; `list` without one.

    A text is evaluated in the module of the function, and stays a text if that fails.
    """
    try:
        first = next(iter(inspect.signature(function).parameters.values()))
    except (TypeError, ValueError, StopIteration):
        return list
    found = first.annotation
    written_in = inspect.unwrap(function if inspect.isroutine(function) else type(function).__call__)
    for _ in range(
        2
    ):  # twice: a quoted annotation below `from __future__ import annotations` is a text in a text
        if isinstance(found, str):
            try:
                found = eval(found, getattr(written_in, "__globals__", {}))
            except Exception:
                break  # perhaps imported for the type checker only
    return list if found is inspect.Parameter.empty else found


def _name_of(annotation: Any) -> str:
    """`package.Name`, whatever alias and module of the package the annotation uses."""
    if isinstance(annotation, str):
        alias, dot, name = annotation.partition("[")[0].strip().rpartition(".")
        found = f"{_ALIASES.get(alias, alias)}{dot}{name}"
        return next((kind for kind in _COLUMNS if found == kind.partition(".")[2]), found)
    kind = get_origin(annotation) or annotation
    package = getattr(kind, "__module__", "").partition(".")[0]
    name = getattr(kind, "__qualname__", None) or getattr(kind, "_name", None) or str(kind)
    return name if package == "builtins" else f"{package}.{name}"


def _texts(column: Iterable[bytes]) -> list[str | None]:
    return [None if value == NOTHING else value.decode() for value in column]


def _columns(call: BatchCall) -> dict[str, list[Any]]:
    return {
        "id": [show_id(raw) for raw in call.raw_ids],
        "payload": call.payloads,
        "stream": [stream or None for stream in call.streams],
        "attempts": call.attempts,
        "value": _texts(call.values) if call.values else [None] * len(call.payloads),
    }


def _record_batch(pa: Any, call: BatchCall) -> Any:
    kinds = {
        "id": pa.string(),
        "payload": pa.binary(),
        "stream": pa.string(),
        "attempts": pa.int64(),
        "value": pa.string(),
    }
    return pa.RecordBatch.from_pydict(_columns(call), schema=pa.schema(kinds))


def _table(pa: Any, call: BatchCall) -> Any:
    return pa.Table.from_batches([_record_batch(pa, call)])


def _data_frame(pd: Any, call: BatchCall) -> Any:
    return pd.DataFrame(_columns(call))


_COLUMNS: dict[str, Callable[[Any, BatchCall], Any]] = {
    "pyarrow.RecordBatch": _record_batch,
    "pyarrow.Table": _table,
    "pandas.DataFrame": _data_frame,
}
_ABSTRACT = ("Any", "List", "Sequence", "Iterable", "Collection")
_LISTS = {
    "list",
    "object",
    *(f"{package}.{name}" for package in ("typing", "collections") for name in _ABSTRACT),
}
_ALIASES = {"pa": "pyarrow", "pd": "pandas", "t": "typing"}
