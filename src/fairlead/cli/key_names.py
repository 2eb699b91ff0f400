"""Which key is meant: by its id, the beginning of one, or a name that only one has."""

from __future__ import annotations

from typing import Any

import typer

from fairlead.cli.arguments import completing
from fairlead.cli.global_options import wrong_usage
from fairlead.cli.output import clean
from fairlead.cli.target import Target
from fairlead.errors import KeyNotFound
from fairlead.model.access import KeyInfo


def find_key(target: Target, given: str) -> KeyInfo:
    """Raises `KeyNotFound`; one that could be several is wrong usage."""
    keys: list[KeyInfo] = target.keys.list()
    found = [info for info in keys if info.id == given] or [
        info for info in keys if given and (info.id.startswith(given) or info.name == given)
    ]
    if not found:
        raise KeyNotFound(given)
    if len(found) > 1:
        wrong_usage(
            f"expected one key, {given!r} fits {len(found)}: "
            + ", ".join(f"{info.id} {clean(info.name)!r}" for info in found)
        )
    return found[0]


def _complete(ctx: typer.Context, incomplete: str) -> list[str]:
    return completing(
        ctx, lambda target: [info.id for info in target.keys.list() if info.id.startswith(incomplete)]
    )


def key_argument() -> Any:
    """For the field `key_id`."""
    help = "A key, by its id, the beginning of it, or its name."
    return typer.Argument(metavar="KEY", help=help, autocompletion=_complete)
