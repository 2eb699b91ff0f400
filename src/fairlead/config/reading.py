"""Reads the value of a setting from a file, a variable or a flag."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from fairlead.config.server import Address
from fairlead.errors import InvalidRequest
from fairlead.model.addresses import split_address
from fairlead.model.durations import to_ms

_SIZES = {
    "B": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}


_SIZE = re.compile(rf"(\d{{1,12}}(?:\.\d{{1,6}})?)\s*({'|'.join(_SIZES)})")


def read_value(path: str, hint: Any, given: object) -> Any:
    """Read a value by the type of its field. Raises `InvalidRequest` with the path of the setting."""
    origin = get_origin(hint)
    if origin is Literal:
        return _read_choice(path, given, get_args(hint))
    if origin is tuple:
        return _read_names(path, given)
    if hint is bool:
        return _read_bool(path, given)
    if hint is int:
        return _read_int(path, given)
    if hint is Path:
        return (
            given if isinstance(given, Path) else Path(_read_text(path, given, "a path", may_be_empty=False))
        )
    text = _read_text(path, given, "text")
    return _read_address(path, text) if hint is Address else text


def _read_choice(path: str, given: object, choices: tuple[Any, ...]) -> Any:
    if given in choices:
        return given
    raise InvalidRequest(path, " or ".join(f'"{choice}"' for choice in choices), given)


def _read_text(path: str, given: object, what: str, *, may_be_empty: bool = True) -> str:
    if not isinstance(given, str) or "\0" in given or not (given or may_be_empty):
        raise InvalidRequest(path, what, given)
    return given


def _read_address(path: str, given: str) -> str:
    if given != "off":
        try:
            split_address(given, may_pick_port=True)
        except InvalidRequest as error:
            raise InvalidRequest(path, f'{error.expected}, or "off"', given) from None
    return given


def _read_names(path: str, given: object) -> tuple[str, ...]:
    """Read a list, or text with commas, because the environment has only text."""
    names = [part.strip() for part in given.split(",") if part.strip()] if isinstance(given, str) else given
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise InvalidRequest(path, 'a list of texts such as ["a", "b"], or "a, b"', given)
    return tuple(names)


def _read_bool(path: str, given: object) -> bool:
    if isinstance(given, bool):
        return given
    if isinstance(given, str) and given.lower() in ("true", "1", "false", "0"):
        return given.lower() in ("true", "1")
    raise InvalidRequest(path, "true or false", given)


def _read_int(path: str, given: object) -> int:
    if type(given) is int:
        return given
    if isinstance(given, str) and re.fullmatch(r"-?[0-9]{1,19}", given.strip()):
        # `strip` knows more kinds of space than `int`.
        return int(given.strip())
    if path.endswith("_ms"):
        try:
            return to_ms(given, path)
        except InvalidRequest:
            raise InvalidRequest(
                path, 'a number of milliseconds or a duration such as "30s"', given
            ) from None
    if path.endswith("_bytes"):
        found = _SIZE.fullmatch(given.strip()) if isinstance(given, str) else None
        if found is None:
            raise InvalidRequest(path, 'a number of bytes or a size such as "64MiB"', given)
        return round(float(found[1]) * _SIZES[found[2]])
    raise InvalidRequest(path, "a whole number", given)
