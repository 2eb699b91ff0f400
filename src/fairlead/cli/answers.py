"""Any answer of any verb: as JSON with the names that Python programs know, and as text or a table."""

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

#: Stored forms, of which the properties beside them show what they mean.
_STORED = {"message", "stored", "number", "state", "claim_id", "raw_id"}
_MAX_CELL = 60


def answer_view(request: Any, answer: Any) -> tuple[object, Any]:
    value = _value(answer)
    if value is None:
        return None, "none" if isinstance(VERBS[request.verb_name].answer, UnionType) else "done"
    return value, lambda: _text(value)


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
    """Columns that no record has anything for are left out."""
    names = list(dict.fromkeys(name for record in records for name in record))
    names = [name for name in names if any(record.get(name) not in (None, "", [], {}) for record in records)]
    numbers = [name for name in names if all(isinstance(record.get(name), int) for record in records)]
    lines = table(*names, right=numbers, flexible=[name for name in names if name not in numbers])
    for record in records:
        lines.add_row(*(cut(_cell(record.get(name))) for name in names))
    return lines


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return clean(text, most=unless_piped(_MAX_CELL))
