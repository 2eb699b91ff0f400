"""Reads typed text as the values of the fields of a request.

A list of texts is typed text by text, other structured values as JSON. JSON and bytes can also come from a
file (`@FILE`) or from standard input (`-`). The engine checks single values.
"""

from __future__ import annotations

import sys
from typing import Any

from fairlead.fields import Field
from fairlead.model.limits import MAX_REQUEST_BYTES
from fairlead.wire.typed import from_text, is_json, is_text_list


def read_value(field: Field, typed: Any) -> Any:
    """Read one value. Raises `InvalidRequest`, which names the field or its wrong part."""
    if is_text_list(field) and len(typed) == 1 and typed[0].startswith("["):
        return from_text(field, typed[0])
    if isinstance(typed, str) and bytes in field.kinds:
        return read_bytes(typed)
    if isinstance(typed, str) and is_json(field):
        return from_text(field, read_bytes(typed).decode("utf-8", "replace"))
    return typed


def read_bytes(typed: str) -> bytes:
    """Read the text itself, a file (`@FILE`) or standard input (`-`).

    Reads at most one byte more than a request may have, which the engine refuses: a file may be larger than
    memory.
    """
    if typed == "-":
        return sys.stdin.buffer.read(MAX_REQUEST_BYTES + 1)
    if typed.startswith("@"):
        with open(typed[1:], "rb") as file:
            return file.read(MAX_REQUEST_BYTES + 1)
    return typed.encode("utf-8", "surrogateescape")
