"""Requests as somebody would type them: the words behind `fairlead do`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from fairlead import Complete, Extend, Fail, Release, Start
from fairlead.fields import Field, fields_of
from fairlead.model.failure import FailureReason
from fairlead.request import Request
from fairlead.wire.typed import is_json, is_text_list

_ACTIONS = (Complete, Extend, Fail, Release, Start)


def typed(request: Request[Any]) -> list[str]:
    given = [(field, getattr(request, field.name)) for field in fields_of(type(request))]
    options = [
        word
        for field, value in given
        if not field.required and value != field.default
        for word in _option(field, value)
    ]
    arguments = sorted(
        ((field, value) for field, value in given if field.required),
        key=lambda pair: pair[0].name != request.queue_field,
    )
    words = [word for field, value in arguments for word in _words(field, value)]
    return [request.verb_name, *options, "--", *words]


def spoken(request: Request[Any]) -> list[str | bytes]:
    """As the words of a command of the Redis protocol."""
    given = [(field, getattr(request, field.name)) for field in fields_of(type(request))]
    words: list[str | bytes] = [f"FL.{request.verb_name.upper()}"]
    options: list[str | bytes] = []
    for field, value in given:
        if field.name in ("messages", "items"):
            options += [field.name.upper(), json.dumps(_plain(value))]
        elif field.required:
            words += [value] if isinstance(value, bytes) else _words(field, value)
        elif value != field.default:
            shown = [value] if isinstance(value, bytes) else _words(field, value)
            options += [part for word in shown for part in (field.name.upper(), word)]
    return [*words, *options]


def _option(field: Field, value: Any) -> Iterator[str]:
    name = field.name.replace("_", "-")
    if isinstance(value, bool):
        yield f"--{name}" if value else f"--no-{name}"
        return
    yield from (f"--{name}={word}" for word in _words(field, value))


def _words(field: Field, value: Any) -> list[str]:
    if is_json(field):
        return [json.dumps(_plain(value))]
    if is_text_list(field) and not isinstance(value, str):
        return [str(one) for one in value]
    shown = _plain(value)
    return [shown if isinstance(shown, str) else str(shown)]


def _plain(value: Any) -> Any:
    if isinstance(value, FailureReason):
        return value.word
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, Request):
        return {"verb": value.verb_name, **_given(value)}
    if isinstance(value, _ACTIONS):
        return {"action": type(value).__name__.lower(), **_given(value)}
    if isinstance(value, msgspec.Struct):
        return _given(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def _given(record: msgspec.Struct) -> dict[str, Any]:
    """Only what differs from its default."""
    return {
        field.name: _plain(value)
        for field in msgspec.structs.fields(type(record))
        if (value := getattr(record, field.name)) != field.default
    }
