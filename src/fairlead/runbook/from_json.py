"""Reads JSON with line numbers. A repeated key is an error; Python's own reader would keep the last one."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from json import decoder
from typing import Any, NoReturn

from fairlead.runbook.source import Node, Problem, Problems, subpath

_SPACE = re.compile(r"[ \t\n\r]*")
_SCALAR = re.compile(r"[^\s,\]}]+")


def read_json(text: str, file: str, problems: Problems) -> Node | None:
    try:
        json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        problems.errors.append(
            Problem(file, error.lineno, "", f"expected JSON: {error.msg}, column {error.colno}")
        )
        return None
    except ValueError as error:
        problems.errors.append(Problem(file, None, "", f"expected JSON: {error}"))
        return None
    return _JsonReader(text, file, problems).value("")


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number of JSON")


class _JsonReader:
    """Reads text that is known to be valid JSON."""

    def __init__(self, text: str, file: str, problems: Problems) -> None:
        self.text = text
        self.file = file
        self.problems = problems
        self.at = 0
        self._line_starts = [0, *(found.end() for found in re.finditer("\n", text))]

    def value(self, path: str, line: int | None = None) -> Node:
        self._skip()
        line = line or self._line()
        opened = self.text[self.at]
        if opened == "{":
            return Node(self._members(path), self.file, line)
        if opened == "[":
            return Node(self._items(path), self.file, line)
        if opened == '"':
            return Node(self._string(), self.file, line)
        found = _SCALAR.match(self.text, self.at)
        assert found is not None
        self.at = found.end()
        return Node(json.loads(found[0]), self.file, line)

    def _members(self, path: str) -> dict[str, Node]:
        members: dict[str, Node] = {}
        while self._next("}"):
            line, key = self._line(), self._string()
            self._skip()
            self.at += 1  # the colon
            here = subpath(path, key)
            node = self.value(here, line)
            if key in members:
                self.problems.error(node, here, f"defined twice, first in line {members[key].line}")
            members.setdefault(key, node)
        return members

    def _items(self, path: str) -> list[Node]:
        items: list[Node] = []
        while self._next("]"):
            items.append(self.value(subpath(path, len(items))))
        return items

    def _next(self, closing: str) -> bool:
        """Move past the bracket or comma to the next item; at the end, move past the end and return False."""
        self._skip()
        if self.text[self.at] != closing:
            self.at += 1
            self._skip()
        more = self.text[self.at] != closing
        if not more:
            self.at += 1
        return more

    def _string(self) -> str:
        scan: Any = decoder.scanstring  # type: ignore[attr-defined]
        read = scan(self.text, self.at + 1, True)
        self.at = read[1]
        return str(read[0])

    def _skip(self) -> None:
        found = _SPACE.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def _line(self) -> int:
        return bisect_right(self._line_starts, self.at)
