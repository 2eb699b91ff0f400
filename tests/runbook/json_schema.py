"""As much of JSON Schema (2020-12) as the schema of runbooks uses. A keyword that is not here is an error,
not a pass.
"""

from __future__ import annotations

import re
from typing import Any

_TYPES: dict[str, Any] = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
_SAYS_NOTHING = {"$schema", "title", "description", "examples", "$defs"}


def accepts(schema: dict[str, Any], value: Any, root: dict[str, Any] | None = None) -> bool:
    root = root or schema
    for keyword, wanted in schema.items():
        if keyword in _SAYS_NOTHING or keyword in ("then", "else"):
            continue
        if not _CHECKS[keyword](wanted, value, schema, root):
            return False
    return True


def _type(wanted: str, value: Any, *_: Any) -> bool:
    if wanted == "integer":
        return (
            isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        ) and not isinstance(value, bool)
    if wanted == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, _TYPES[wanted])


def _properties(wanted: Any, value: Any, schema: Any, root: Any) -> bool:
    return not isinstance(value, dict) or all(
        accepts(part, value[name], root) for name, part in wanted.items() if name in value
    )


def _additional(wanted: Any, value: Any, schema: Any, root: Any) -> bool:
    others = (
        [part for name, part in value.items() if name not in schema.get("properties", {})]
        if isinstance(value, dict)
        else []
    )
    return not others if wanted is False else all(accepts(wanted, part, root) for part in others)


def _pattern(wanted: str, value: Any, *_: Any) -> bool:
    assert wanted.startswith("^(")
    assert wanted.endswith(")$")
    # ECMAScript's $ is the very end; Python's also stands before a last line break.
    return not isinstance(value, str) or re.search(wanted[:-1] + r"\Z", value) is not None


def _if(wanted: Any, value: Any, schema: Any, root: Any) -> bool:
    return accepts(schema.get("then" if accepts(wanted, value, root) else "else", {}), value, root)


_CHECKS: dict[str, Any] = {
    "type": _type,
    "properties": _properties,
    "additionalProperties": _additional,
    "pattern": _pattern,
    "if": _if,
    "required": lambda wanted, value, *_: (
        not isinstance(value, dict) or all(name in value for name in wanted)
    ),
    "dependentRequired": lambda wanted, value, *_: (
        not isinstance(value, dict)
        or all(other in value for name, others in wanted.items() if name in value for other in others)
    ),
    "propertyNames": lambda wanted, value, schema, root: (
        not isinstance(value, dict) or all(accepts(wanted, name, root) for name in value)
    ),
    "items": lambda wanted, value, schema, root: (
        not isinstance(value, list) or all(accepts(wanted, item, root) for item in value)
    ),
    "uniqueItems": lambda wanted, value, *_: (
        not isinstance(value, list) or all(item not in value[:index] for index, item in enumerate(value))
    ),
    "minItems": lambda wanted, value, *_: not isinstance(value, list) or len(value) >= wanted,
    "maxItems": lambda wanted, value, *_: not isinstance(value, list) or len(value) <= wanted,
    "minProperties": lambda wanted, value, *_: not isinstance(value, dict) or len(value) >= wanted,
    "maxProperties": lambda wanted, value, *_: not isinstance(value, dict) or len(value) <= wanted,
    "maxLength": lambda wanted, value, *_: not isinstance(value, str) or len(value) <= wanted,
    "minimum": lambda wanted, value, *_: not _type("number", value) or value >= wanted,
    "maximum": lambda wanted, value, *_: not _type("number", value) or value <= wanted,
    "enum": lambda wanted, value, *_: any(
        type(value) is type(option) and value == option for option in wanted
    ),
    "const": lambda wanted, value, *_: value == wanted,
    "anyOf": lambda wanted, value, schema, root: any(accepts(one, value, root) for one in wanted),
    "oneOf": lambda wanted, value, schema, root: sum(accepts(one, value, root) for one in wanted) == 1,
    "not": lambda wanted, value, schema, root: not accepts(wanted, value, root),
    "$ref": lambda wanted, value, schema, root: accepts(
        root["$defs"][wanted.removeprefix("#/$defs/")], value, root
    ),
}
