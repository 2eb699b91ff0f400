"""`fairlead do VERB`: every verb of the table as a command, made from the table.

Verbs that people use often also have a command of their own, with its own view and a question before it
removes messages. `fairlead do` sends the request as typed.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from itertools import groupby
from typing import Any, cast

import typer
from typer.core import TyperGroup

from fairlead.cli.answers import answer_view
from fairlead.cli.from_table import Command, add_commands, help_of
from fairlead.cli.groups import LazyCommands
from fairlead.request import VERBS, Verb

_HELP = """Send any request by the name of its verb, without asking for confirmation.

Required fields are arguments, the queue first; other fields are options. Repeat the argument or option for
each item of a list of texts. Give other structured fields as JSON. JSON and payloads may also be @FILE, or -
for standard input.
"""


def register(app: typer.Typer) -> None:
    app.add_typer(typer.Typer(cls=VerbGroup, no_args_is_help=True, help=_HELP), name="do")


class VerbGroup(TyperGroup):
    """Makes the command of a verb when it is first used: making all of them takes longer than most calls."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = cast(MutableMapping[str, Any], LazyCommands(VERBS, _command))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the verbs by feature, in the order of the reference."""
        for feature, verbs in groupby(VERBS.values(), key=_feature):
            with formatter.section(feature):
                formatter.write_dl([(verb.name, _first_sentence(verb)) for verb in verbs])


def _command(name: str) -> Any:
    alone = typer.Typer(rich_markup_mode=None, add_completion=False)
    add_commands(alone, [Command(name, VERBS[name].name, answer_view)])
    return typer.main.get_command(alone)


def _feature(verb: Verb) -> str:
    return verb.request.__module__.rpartition(".")[2].replace("_", " ").capitalize()


def _first_sentence(verb: Verb) -> str:
    return " ".join(help_of(verb).split()).partition(". ")[0].rstrip(".") + "."
