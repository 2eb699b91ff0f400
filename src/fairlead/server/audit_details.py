"""What the audit keeps of an act: what was asked for, and to how many it was done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairlead.model.views import OperatorResult, RedriveResult


class Entry:
    """What is known of an act when it is over."""

    def __init__(self) -> None:
        self.count: int | None = None
        self.details: dict[str, object] = {}


def details_of(arguments: Mapping[str, Any], queue_argument: str) -> dict[str, object]:
    """Of an act what the audit keeps: which options, how many ids, which filter; never what messages or
    scripts say.
    """
    told: dict[str, object] = {}
    for field, value in arguments.items():
        if field == queue_argument or value is None:
            continue
        if field == "ids" and isinstance(value, Sequence):
            told["ids"] = f"{len(value)}: {', '.join(map(str, value[:3]))}"
        elif field == "messages":
            continue
        elif field == "filter" and isinstance(getattr(value, "header", None), tuple) and value.header:
            told[field] = replace(value, header=(value.header[0], "..."))
        elif field in ("on_enqueue", "on_failure"):
            told[field] = f"{len(str(value))} characters"
        else:
            told[field] = value
    return told


def count_of(result: object, *, dry_run: bool = False) -> int | None:
    """How many messages an act changed; of a dry run, how many it would have."""
    if isinstance(result, OperatorResult):
        return len(result.changed)
    if isinstance(result, RedriveResult):
        return result.matched if dry_run else result.moved
    if isinstance(result, list):
        return len(result)
    return result if isinstance(result, int) and not isinstance(result, bool) else None
