"""The kinds of values in a runbook. Each kind reads a node, describes itself in words, and gives its JSON
Schema.

One object does all three, so that the checker, the reference page and the schema for editors agree. The
checker adds rules that a schema cannot express, such as references and the range of durations. A reader that
refuses a value reports an error and returns None; None is never a value.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Protocol

from fairlead.config.reading import read_value
from fairlead.errors import InvalidRequest
from fairlead.model.durations import show_ms, to_ms
from fairlead.model.names import NAME_PART
from fairlead.runbook.from_hcl import is_refused
from fairlead.runbook.source import Node, Problems, shown, subpath, suggestion

_DURATION = r"([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+"
_SIZE = r"[0-9]{1,12}(\.[0-9]{1,6})? ?(B|KiB|MiB|GiB|TiB|kB|MB|GB|TB)"
_IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*"
_CALLABLE = rf"{_IDENTIFIER}(\.{_IDENTIFIER})*:{_IDENTIFIER}(\.{_IDENTIFIER})*"
_MAX_INT = 2**63 - 1

Schema = dict[str, Any]


class Kind(Protocol):
    @property
    def words(self) -> str: ...
    def read(self, node: Node, path: str, problems: Problems) -> Any: ...
    def schema(self) -> Schema: ...


def refuse(node: Node, path: str, problems: Problems, expected: str) -> Any:
    """Report what was expected, unless the value was refused already. Returns None, as the reader must."""
    if not is_refused(node.value):
        hint = "; leave the key out instead" if node.value is None else ""
        problems.error(node, path, f"expected {expected}, got {shown(node)}{hint}")
    return None


@dataclass(frozen=True)
class Text:
    """Text that matches a pattern, if there is one. `words` completes *expected ...*."""

    words: str = "text"
    pattern: str = ""
    longest: int = 0

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        value = node.value
        if (
            not isinstance(value, str)
            or not is_clean(value)
            or (self.pattern and not re.fullmatch(self.pattern, value))
        ):
            return refuse(node, path, problems, self.words)
        if self.longest and len(value) > self.longest:
            return refuse(node, path, problems, f"{self.words}, at most {self.longest} characters")
        return value

    def schema(self) -> Schema:
        found: Schema = {"type": "string"}
        if self.pattern:
            found["pattern"] = f"^({self.pattern})$"
        if self.longest:
            found["maxLength"] = self.longest
        return found


def is_clean(text: str) -> bool:
    """Whether text has a UTF-8 form and no NUL, which no argument or environment variable can hold."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


PART = Text("a name of letters, digits, '_', '-' and '.' that does not begin with '-' or '.'", NAME_PART, 100)
FIELD = Text("a field name of letters, digits and '_' that does not begin with a digit", _IDENTIFIER, 100)
EXCEPTION = Text(
    "the name of an exception, such as ValueError or requests.Timeout",
    rf"{_IDENTIFIER}(\.{_IDENTIFIER})*",
    200,
)


@dataclass(frozen=True)
class CallablePath:
    words: str = "a Python callable as module:function, such as shop.steps:charge"

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        value = node.value
        if (
            isinstance(value, str)
            and re.fullmatch(_CALLABLE, value)
            and not any(keyword.iskeyword(part) for part in re.split("[.:]", value))
        ):
            return value
        return refuse(node, path, problems, self.words)

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^({_CALLABLE})$"}


@dataclass(frozen=True)
class Choice:
    options: tuple[str, ...]

    @property
    def words(self) -> str:
        return " or ".join(f'"{option}"' for option in self.options)

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        if isinstance(node.value, str) and node.value in self.options:
            return node.value
        if isinstance(node.value, str):
            # The words list the options already: keep a similar one only.
            hint = suggestion(node.value, self.options).partition("; there are")[0]
            problems.error(node, path, f"expected {self.words}, got {shown(node)}{hint}")
            return None
        return refuse(node, path, problems, self.words)

    def schema(self) -> Schema:
        return {"enum": list(self.options)}


@dataclass(frozen=True)
class Flag:
    words: str = "true or false"

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        if isinstance(node.value, bool):
            return node.value
        return refuse(node, path, problems, self.words)

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True)
class WholeNumber:
    low: int
    high: int

    @property
    def words(self) -> str:
        return f"a whole number from {self.low} to {self.high}"

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        if type(node.value) is int and self.low <= node.value <= self.high:
            return node.value
        return refuse(node, path, problems, self.words)

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True)
class Number:
    low: int
    high: int

    @property
    def words(self) -> str:
        return f"a number from {self.low} to {self.high}"

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        if type(node.value) in (int, float) and self.low <= node.value <= self.high:
            return node.value
        return refuse(node, path, problems, self.words)

    def schema(self) -> Schema:
        return {"type": "number", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True)
class Duration:
    """Read into milliseconds."""

    low_ms: int = 0
    high_ms: int | None = None
    words: str = 'a duration such as "30s" or "1h30m"'

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        if not isinstance(node.value, str) or not re.fullmatch(_DURATION, node.value):
            return refuse(node, path, problems, self.words)
        try:
            ms = to_ms(node.value, path)
        except InvalidRequest as error:
            return refuse(node, path, problems, error.expected)
        if ms < self.low_ms:
            return refuse(node, path, problems, f"a duration of at least {show_ms(self.low_ms)}")
        if self.high_ms is not None and ms > self.high_ms:
            return refuse(node, path, problems, f"a duration of at most {show_ms(self.high_ms)}")
        return ms

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^({_DURATION})$", "examples": ["30s", "1h30m"]}


@dataclass(frozen=True)
class Size:
    """Read into bytes."""

    low: int
    words: str = 'a size such as "512MiB", or a number of bytes'

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        value = node.value
        if type(value) is not int and not (isinstance(value, str) and re.fullmatch(_SIZE, value)):
            return refuse(node, path, problems, self.words)
        size: int = read_value("size_bytes", int, value)
        if size < self.low:
            return refuse(node, path, problems, f"a size of at least {self.low} bytes")
        if size > _MAX_INT:
            return refuse(node, path, problems, self.words)
        return size

    def schema(self) -> Schema:
        return {
            "anyOf": [
                {"type": "integer", "minimum": self.low, "maximum": _MAX_INT},
                {"type": "string", "pattern": f"^({_SIZE})$"},
            ]
        }


@dataclass(frozen=True)
class ListOf:
    item: Kind
    words: str
    unique: bool = False
    at_least: int = 0

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        if not isinstance(node.value, list) or len(node.value) < self.at_least:
            return refuse(node, path, problems, self.words)
        read = [self.item.read(item, subpath(path, index), problems) for index, item in enumerate(node.value)]
        seen: set[Any] = set()
        for index, value in enumerate(read if self.unique else ()):
            if value is not None and value in seen:
                problems.error(
                    node.value[index],
                    subpath(path, index),
                    f"expected each only once, got {shown(value)} again",
                )
            seen.add(value)
        return tuple(read) if None not in read else None

    def schema(self) -> Schema:
        found: Schema = {"type": "array", "items": self.item.schema()}
        if self.unique:
            found["uniqueItems"] = True
        if self.at_least:
            found["minItems"] = self.at_least
        return found


@dataclass(frozen=True)
class MapOf:
    """A table whose keys are names that the author chooses. A refused entry keeps its name, with None."""

    name: Text
    value: Kind
    words: str

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        if not isinstance(node.value, dict):
            return refuse(node, path, problems, self.words)
        found = {}
        for name, part in node.value.items():
            here = subpath(path, name)
            good_name = self.name.read(Node(name, part.file, part.line), here, problems)
            value = self.value.read(part, here, problems)
            if good_name is not None:
                found[name] = value
        return found

    def schema(self) -> Schema:
        return {
            "type": "object",
            "propertyNames": self.name.schema(),
            "additionalProperties": self.value.schema(),
        }


@dataclass(frozen=True)
class JsonValue:
    """Any value that JSON can hold, unchanged."""

    words: str = "a value: text, a number, true, false, a list or a table"

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        match node.value:
            case list() as items:
                return self._read_list(items, path, problems)
            case dict() as table:
                return self._read_table(table, path, problems)
            case bool():
                return node.value
            case str() as text if is_clean(text):
                return text
            case int() as number:
                if abs(number) <= _MAX_INT:
                    return number
                return refuse(node, path, problems, "a whole number of at most 64 bits")
            case float() as number if isfinite(number):
                return number
        return refuse(node, path, problems, self.words)

    def _read_list(self, items: list[Node], path: str, problems: Problems) -> Any:
        read = [self.read(item, subpath(path, index), problems) for index, item in enumerate(items)]
        return None if None in read else read

    def _read_table(self, table: dict[str, Node], path: str, problems: Problems) -> Any:
        read = {
            key: self.read(part, subpath(path, key), problems) for key, part in table.items() if is_clean(key)
        }
        return None if None in read.values() or len(read) != len(table) else read

    def schema(self) -> Schema:
        return {"$ref": "#/$defs/value"}


def value_schema() -> Schema:
    again = {"$ref": "#/$defs/value"}
    plain: list[Schema] = [{"type": kind} for kind in ("string", "boolean", "number")]
    return {
        "anyOf": [
            *plain,
            {"type": "array", "items": again},
            {"type": "object", "additionalProperties": again},
        ]
    }


@dataclass(frozen=True)
class KeySpec:
    """One key of a table. `default` describes the default for the reference page; it is not a value."""

    kind: Kind
    meaning: str
    default: str = ""
    required: bool = False


@dataclass(frozen=True)
class TableOf:
    """A table with known keys. `only_with` names the key that a key needs beside it, and `because` the
    reason.
    """

    keys: Mapping[str, KeySpec]
    words: str = "a table"
    only_with: Mapping[str, str] = field(default_factory=dict)
    #: Keys that belong to a table of another kind, with the error for them here.
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    because: Mapping[str, str] = field(default_factory=dict)

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        """Return the values of the keys that the table has; a refused value is None."""
        if not isinstance(node.value, dict):
            return refuse(node, path, problems, self.words)
        found: dict[str, Any] = {}
        for name, part in node.value.items():
            here = subpath(path, name)
            if name in self.keys:
                found[name] = self.keys[name].kind.read(part, here, problems)
            if misplaced := self._misplaced(name, node.value):
                problems.error(part, here, misplaced)
        for name, key in self.keys.items():
            if key.required and name not in node.value:
                problems.error(node, subpath(path, name), f"missing; expected {key.kind.words}")
        return found

    def _misplaced(self, name: str, table: Mapping[str, Node]) -> str:
        """Why a key must not be in this table, or ""."""
        if name not in self.keys:
            return self.elsewhere.get(name) or f"unknown key{suggestion(name, self.keys)}"
        if name in self.only_with and self.only_with[name] not in table:
            why = f": {self.because[name]}" if name in self.because else ""
            return f"expected together with {self.only_with[name]}{why}"
        return ""

    def schema(self) -> Schema:
        found: Schema = {
            "type": "object",
            "properties": {
                name: {"description": key.meaning, **key.kind.schema()} for name, key in self.keys.items()
            },
            "additionalProperties": False,
        }
        if required := [name for name, key in self.keys.items() if key.required]:
            found["required"] = required
        if self.only_with:
            found["dependentRequired"] = {name: [other] for name, other in self.only_with.items()}
        return found
