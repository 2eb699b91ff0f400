"""How deeply values from a stranger may be nested.

MessagePack is read until Python's own stack ends. A value that was just not too deep for that is too deep for
whoever shows it in an error, a few calls further down: so what is far deeper than anything we read is refused
here.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.errors import InvalidRequest

MAX_NESTED = 32
_FLAT = (str, int, bytes, bool, float, type(None))


def check_depth(values: Iterable[object], field: str) -> None:
    """The values side by side, each no deeper than that. Not by recursion, which is what it guards."""
    level = [value for value in values if type(value) not in _FLAT]
    for _ in range(MAX_NESTED):
        if not level:
            return
        level = [below for value in level for below in _inside(value) if type(below) not in _FLAT]
    if level:
        raise InvalidRequest(field, f"values nested at most {MAX_NESTED} deep", "deeper ones")


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return value if isinstance(value, (list, tuple)) else ()
