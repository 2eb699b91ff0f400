"""Asking before something is gone."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fairlead.cli.global_options import wrong_usage
from fairlead.cli.output import clean, console

#: For the signature of every command that asks: `yes: Yes = False`.
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def confirm(what: str, *, yes: bool) -> None:
    """Say exactly what will be touched, as in "drop 3 messages of 'orders'", and go on only when the answer
    is yes.

    Without a terminal to ask at and without `--yes` this is wrong usage: a script must say that it means it.
    """
    if yes:
        return
    if not at_terminal():
        wrong_usage(f"would {what}; there is no terminal to ask at, so say --yes if that is meant")
    out = console(stderr=True)
    out.print(f"This will {clean(what)}.", soft_wrap=True)
    out.print("Go on? [y/N] ", end="")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        out.print("Nothing was changed.")
        raise typer.Exit(1)


def at_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
