"""What tells one function from another: two lambdas have one name, and so have two partials of a function.

It goes into the token of the bad rows, under which an equal row is published once. So it is the same whenever
the same program is run, in any process: without addresses, and with sets in an order of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def fingerprint(value: object, within: tuple[int, ...] = ()) -> str:
    """Of a function: its code and the values that it takes along; of anything else what it says of itself.

    `within` has the ids of what it is a part of: a function that calls itself takes itself along.
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
        case CellType() if value != CellType():  # an empty one has nothing to show
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
