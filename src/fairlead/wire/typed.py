"""Text that people type, converted to the values of request fields: lists, records and maps as JSON.

Single values are not checked here: the engine refuses wrong ones. Works without pyarrow.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec

from fairlead.errors import InvalidRequest
from fairlead.fields import Field, fields_of
from fairlead.model.access import Grant
from fairlead.model.failure import FailureReason
from fairlead.model.settle import DeliveryRef, Handle
from fairlead.request import VERBS, Request

#: The most characters of a value that an error repeats.
_MAX_SHOWN = 80
_SINGLE = (str, int, float, bool, bytes, timedelta, Path, FailureReason)


def is_text_list(field: Field) -> bool:
    return any(_is_list(kind) and str in _alternatives(get_args(kind)[0]) for kind in field.kinds)


def is_json(field: Field) -> bool:
    return not is_text_list(field) and any(
        kind not in _SINGLE and get_origin(kind) is not Literal for kind in field.kinds
    )


def from_text(field: Field, text: str) -> Any:
    try:
        given = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as wrong:
        refusal = InvalidRequest(field.name, "JSON", text[:_MAX_SHOWN])
        refusal.add_note(str(wrong))
        raise refusal from None
    return _from_json(given, field, field.name)


def _from_json(given: Any, field: Field, name: str) -> Any:
    """The value of the field. `name` is the value's name in errors, such as `messages[2].headers`."""
    if isinstance(given, list):
        return _from_list(given, field, name)
    if given is not None and bytes in field.kinds:
        return _from_json_bytes(given, name)
    if any(get_origin(kind) is Request for kind in field.kinds):
        verbs = {verb.name: verb.request for verb in VERBS.values()}
        return _from_tagged(given, "verb", verbs, name, expected="a verb of fairlead do --help")
    records = [kind for kind in field.kinds if _is_record(kind)]
    if given is None or not records:
        return given
    if len(records) > 1:
        actions = {kind.__name__.lower(): kind for kind in records}
        return _from_tagged(given, "action", actions, name, expected="one of " + ", ".join(actions))
    return _from_object(_object(given, name), records[0], name)


def _from_list(given: list[Any], field: Field, name: str) -> Any:
    sequence = next(filter(_is_list, field.kinds), None)
    if sequence is None:
        return tuple(given) if any(get_origin(kind) is tuple for kind in field.kinds) else given
    item = field._replace(kind=get_args(sequence)[0])
    return [_from_json(one, item, f"{name}[{number}]") for number, one in enumerate(given)]


def _from_json_bytes(given: Any, name: str) -> bytes:
    """Bytes in the form in which `-o json` prints them."""
    if isinstance(given, str):
        return given.encode("utf-8", "surrogateescape")
    try:
        return base64.b64decode(given["base64"], validate=True)
    except (KeyError, TypeError, ValueError):
        raise InvalidRequest(name, 'text or {"base64": "..."}', given) from None


def _from_tagged(given: object, tag: str, kinds: Mapping[str, type], name: str, *, expected: str) -> Any:
    fields = dict(_object(given, name))
    word = fields.pop(tag, None)
    kind = kinds.get(word) if isinstance(word, str) else None
    if kind is None:
        raise InvalidRequest(f"{name}.{tag}", expected, word)
    return _from_object(fields, kind, name)


def _from_object(given: dict[str, Any], kind: type, name: str) -> Any:
    if kind is Handle:
        # A delivery may be given as it was printed, with all its fields.
        kind, given = DeliveryRef, {part: given[part] for part in ("id", "lease") if part in given}
    fields = {field.name: field for field in fields_of(kind)}
    required = [field.name for field in fields.values() if field.required]
    if not fields.keys() >= given.keys() >= set(required):
        must = f", at least {', '.join(required)}" if required else ""
        raise InvalidRequest(name, f"an object with {', '.join(fields)}{must}", list(given))
    return kind(**{part: _from_json(value, fields[part], f"{name}.{part}") for part, value in given.items()})


def _object(given: object, name: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise InvalidRequest(name, "a JSON object", given)
    return given


def _is_record(kind: Any) -> bool:
    if kind is Handle or dataclasses.is_dataclass(kind):
        return True
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind is not Grant


def _is_list(kind: Any) -> bool:
    return get_origin(kind) in (Sequence, list)


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) or (kind,)
