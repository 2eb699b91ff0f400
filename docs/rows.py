"""The tables of the page about the rows of the key-value store: from the docstring and the types of `store/rows.py`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import UnionType
from typing import Any, get_args, get_origin

import msgspec

from fairlead.store import rows
from fairlead.store.kv.port import Table


def rows_table() -> Iterator[str]:
    """The table of the docstring, with the names of tables as code."""
    lines = [line for line in (rows.__doc__ or "").splitlines() if line.startswith("|")]
    yield "| table | key | value |"
    yield "|---|---|---|"
    for line in lines[2:]:
        table, key, value = (cell.strip() for cell in line.strip("|").split("|"))
        yield f"| `{table}` | {key} | {value} |"


def listed_tables() -> list[str]:
    return [line.split("`")[1] for line in rows_table() if line.startswith("| `")]


def row_types() -> Iterator[str]:
    """The fields of each type of value, in the order in which they are packed."""
    yield "| value | packed as | fields |"
    yield "|---|---|---|"
    for kind in _structs():
        fields = ", ".join(f"`{field.name}`" for field in msgspec.structs.fields(kind))
        packed = "array" if kind.__struct_config__.array_like else "map"
        yield f"| `{kind.__name__}` | {packed} | {fields} |"


def _structs() -> list[type[msgspec.Struct]]:
    """The types of values, each followed by those that it contains."""
    found: dict[type[msgspec.Struct], None] = {}
    for table in Table:
        _add(rows.VALUE_TYPES.get(table), found)
    return list(found)


def _add(kind: Any, found: dict[type[msgspec.Struct], None]) -> None:
    if get_origin(kind) is not None or isinstance(kind, UnionType):
        for part in get_args(kind):
            _add(part, found)
    elif inspect.isclass(kind) and issubclass(kind, msgspec.Struct) and kind not in found:
        found[kind] = None
        for field in msgspec.structs.fields(kind):
            _add(field.type, found)
