"""The arguments of `fairlead key`: keys by id or name, and rights such as `produce,consume:orders.*`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import typer

from fairlead.cli.arguments import completing
from fairlead.cli.global_options import wrong_usage
from fairlead.cli.output import clean
from fairlead.cli.target import Target
from fairlead.errors import KeyNotFound
from fairlead.model.access import KeyInfo, Right, read_grants

_ALL = "all"


def find_key(target: Target, given: str) -> KeyInfo:
    """Find a key by its id, the beginning of the id, or a name that only one key has.

    Raises `KeyNotFound`; a text that fits several keys is wrong usage.
    """
    keys: list[KeyInfo] = target.keys.list()
    for key in keys:
        if key.id == given:
            return key
    found = [key for key in keys if given and (key.id.startswith(given) or key.name == given)]
    if not found:
        raise KeyNotFound(given)
    if len(found) > 1:
        names = ", ".join(f"{key.id} {clean(key.name)!r}" for key in found)
        wrong_usage(f"expected one key, {given!r} fits {len(found)}: {names}")
    return found[0]


def _complete(ctx: typer.Context, incomplete: str) -> list[str]:
    return completing(
        ctx, lambda target: [key.id for key in target.keys.list() if key.id.startswith(incomplete)]
    )


def key_argument() -> Any:
    """For the field `key_id`."""
    help = "A key, by its id, the beginning of its id, or its name."
    return typer.Argument(metavar="KEY", help=help, autocompletion=_complete)


def read_grant_arguments(given: Iterable[str] | None) -> list[str]:
    """Split rights as typed into single rights, as requests carry them. Raises `InvalidRequest`."""
    return [str(grant) for grant in read_grants([one for text in given or () for one in _single(text)])]


def _single(text: str) -> list[str]:
    rights, colon, pattern = text.partition(":")
    if not colon:
        return [text]
    return [f"{right}:{pattern}" for right in (Right if rights == _ALL else rights.split(","))]


def show_grants(grants: Sequence[str]) -> str:
    """Write rights in the form that `read_grant_arguments` reads."""
    by_pattern: dict[str, list[str]] = {}
    for right in Right:
        for grant in grants:
            if grant.startswith(f"{right}:"):
                by_pattern.setdefault(grant.removeprefix(f"{right}:"), []).append(right)
    words = [f"{_rights(rights)}:{pattern}" for pattern, rights in sorted(by_pattern.items())]
    return clean(" ".join(words)) or "no rights"


def _rights(rights: Sequence[str]) -> str:
    return _ALL if len(rights) == len(Right) else ",".join(rights)
