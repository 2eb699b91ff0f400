"""The limit on how deeply untrusted values may be nested.

The MessagePack decoder accepts a value until Python's own stack ends. A value just below that depth would
overflow the stack of code that formats it for an error a few calls deeper. So values that are far deeper than
any valid one are refused here.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.errors import InvalidRequest

MAX_NESTED = 32
_FLAT = (str, int, bytes, bool, float, type(None))


def check_depth(values: Iterable[object], field: str) -> None:
    """Raise `InvalidRequest` if one of the values is nested more than `MAX_NESTED` deep.

    The check does not recurse, because recursion is what it guards against.
    """
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
