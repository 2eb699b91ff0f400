"""Reads TOML with line numbers. `tomllib` reads the values; a scanner of the same text finds the lines."""

from __future__ import annotations

import ast
import re
import tomllib
from bisect import bisect_right
from typing import Any

from fairlead.runbook.source import Node, Problem, Problems

_Path = tuple[str | int, ...]
_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY_PART = re.compile(r"""[A-Za-z0-9_\-]+|"(?:[^"\\]|\\.)*"|'[^']*'""")
_DOT = re.compile(r"[ \t]*\.[ \t]*")
_STRING = re.compile(
    r"""\"{3}(?:[^\\]|\\.)*?"{3,5}(?!")|'{3}.*?'{3,5}(?!')|"(?:[^"\\]|\\.)*"|'[^']*'""", re.DOTALL
)
#: A date and time may have a space between the day and the hour.
_BARE = re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:[^\s,\]}#]+|[^\s,\]}#\[{\"'=]+")
_WHERE = re.compile(r" \(at line (\d+), column (\d+)\)$| \(at end of document\)$")
_TWICE = re.compile(r"Cannot declare (\(.*\)) twice")


def read_toml(text: str, file: str, problems: Problems) -> Node | None:
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problems.errors.append(_problem(error, text, file))
        return None
    lines = _TomlScanner(text).scan()
    return _nodes(tree, (), file, 1, lines)


def _problem(error: tomllib.TOMLDecodeError, text: str, file: str) -> Problem:
    """The line is in the message of the error."""
    line = None
    if found := _WHERE.search(str(error)):
        line = int(found[1]) if found[1] else text.count("\n") + 1
    what = _WHERE.sub("", str(error))
    if twice := _TWICE.fullmatch(what):
        return Problem(file, line, ".".join(ast.literal_eval(twice[1])), "defined twice")
    return Problem(file, line, "", f"expected TOML: {what}")


def _nodes(value: Any, path: _Path, file: str, line: int, lines: dict[_Path, int]) -> Node:
    line = lines.get(path, line)
    if isinstance(value, dict):
        return Node(
            {key: _nodes(part, (*path, key), file, line, lines) for key, part in value.items()}, file, line
        )
    if isinstance(value, list):
        return Node(
            [_nodes(part, (*path, index), file, line, lines) for index, part in enumerate(value)], file, line
        )
    return Node(value, file, line)


class _TomlScanner:
    """Finds the lines in text that is known to be valid TOML.

    If the scanner does not understand a place, it stops; later values get the line of their table.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[_Path, int] = {}
        self._line_starts = [0, *(found.end() for found in re.finditer("\n", text))]
        self._array_lengths: dict[_Path, int] = {}

    def scan(self) -> dict[_Path, int]:
        table: _Path = ()
        try:
            while self._skip(_SPACE) and self.at < len(self.text):
                if self.text[self.at] == "[":
                    table = self._header()
                else:
                    self._pair(table)
        except (LookupError, ValueError):
            pass
        return self.lines

    def _header(self) -> _Path:
        line, is_array = self._line(), self.text.startswith("[[", self.at)
        self.at += 2 if is_array else 1
        self._skip(_SPACE)
        path = self._inside(self._key())
        if is_array:
            self._array_lengths[path] = self._array_lengths.get(path, 0) + 1
            path = (*path, self._array_lengths[path] - 1)
        self._note(path, line)
        self._skip(_SPACE)
        self.at += 2 if is_array else 1
        return path

    def _inside(self, key: tuple[str, ...]) -> _Path:
        """`[a.b]` after `[[a]]` belongs to the last item of `a`."""
        path: _Path = ()
        for part in key:
            if path in self._array_lengths:
                path = (*path, self._array_lengths[path] - 1)
            path = (*path, part)
        return path

    def _pair(self, table: _Path) -> None:
        line = self._line()
        path = (*table, *self._key())
        self._note(path, line)
        self._skip(_SPACE)
        self.at = self.text.index("=", self.at) + 1
        self._skip(_SPACE)
        self._value(path)

    def _value(self, path: _Path) -> None:
        opened = self.text[self.at]
        if opened == "[":
            self._items("]", lambda index: self._item((*path, index)))
        elif opened == "{":
            self._items("}", lambda _: self._pair(path))
        elif not self._skip(_STRING) and not self._skip(_BARE):
            raise ValueError("not a value")

    def _items(self, closing: str, read: Any) -> None:
        self.at += 1
        index = 0
        while self._skip(_SPACE) and self.text[self.at] != closing:
            read(index)
            index += 1
            self._skip(_SPACE)
            if self.text[self.at] == ",":
                self.at += 1
        self.at += 1

    def _item(self, path: _Path) -> None:
        self._note(path, self._line())
        self._value(path)

    def _key(self) -> tuple[str, ...]:
        parts = []
        while True:
            found = _KEY_PART.match(self.text, self.at)
            if found is None:
                raise ValueError("not a key")
            self.at = found.end()
            parts.append(tomllib.loads(f"k={found[0]}")["k"] if found[0][0] in "\"'" else found[0])
            if not self._skip(_DOT):
                return tuple(parts)

    def _note(self, path: _Path, line: int) -> None:
        """Note the line of a path; tables above it begin where they are first mentioned."""
        for length in range(1, len(path) + 1):
            self.lines.setdefault(path[:length], line)

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        found = pattern.match(self.text, self.at)
        if found is not None:
            self.at = found.end()
        return found is not None

    def _line(self) -> int:
        return bisect_right(self._line_starts, self.at)
