"""`fairlead config`: the runtime configuration, which takes effect at once: throttles, weights, values for
hooks.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import RenderableType

from fairlead.cli.from_table import Command, add_group
from fairlead.cli.global_options import in_project, wrong_usage
from fairlead.cli.output import clean, table, unless_piped
from fairlead.model.config_keys import WEIGHT


def _key_in_project(key: str) -> str:
    """Put the queue of a weight into the chosen project, as everywhere."""
    queue, colon, rest = key.removeprefix(WEIGHT).partition(":")
    return f"{WEIGHT}{in_project(queue)}{colon}{rest}" if key.startswith(WEIGHT) and queue else key


def _read_prefix(
    prefix: Annotated[
        str,
        typer.Argument(metavar="PREFIX", help="List only keys that begin with it.", callback=_key_in_project),
    ] = "",
    also_prefix: Annotated[
        str,
        typer.Option("--prefix", metavar="PREFIX", help="The prefix as an option.", callback=_key_in_project),
    ] = "",
) -> str:
    if prefix and also_prefix:
        wrong_usage("expected one prefix, as an argument or with --prefix, got both")
    return prefix or also_prefix


def _listed(request: Any, found: dict[str, str]) -> tuple[object, RenderableType]:
    lines = table("key", "value")
    for key, value in sorted(found.items()):
        lines.add_row(clean(key), clean(value, most=unless_piped(200)))
    nothing = "no key is set"
    if request.prefix:
        nothing = f"no key that is set begins with {clean(request.prefix)!r}"
    return found, lines if found else nothing


def register(app: typer.Typer) -> None:
    def key() -> dict[str, Any]:
        return {"key": typer.Argument(callback=_key_in_project)}

    commands = (
        Command(
            "set",
            "config.set",
            lambda made, _: (
                {"key": made.key, "value": made.value},
                f"{clean(made.key)} = {clean(made.value)}",
            ),
            key(),
            creates=True,
            # A value may begin with a minus sign.
            settings={"ignore_unknown_options": True},
        ),
        Command(
            "get", "config.get", lambda made, value: ({"key": made.key, "value": value}, clean(value)), key()
        ),
        Command("list", "config.list", _listed, readers={"prefix": _read_prefix}),
        Command(
            "unset",
            "config.delete",
            lambda made, _: ({"key": made.key, "value": None}, f"{clean(made.key)} is no longer set"),
            key(),
        ),
    )
    add_group(app, "config", "Runtime configuration: throttles, weights, values for hooks.", commands)
