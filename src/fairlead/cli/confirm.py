"""The question before a command removes or changes messages."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fairlead.cli.global_options import wrong_usage
from fairlead.cli.output import clean, console

#: For the signature of every command that asks: `yes: Yes = False`.
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def confirm(what: str, *, yes: bool) -> None:
    """Print what the command will do, such as "drop 3 messages of 'orders'", and ask; exit unless the answer
    is yes.

    Without a terminal and without `--yes` the call is wrong usage: a script must confirm explicitly.
    """
    if yes:
        return
    if not at_terminal():
        wrong_usage(f"would {what}; there is no terminal to ask at: confirm with --yes")
    out = console(stderr=True)
    out.print(f"This will {clean(what)}.", soft_wrap=True)
    out.print("Continue? [y/N] ", end="")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        out.print("Nothing was changed.")
        raise typer.Exit(1)


def at_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
