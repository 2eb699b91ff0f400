"""Writes a plain tree as TOML, HCL or JSON, each in one of the many ways it may be written; `chance` picks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from random import Random
from typing import Any

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_\-]*")
_BARE = re.compile(r"[A-Za-z0-9_\-]+")
_KINDS = ("queue", "pipeline", "worker")


def write(tree: dict[str, Any], syntax: str, chance: Random) -> str:
    return {"toml": to_toml, "hcl": to_hcl, "json": to_json}[syntax](tree, chance)


def to_json(tree: dict[str, Any], chance: Random) -> str:
    return json.dumps(tree, indent=chance.choice([None, 1, 2]), ensure_ascii=chance.random() < 0.5)


def to_toml(tree: dict[str, Any], chance: Random) -> str:
    return "\n".join(_toml_lines(tree, chance)) + "\n"


def _toml_lines(tree: dict[str, Any], chance: Random) -> Iterator[str]:
    for key, value in tree.items():
        if key not in _KINDS:
            yield f"{_toml_key(key)} = {_toml(value, chance)}"
    for kind in _KINDS:
        for name, table in tree.get(kind, {}).items():
            yield chance.choice(["", "# a comment"])
            yield f"[{kind}.{_toml_key(name)}]"
            for key, value in table.items():
                if key == "steps" and chance.random() < 0.5:
                    yield "steps = ["
                    yield from (f"  {_toml(step, chance)}, # so" for step in value)
                    yield "]"
                elif isinstance(value, dict) and value and chance.random() < 0.5:
                    yield from (
                        f"{_toml_key(key)} . {_toml_key(inner)} = {_toml(part, chance)}"
                        for inner, part in value.items()
                    )
                else:
                    yield f"{_toml_key(key)} = {_toml(value, chance)}"


def _toml_key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _quoted(key, wide=True)


def _toml(value: Any, chance: Random) -> str:
    if isinstance(value, str):
        plain = all(char.isprintable() and char != "'" for char in value)
        return f"'{value}'" if plain and chance.random() < 0.3 else _quoted(value, wide=True)
    if isinstance(value, dict):
        return (
            "{ "
            + ", ".join(f"{_toml_key(key)} = {_toml(part, chance)}" for key, part in value.items())
            + " }"
        )
    if isinstance(value, list):
        between = chance.choice([", ", ",\n  "])
        return "[" + between.join(_toml(item, chance) for item in value) + "]"
    return json.dumps(value)


def _quoted(text: str, *, wide: bool = False) -> str:
    """A basic string of TOML or HCL: only escapes that both know, and none of HCL's templates."""
    found = []
    for char in text:
        if char in '"\\':
            found.append("\\" + char)
        elif char in "$%" or not char.isprintable():
            found.append(f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}")
        else:
            found.append(char)
    return '"' + "".join(found) + '"'


def to_hcl(tree: dict[str, Any], chance: Random) -> str:
    return "\n".join(_hcl_body(tree, chance, top=True)) + "\n"


def _hcl_body(tree: dict[str, Any], chance: Random, *, top: bool = False) -> Iterator[str]:
    for key, value in tree.items():
        if top and key in _KINDS:
            for name, table in value.items():
                yield f"{key} {_quoted(name)} {{ // a comment"
                yield from (f"  {line}" for line in _hcl_body(table, chance))
                yield "}"
        elif key == "steps" and chance.random() < 0.5:
            for step in value:
                yield f"step {_quoted(step['name'])} {{"
                yield from (
                    f"  {line}"
                    for line in _hcl_body(
                        {name: part for name, part in step.items() if name != "name"}, chance
                    )
                )
                yield "}"
        elif (
            isinstance(value, dict)
            and all(_IDENTIFIER.fullmatch(inner) for inner in value)
            and chance.random() < 0.5
        ):
            yield f"{key} {{"
            yield from (f"  {line}" for line in _hcl_body(value, chance))
            yield "}"
        else:
            yield f"{_hcl_key(key)} = {_hcl(value, chance)}"


def _hcl_key(key: str) -> str:
    return key if _IDENTIFIER.fullmatch(key) else _quoted(key)


def _hcl(value: Any, chance: Random) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict):
        separator = chance.choice([" = ", ": "])
        return (
            "{ "
            + ", ".join(f"{_hcl_key(key)}{separator}{_hcl(part, chance)}" for key, part in value.items())
            + " }"
        )
    if isinstance(value, list):
        between = chance.choice([", ", ",\n"])
        return "[" + between.join(_hcl(item, chance) for item in value) + "]"
    return json.dumps(value)
