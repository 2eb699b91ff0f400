"""Calling a batch step: many rows in, an outcome for each of them out.

What it takes is said by the annotation of its first parameter: `pa.RecordBatch`, `pa.Table` or `pd.DataFrame`
with the columns `id`, `payload`, `stream`, `attempts` and `value`; without one, a list of the items. Columns
have payloads as they came, for readers that take many at once; only a list is decoded here, and a row that is
no JSON fails without being in it.
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

Outcomes = tuple[list[bytes], list[CallFailed]]


class BatchFunction:
    """Raises, when it is made, `StepNotLoaded`. What the function raises passes through: whoever called tries
    with fewer rows.
    """

    def __init__(self, step: StepSpec, setup: PipelineSetup) -> None:
        function = find_function(step)
        self._step = step
        self._setup = setup
        self._function = adapted(step, function)
        self._as_columns = columns_for(step, function)

    def __call__(self, call: BatchCall) -> Outcomes:
        """Values and failures, as in `BatchDone`."""
        if self._as_columns is not None:
            return self._outcomes(self._as_columns(call), call)
        items, failed = self._decoded(call)
        if not failed:
            return self._outcomes(items, call)
        apart = {failure.ticket for failure in failed}
        places = [place for place in range(len(call.payloads)) if place not in apart]
        values, more = self._outcomes(items, _only(call, places)) if items else ([], [])
        failed += [msgspec.structs.replace(failure, ticket=places[failure.ticket]) for failure in more]
        by_place = dict(zip(places, values, strict=True)) if values else {}
        return [by_place.get(place, b"") for place in range(len(call.payloads))] if values else [], failed

    def _decoded(self, call: BatchCall) -> tuple[list[Any], list[CallFailed]]:
        items, failed = [], []
        for place, payload in enumerate(call.payloads):
            try:
                items.append(_decode(payload))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                failed.append(self._failure(not_json(error), place))
        return items, failed

    def _outcomes(self, rows: Any, call: BatchCall) -> Outcomes:
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
    """One for each row. One exception is that of all of them. Raises `Refused`."""
    if isinstance(returned, BaseException):
        return [returned] * size
    entries: Any = None
    if isinstance(returned, (list, tuple)):
        entries = returned
    elif isinstance(returned, Iterator):
        entries = list(islice(returned, size + 1))
    elif not hasattr(returned, "columns"):  # a table: it would be taken for the list of its columns
        to_list = getattr(returned, "to_pylist", None) or getattr(returned, "tolist", None)
        entries = to_list() if to_list is not None else None
    expected = f"expected a batch step to return nothing, one exception, or a list with one entry for each of its {size} rows"
    if not isinstance(entries, (list, tuple)):
        raise InvalidResult(f"{expected}, got {type(returned).__name__}")
    if len(entries) != size:
        raise InvalidResult(
            f"{expected}, got {len(entries) if len(entries) < size or not isinstance(returned, Iterator) else 'more'}"
        )
    return entries


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
    """What makes of a call what the function takes; None for one that takes a list. Raises `StepNotLoaded`."""
    annotation = _annotation(function)
    kind = _name_of(annotation)
    if kind in _LISTS:
        return None
    if kind not in _COLUMNS:
        what = "expected its first parameter to be annotated as pyarrow.RecordBatch, pyarrow.Table, pandas.DataFrame or list, or not at all"
        raise StepNotLoaded(step.name, step.run or "", f"{what}, got {kind}")
    # By name: only who writes such a step needs the package.
    package = kind.partition(".")[0]
    try:
        module = importlib.import_module(package)
    except ImportError as error:
        raise StepNotLoaded(
            step.name, step.run or "", f"it takes a {kind}, and {package} cannot be imported here ({error})"
        ) from None
    return partial(_COLUMNS[kind], module)


def _annotation(function: Any) -> Any:
    """Of the first parameter. A text is looked up where the function was written; one that means nothing
    there stays a text.
    """
    try:
        first = next(iter(inspect.signature(function).parameters.values()))
    except (TypeError, ValueError, StopIteration):
        return list
    found = first.annotation
    written_in = inspect.unwrap(function if inspect.isroutine(function) else type(function).__call__)
    for _ in range(2):  # a text within a text: quoted, below `from __future__ import annotations`
        if isinstance(found, str):
            try:
                found = eval(found, getattr(written_in, "__globals__", {}))
            except Exception:
                break  # imported for the type checker alone, perhaps
    return list if found is inspect.Parameter.empty else found


def _name_of(annotation: Any) -> str:
    """As `package.Name`, whatever it was imported as and whichever module of the package has it."""
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
