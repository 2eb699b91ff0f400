"""What was typed, as the values that the fields of a request take.

A list of texts is typed text by text, everything else that has parts as JSON. JSON and bytes can also come from
a file (`@FILE`) or from standard input (`-`). Single values are not checked here: the engine refuses them.
"""

from __future__ import annotations

import sys
from typing import Any

from fairlead.fields import Field
from fairlead.model.limits import MAX_REQUEST_BYTES
from fairlead.wire.typed import from_text, is_json, is_text_list


def read_value(field: Field, typed: Any) -> Any:
    """Raises `InvalidRequest`, which names the field, or the part of it, that is wrong."""
    if is_text_list(field) and len(typed) == 1 and typed[0].startswith("["):
        return from_text(field, typed[0])
    if isinstance(typed, str) and bytes in field.kinds:
        return read_bytes(typed)
    if isinstance(typed, str) and is_json(field):
        return from_text(field, read_bytes(typed).decode("utf-8", "replace"))
    return typed


def read_bytes(typed: str) -> bytes:
    """The text itself, a file (`@FILE`) or standard input (`-`). No more than it takes to be refused: a file may
    be larger than memory.
    """
    if typed == "-":
        return sys.stdin.buffer.read(MAX_REQUEST_BYTES + 1)
    if typed.startswith("@"):
        with open(typed[1:], "rb") as file:
            return file.read(MAX_REQUEST_BYTES + 1)
    return typed.encode("utf-8", "surrogateescape")
