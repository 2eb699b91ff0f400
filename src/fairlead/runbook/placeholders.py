"""Fields of an item in the arguments and environment of a command: `{customer}`. `{{customer}}` is the
literal text `{customer}`.

Only braces around a name are replaced, so JSON and awk programs pass unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_FOUND = re.compile(r"\{\{([A-Za-z_][A-Za-z0-9_]*)\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")


def placeholders(text: str) -> list[str]:
    return [found[2] for found in _FOUND.finditer(text) if found[2]]


def fill(text: str, fields: Mapping[str, str]) -> str:
    """Replace the fields. One argument stays one argument, whatever the value. Raises KeyError with the name
    of a field that the item lacks.
    """
    return _FOUND.sub(lambda found: fields[found[2]] if found[2] else "{" + found[1] + "}", text)
