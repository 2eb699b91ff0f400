"""Counts in sentences for people."""

from __future__ import annotations

from fairlead.model.limits import COUNT_LIMIT


def counted(count: int, one: str, several: str) -> str:
    if count > COUNT_LIMIT:
        return f"more than {COUNT_LIMIT} {several}"
    return f"{count} {one if count == 1 else several}"


def keys_taking_turns(count: int) -> str:
    return "of one key" if count == 1 else f"{count} keys taking turns"
