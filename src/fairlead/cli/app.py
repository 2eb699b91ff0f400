"""The `fairlead` command. Its options are in `shared_options.py`, its commands in `groups.py`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fairlead import __version__
from fairlead.cli.global_options import GlobalOptions, set_options
from fairlead.cli.parameters import keyword, with_parameters
from fairlead.cli.root import RootGroup
from fairlead.cli.shared_options import SHARED_OPTIONS

app = typer.Typer(
    name="fairlead",
    cls=RootGroup,
    no_args_is_help=True,
    rich_markup_mode=None,  # Rich's panels cut long option names on a terminal of usual width.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
_HELP = """A durable work queue that takes failure seriously.

Commands act on a server (--addr), or on a data directory that no server has open (--data). These options also
work after the name of a command.
"""


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"fairlead {__version__}")
        raise typer.Exit


_VERSION = typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")


def _set_options(ctx: typer.Context, version: bool, **given: Any) -> None:
    values = {name: value for name, value in given.items() if value is not None}
    from_env = frozenset(name for name in values if _is_from_env(ctx, name))
    set_options(GlobalOptions(**values, from_env=from_env))


def _is_from_env(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "ENVIRONMENT"


_PARAMETERS = [
    keyword("ctx", typer.Context),
    *(option.before_command() for option in SHARED_OPTIONS),
    keyword("version", Annotated[bool, _VERSION], False),
]
app.callback()(with_parameters(_set_options, _PARAMETERS, name="root", doc=_HELP))
