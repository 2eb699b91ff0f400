"""An item of a runbook queue: a JSON object with the fields that its queue requires.

An item is stored in a canonical form: equal data gives equal bytes and an equal dedup key, so a second item
with the data of a live item is the same message.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from fairlead.errors import ItemInvalid
from fairlead.runbook.model import QueueSpec


class QueueItem(NamedTuple):
    """`dedup_key` is None for a queue that accepts equal data twice."""

    payload: bytes
    dedup_key: str | None


def make_item(
    queue: QueueSpec, name: str, data: str | bytes | None, variables: Mapping[str, Any]
) -> QueueItem:
    """Make an item from the fields of `data`, overridden by `variables`, and the queue's defaults for the
    others.

    Fields that the queue does not declare are kept. `name` is the name of the queue in errors. Raises
    `ItemInvalid` with every mistake.
    """
    fields = {} if data is None else read_object(name, data)
    merged = {**queue.defaults, **fields, **variables}
    missing = [field for field in queue.vars if field not in merged]
    if missing:
        spare = [field for field in merged if field not in queue.vars]
        raise ItemInvalid(name, [_missing(field, spare) for field in missing])
    try:
        payload = canonical(merged)
    except ValueError as wrong:
        raise ItemInvalid(name, [str(wrong)]) from None
    return QueueItem(payload, content_key(payload) if queue.dedupe else None)


def read_object(name: str, data: str | bytes) -> dict[str, Any]:
    try:
        found = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as wrong:
        raise ItemInvalid(name, [f"the data must be a JSON object, got invalid JSON: {wrong}"]) from None
    if not isinstance(found, dict):
        raise ItemInvalid(
            name, [f'the data must be a JSON object, such as {{"field": "value"}}, got {_kind(found)}']
        )
    return found


def read_variables(name: str, given: Sequence[str]) -> dict[str, Any]:
    """Read `key=value`. A value that is JSON (a number, true, null, "quoted") is read as JSON, any other as
    text.
    """
    problems = [
        f"a variable must be key=value, got {text!r}"
        for text in given
        if not text.partition("=")[0] or "=" not in text
    ]
    if problems:
        raise ItemInvalid(name, problems)
    return {key: _value(text) for key, _, text in (pair.partition("=") for pair in given)}


def canonical(value: object) -> bytes:
    """Write equal data as equal bytes: sorted keys, no spaces, UTF-8. Raises ValueError for values without
    JSON.
    """
    try:
        return json.dumps(
            value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        ).encode()
    except UnicodeEncodeError:
        raise ValueError("text must be valid UTF-8, got a lone surrogate") from None
    except (ValueError, TypeError, RecursionError):
        raise ValueError("numbers must be finite, and values not nested too deeply") from None


def content_key(payload: bytes) -> str:
    return "item:" + hashlib.sha256(payload).hexdigest()


def _missing(field: str, spare: Iterable[str]) -> str:
    near = get_close_matches(field, list(spare), n=1, cutoff=0.6)
    if near:
        return f"{field!r} is missing; is {near[0]!r} a mistake for it?"
    return f"{field!r} is missing; give it with --var {field}=VALUE"


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _kind(value: object) -> str:
    words = {
        str: "text",
        bool: "true or false",
        int: "a number",
        float: "a number",
        list: "a list",
        type(None): "null",
    }
    return words[type(value)]
