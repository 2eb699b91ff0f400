"""`fairlead config`: the runtime configuration, live at once: throttles, weights, and what hooks read."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli.chosen import in_project, wrong_usage
from fairlead.cli.output import clean, show, table, unless_piped
from fairlead.cli.target import Target, nearest, open_target
from fairlead.errors import ConfigKeyNotFound
from fairlead.model.config_keys import WEIGHT


def _meant(key: str) -> str:
    """The queue of a weight is named as everywhere."""
    queue, colon, rest = key.removeprefix(WEIGHT).partition(":")
    return f"{WEIGHT}{in_project(queue)}{colon}{rest}" if key.startswith(WEIGHT) and queue else key


Key = Annotated[
    str,
    typer.Argument(
        metavar="KEY",
        help="throttle:KEY:rate, throttle:KEY:burst, throttle.KEY for both, weight:QUEUE:KEY, or your own.",
        callback=_meant,
    ),
]


def register(app: typer.Typer) -> None:
    config = typer.Typer(
        no_args_is_help=True, help="Runtime configuration: throttles, weights, values for hooks."
    )
    # A value may begin with a minus sign, and is no option then.
    config.command("set", context_settings={"ignore_unknown_options": True})(set_value)
    for name, command in (("get", get_value), ("list", list_all), ("unset", unset)):
        config.command(name)(command)
    app.add_typer(config, name="config")


def set_value(
    key: Key,
    value: Annotated[
        str,
        typer.Argument(
            metavar="VALUE", help="Text; a number for throttles and weights, RATE,BURST for throttle.KEY."
        ),
    ],
) -> None:
    """Set a value; it holds from the next message on."""
    with open_target(create=True) as target:
        target.config.set(key, value)
    show({"key": key, "value": value}, f"{clean(key)} = {clean(value)}")


def get_value(key: Key) -> None:
    """Print a value."""
    with open_target() as target:
        try:
            value = target.config.get(key)
        except ConfigKeyNotFound as unknown:
            _suggest(target, unknown)
            raise
    show({"key": key, "value": value}, clean(value))


def list_all(
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Only keys that begin with it.", callback=_meant)
    ] = "",
    also_prefix: Annotated[
        str, typer.Option("--prefix", metavar="PREFIX", help="The same as an option.", callback=_meant)
    ] = "",
) -> None:
    """List keys and values."""
    if prefix and also_prefix:
        wrong_usage("expected one prefix, as an argument or with --prefix, got both")
    prefix = prefix or also_prefix
    with open_target() as target:
        found = target.config.list(prefix)
    lines = table("key", "value")
    for key, value in sorted(found.items()):
        lines.add_row(clean(key), clean(value, most=unless_piped(200)))
    show(found, lines if found else "nothing is set" + (f" under {clean(prefix)!r}" if prefix else ""))


def unset(key: Key) -> None:
    """Remove a key; a throttle that is gone lets everything pass."""
    with open_target() as target:
        try:
            target.config.delete(key)
        except ConfigKeyNotFound as unknown:
            _suggest(target, unknown)
            raise
    show({"key": key, "value": None}, f"{clean(key)} is not set any more")


def _suggest(target: Target, unknown: ConfigKeyNotFound) -> None:
    near = nearest(unknown.key, list(target.config.list()))
    if near:
        unknown.add_note(f"did you mean {near}?")
