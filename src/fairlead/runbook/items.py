"""An item of a runbook queue: a JSON object with the fields that its queue asks for.

It is stored in one canonical form, so that equal data gives equal bytes, and an equal dedup key: while an
item is live, its equal is the same item.
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
    """`dedup_key` is None where the queue takes equal data twice."""

    payload: bytes
    dedup_key: str | None


def make_item(
    queue: QueueSpec, name: str, data: str | bytes | None, variables: Mapping[str, Any]
) -> QueueItem:
    """`variables` come over the fields of `data`, and `defaults` fill in what neither has. Further fields are
    the user's own.

    Raises `ItemInvalid` with everything that is wrong. `name` is the queue as the user knows it.
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
        raise ItemInvalid(name, [f"a JSON object is needed, and this is no JSON: {wrong}"]) from None
    if not isinstance(found, dict):
        raise ItemInvalid(
            name, [f'a JSON object is needed, such as {{"field": "value"}}, and this is {_kind(found)}']
        )
    return found


def read_variables(name: str, given: Sequence[str]) -> dict[str, Any]:
    """`key=value` as typed. A value that is JSON (a number, true, null, "quoted") is that; any other is text."""
    problems = [
        f"a variable is written key=value, and this is {text!r}"
        for text in given
        if not text.partition("=")[0] or "=" not in text
    ]
    if problems:
        raise ItemInvalid(name, problems)
    return {key: _value(text) for key, _, text in (pair.partition("=") for pair in given)}


def canonical(value: object) -> bytes:
    """The same bytes for the same data: keys sorted, no spaces, UTF-8. Raises ValueError for what JSON cannot
    say.
    """
    try:
        return json.dumps(
            value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        ).encode()
    except UnicodeEncodeError:
        raise ValueError("text must be writable as UTF-8, and a lone surrogate is not") from None
    except (ValueError, TypeError, RecursionError):
        raise ValueError("numbers must be finite, and nesting within reason") from None


def content_key(payload: bytes) -> str:
    return "item:" + hashlib.sha256(payload).hexdigest()


def _missing(field: str, spare: Iterable[str]) -> str:
    near = get_close_matches(field, list(spare), n=1, cutoff=0.6)
    return f"{field!r} is missing" + (
        f"; did you mean it by {near[0]!r}?" if near else f"; give it with --var {field}=VALUE"
    )


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


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
