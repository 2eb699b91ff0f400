"""The identity of a check. Names are not enough: all lambdas have one name, and so have all partials of a
function.

The fingerprint is part of the token of bad rows, under which equal rows are published once. So it is the same
in every run of the program, in any process: it has no addresses, and sets are sorted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def fingerprint(value: object, within: tuple[int, ...] = ()) -> str:
    """Describe a function by its code and the values it captures, and any other value by its `repr`.

    `within` has the ids of the enclosing values, because a recursive function captures itself.
    """
    if id(value) in within:
        return "..."
    parts = _parts(value)
    if parts is None:
        return _ADDRESS.sub("", repr(value))
    marks = [fingerprint(part, (*within, id(value))) for part in parts]
    return f"{type(value).__name__}({', '.join(sorted(marks) if isinstance(value, (set, frozenset)) else marks)})"


def _parts(value: object) -> Iterable[object] | None:
    match value:
        case partial():
            return (value.func, value.args, value.keywords)
        case MethodType():
            return (value.__func__, value.__self__)
        case FunctionType():
            return (value.__code__, value.__defaults__, value.__kwdefaults__, value.__closure__)
        case CellType() if value != CellType():  # an empty cell has no contents
            return (value.cell_contents,)
        case CodeType():
            return (value.co_code, value.co_consts, value.co_names, value.co_firstlineno)
        case ModuleType():
            return (value.__name__,)
        case dict():
            return value.items()
        case tuple() | list() | set() | frozenset():
            return value
        case _:
            return None
