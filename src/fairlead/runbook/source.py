"""The tree into which all three syntaxes are read: values with their lines, and the mistakes found so far."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.\-]+")


@dataclass(frozen=True, slots=True)
class Node:
    """A value: a scalar, a list of nodes, or a dict of nodes by key. `line` is that of its key or list item."""

    value: Any
    file: str
    line: int | None = None


class Problem(NamedTuple):
    file: str
    line: int | None
    path: str
    what: str


@dataclass
class Problems:
    """All mistakes in a runbook, which are reported at once, and warnings of doubtful settings."""

    errors: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    def error(self, at: Node, path: str, what: str) -> None:
        self.errors.append(Problem(at.file, at.line, path, what))

    def warn(self, at: Node, path: str, what: str) -> None:
        self.warnings.append(Problem(at.file, at.line, path, what))


def subpath(path: str, key: str | int) -> str:
    """Join a path and a key: `queue.orders` and `retry` make `queue.orders.retry`; an index is in brackets."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    shown = key if _PLAIN_KEY.fullmatch(key) else repr(key)
    return f"{path}.{shown}" if path else shown


def shown(value: object) -> str:
    """Show a value on one line, shortened to 80 characters."""
    plain = bare(value)
    if plain is None:
        return "null"
    if isinstance(plain, dict):
        return "a table"
    text = repr(plain).lower() if isinstance(plain, bool) else repr(plain)
    return text if len(text) <= 80 else text[:77] + "..."


def bare(value: object) -> Any:
    """The value without its nodes."""
    if isinstance(value, Node):
        return bare(value.value)
    if isinstance(value, dict):
        return {key: bare(part) for key, part in value.items()}
    if isinstance(value, list):
        return [bare(part) for part in value]
    return value


def suggestion(given: str, known: Iterable[str]) -> str:
    """Return `; did you mean orders?`, or the list of up to 12 known names, or ""."""
    names = list(known)
    folded = {name.lower(): name for name in reversed(names)}
    near = difflib.get_close_matches(given.lower(), list(folded), 1)
    if near:
        return f"; did you mean {folded[near[0]]}?"
    return f"; there are {', '.join(sorted(names))}" if names and len(names) <= 12 else ""
