"""The view of `fairlead do`: the answer of any verb as JSON, with the names of the Python API, and as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import UnionType
from typing import Any

from rich.console import Group, RenderableType

from fairlead.cli.message_view import as_record
from fairlead.cli.output import clean, cut, fields_of, plain, table, unless_piped
from fairlead.model.delivery import Delivery
from fairlead.model.settle import SettleResult
from fairlead.model.views import MessageInfo
from fairlead.request import VERBS

#: Stored forms. The properties of the same records show them in readable form.
_STORED = {"message", "stored", "number", "state", "claim_id", "raw_id"}
_MAX_CELL = 60
_EMPTY: tuple[Any, ...] = (None, "", [], {})


def answer_view(request: Any, answer: Any) -> tuple[object, Any]:
    value = _value(answer)
    if value is not None:
        return value, lambda: _text(value)
    may_be_none = isinstance(VERBS[request.verb_name].answer, UnionType)
    return None, "none" if may_be_none else "done"


def _value(answer: Any) -> Any:
    if isinstance(answer, MessageInfo):
        return as_record(answer)
    if isinstance(answer, (Delivery, SettleResult)):
        return {name: _value(getattr(answer, name)) for name in _public_names(type(answer))}
    if isinstance(answer, Sequence) and not isinstance(answer, (str, bytes)):
        return [_value(one) for one in answer]
    return plain(answer)


def _public_names(kind: type[Delivery | SettleResult]) -> list[str]:
    properties = [name for name, value in vars(kind).items() if isinstance(value, property)]
    return [name for name in dict.fromkeys([*properties, *kind.__struct_fields__]) if name not in _STORED]


def _text(value: Any) -> RenderableType:
    if value == []:
        return "nothing"
    if not isinstance(value, list):
        return fields_of(value)
    if all(isinstance(one, dict) for one in value):
        return _table(value)
    if all(isinstance(one, str) for one in value):
        return "\n".join(map(clean, value))
    return Group(*map(_text, value))


def _table(records: list[dict[str, Any]]) -> RenderableType:
    """A line for each record. Columns that are empty in every record are left out."""
    columns = _columns(records)
    numbers = [name for name, cells in columns.items() if all(isinstance(cell, int) for cell in cells)]
    texts = [name for name in columns if name not in numbers]
    lines = table(*columns, right=numbers, flexible=texts)
    for row in zip(*columns.values(), strict=True):
        lines.add_row(*(cut(_cell(value)) for value in row))
    return lines


def _columns(records: list[dict[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for record in records for name in record)
    columns = {name: [record.get(name) for record in records] for name in names}
    return {name: cells for name, cells in columns.items() if any(cell not in _EMPTY for cell in cells)}


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return clean(text, most=unless_piped(_MAX_CELL))
