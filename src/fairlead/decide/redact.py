"""Redaction of messages that people see: named headers and JSON paths are replaced, and their values are
removed from error texts.

The sender of a payload decides how expensive it is to inspect, so the work for one answer is bounded. A value
that cannot be inspected within the bound (too large, too deep, a duplicate name, too many messages at once)
is left out completely: in doubt, nothing is shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from fairlead.errors import InvalidRequest
from fairlead.model.redaction import (
    DEFAULT_HEADERS,
    MAX_NAMES,
    REDACTED,
    Each,
    Member,
    Step,
    read_header_name,
    read_json_path,
)
from fairlead.model.views import MessageInfo

#: The largest payload that is inspected.
MAX_JSON_BYTES = 1024 * 1024
#: Bytes of JSON inspected and characters of error text compared, for all messages of one answer.
MAX_INSPECTED = 16 * 1024 * 1024
#: Values of one message that are removed from its error texts. With more values, the texts are left out.
MAX_VALUES = 200
#: Shorter values would remove words that have nothing to do with them.
MIN_VALUE = 3
_MIN_WORD = 8
#: Stands for a removed value until all are removed, so that no value matches inside the replacement of
#: another.
_STRUCK = "\0"
#: Comparing is far cheaper than parsing: this many compared characters count as one byte of JSON.
_COMPARED_PER_BYTE = 32


@dataclass(frozen=True)
class Redaction:
    """Raises `InvalidRequest` for an invalid header name or path, never because of a message's content."""

    headers: tuple[str, ...] = DEFAULT_HEADERS
    json_paths: tuple[str, ...] = ()
    _exact: frozenset[str] = field(init=False, repr=False, compare=False)
    _beginnings: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _paths: _Paths = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for what, given in (("headers", self.headers), ("json_paths", self.json_paths)):
            if not isinstance(given, (tuple, list)) or len(given) > MAX_NAMES:
                raise InvalidRequest(f"redact.{what}", f"a list of at most {MAX_NAMES}", given)
        names = [read_header_name(name) for name in self.headers]
        object.__setattr__(self, "_exact", frozenset(name for name in names if not name.endswith("*")))
        object.__setattr__(self, "_beginnings", tuple(name[:-1] for name in names if name.endswith("*")))
        object.__setattr__(self, "_paths", _Paths({path: read_json_path(path) for path in self.json_paths}))

    def shown(self, infos: Sequence[MessageInfo]) -> list[MessageInfo]:
        """The messages of one answer. `hidden` lists what was left out of each."""
        budget = _Budget()
        return [self._shown(info, budget)[0] for info in infos]

    def text(self, info: MessageInfo, text: str) -> str:
        """A text about that message, without the values that are redacted in it."""
        budget = _Budget()
        return _struck(text, self._shown(info, budget, collect=True)[1], budget)

    def _shown(
        self, info: MessageInfo, budget: _Budget, *, collect: bool = False
    ) -> tuple[MessageInfo, _Values]:
        values = _Values(wanted=collect or any(failure.error for failure in info.failures))
        headers, hidden = self._headers(info.headers, values)
        payload = self._json("payload", info.payload, hidden, values, budget)
        carry = self._json("carry", info.carry, hidden, values, budget)
        failures = tuple(
            failure
            if (error := _struck(failure.error, values, budget)) == failure.error
            else msgspec.structs.replace(failure, error=error)
            for failure in info.failures
        )
        if failures != info.failures:
            hidden.append("errors")
        if not hidden:
            return info, values
        return replace(
            info,
            headers=headers,
            payload=payload,
            carry=carry,
            failures=failures,
            hidden=(*info.hidden, *hidden),
        ), values

    def _headers(self, headers: Mapping[str, str], values: _Values) -> tuple[dict[str, str], list[str]]:
        found, hidden = dict(headers), []
        for name, value in headers.items():
            lower = name.lower()
            if lower in self._exact or lower.startswith(self._beginnings):
                values.add(value)
                # The value is often "<scheme> <secret>", and an error may quote the secret alone.
                for word in value.split():
                    if len(word) >= _MIN_WORD:
                        values.add(word)
                found[name] = REDACTED
                hidden.append(f"header {name}")
        return found, hidden

    def _json(self, what: str, raw: bytes, hidden: list[str], values: _Values, budget: _Budget) -> bytes:
        if not self.json_paths or not raw:
            return raw
        if self._paths.start.ended:
            return _left_out(what, hidden, values)
        if raw.lstrip(_BEFORE_JSON)[:1] not in (b"{", b"["):
            return raw
        if len(raw) > MAX_JSON_BYTES or not budget.take(len(raw)):
            return _left_out(what, hidden, values)
        try:
            tree = json.loads(_decoded(raw), object_pairs_hook=_members)
            met = self._paths.strike(tree, values)
            written = _encoded(tree) if met else raw
        except json.JSONDecodeError as wrong:
            # Several JSON values in a row, or a value that was cut off, are no valid JSON either, but may
            # hold the value that a path names.
            return _left_out(what, hidden, values) if _WAS_MEANT_AS_JSON.match(wrong.doc) else raw
        except (ValueError, RecursionError, MemoryError):
            return _left_out(what, hidden, values)
        hidden += [f"{what} {path}" for path in met]
        return written


def _left_out(what: str, hidden: list[str], values: _Values) -> bytes:
    """Leave the payload out, and treat every part of it as a value that an error text may quote."""
    values.unknown = True
    hidden.append(what)
    return REDACTED.encode()


#: Blanks, and the byte order marks of Unicode.
_BEFORE_JSON = b" \t\r\n\0\xef\xbb\xbf\xff\xfe"
_WAS_MEANT_AS_JSON = re.compile(r'\s*(?:\{\s*"|\[\s*[\[{])')


def _decoded(raw: bytes) -> str:
    """Decode as leniently as JSON readers do: one byte of invalid UTF-8 must not bypass the redaction."""
    encoding = json.detect_encoding(raw)
    return raw.decode(encoding, "surrogateescape" if encoding.startswith("utf-8") else "surrogatepass")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse duplicate names. Python keeps the last value of a name, and the first would be shown as it
    stands in the payload.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is given twice")
    return found


def _encoded(tree: object) -> bytes:
    try:
        return json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return json.dumps(tree, separators=(",", ":")).encode()


class _Budget:
    """The remaining work for one answer."""

    def __init__(self) -> None:
        self._left = MAX_INSPECTED

    def take(self, size: int) -> bool:
        self._left -= size
        return self._left >= 0


class _Values:
    """The values redacted in one message, for removal from its error texts. `unknown`: the payload could not
    be inspected completely.
    """

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._found: set[str] = set()
        self.unknown = False

    def add(self, value: str) -> None:
        if self._wanted and not self.unknown and len(value) >= MIN_VALUE:
            self._found.add(value)
            self.unknown = len(self._found) > MAX_VALUES

    def add_tree(self, value: object) -> None:
        """Add every text and number in the value."""
        left = [value]
        while left and self._wanted and not self.unknown:
            one = left.pop()
            if isinstance(one, str):
                self.add(one)
            elif isinstance(one, dict):
                left += one.values()
            elif isinstance(one, list):
                left += one
            elif one is not None and not isinstance(one, bool):
                self.add(json.dumps(one))

    def longest_first(self) -> list[str]:
        return sorted(self._found, key=len, reverse=True)


def _struck(text: str, values: _Values, budget: _Budget) -> str:
    if not text:
        return text
    found = values.longest_first()
    if values.unknown or (found and not budget.take(len(text) * len(found) // _COMPARED_PER_BYTE + 1)):
        return REDACTED
    for value in found:
        if value in text:
            text = text.replace(value, _STRUCK)
    return text.replace(_STRUCK, REDACTED) if found else text


class _Place:
    """The state of all paths at one value: the steps they may take from here, and the paths that end here."""

    __slots__ = ("elements", "ended", "members", "others")

    def __init__(self) -> None:
        self.ended: tuple[str, ...] = ()
        self.members: dict[str, _Place] = {}
        self.others: _Place | None = None
        self.elements: _Place | None = None


_Reached = frozenset[tuple[str, int]]


class _Paths:
    """All paths at once: a tree is walked once, with one look-up for each member, whatever the number of
    paths.

    There are no more places than steps, because `..` stands only at the beginning of a path.
    """

    def __init__(self, steps: Mapping[str, tuple[Step, ...]]) -> None:
        self._steps = steps
        self._places: dict[_Reached, _Place] = {}
        self.start = self._place(frozenset((path, 0) for path in steps)) or _Place()

    def strike(self, tree: Any, values: _Values) -> list[str]:
        """Replace values in place, and return the paths that matched."""
        met: dict[str, None] = {}
        left = [(tree, self.start)]
        while left:
            value, place = left.pop()
            for key, inner in _inside(value):
                next_place = (
                    place.elements if isinstance(value, list) else place.members.get(key, place.others)
                )
                if next_place is None:
                    continue
                if next_place.ended:
                    met |= dict.fromkeys(next_place.ended)
                    values.add_tree(inner)
                    value[key] = REDACTED
                elif isinstance(inner, (dict, list)):
                    left.append((inner, next_place))
        return sorted(met)

    def _place(self, reached: _Reached) -> _Place | None:
        if not reached:
            return None
        known = self._places.get(reached)
        if known is not None:
            return known
        place = self._places[reached] = _Place()
        place.ended = tuple(sorted(path for path, at in reached if at == len(self._steps[path])))
        on = [(path, at, self._steps[path][at]) for path, at in reached if at < len(self._steps[path])]
        staying = frozenset((path, at) for path, at, step in on if not isinstance(step, (Member, Each)))
        for name in {step.name for _, _, step in on if not isinstance(step, Each)}:
            moved = {
                (path, at + 1) for path, at, step in on if not isinstance(step, Each) and step.name == name
            }
            found = self._place(staying | moved)
            assert found is not None
            place.members[name] = found
        place.others = self._place(staying)
        place.elements = self._place(
            staying | {(path, at + 1) for path, at, step in on if isinstance(step, Each)}
        )
        return place


def _inside(value: Any) -> Iterable[tuple[Any, Any]] | Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()
