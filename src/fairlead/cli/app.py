"""The `fairlead` command and the options that all commands share; `groups.py` has the commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fairlead import __version__
from fairlead.cli import credentials
from fairlead.cli.global_options import (
    DEFAULT_ADDR,
    PATIENCE,
    CredentialFiles,
    GlobalOptions,
    Output,
    set_options,
)
from fairlead.cli.root import (
    ADDR_HELP,
    CA_HELP,
    CERT_HELP,
    DATA_HELP,
    KEY_FILE_HELP,
    KEY_HELP,
    OUTPUT_HELP,
    PROJECT_HELP,
    WAIT_HELP,
    RootGroup,
)

app = typer.Typer(
    name="fairlead",
    cls=RootGroup,
    no_args_is_help=True,
    rich_markup_mode=None,  # its panels cut long option names on a terminal of usual width
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _say_version(value: bool) -> None:
    if value:
        typer.echo(f"fairlead {__version__}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    addr: Annotated[
        str | None,
        typer.Option(
            "--addr",
            metavar="HOST:PORT",
            envvar="FAIRLEAD_ADDR",
            help=f"{ADDR_HELP} Default: {DEFAULT_ADDR}.",
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", envvar="FAIRLEAD_DATA", help=DATA_HELP)
    ] = None,
    project: Annotated[
        str | None, typer.Option("--project", metavar="NAME", envvar="FAIRLEAD_PROJECT", help=PROJECT_HELP)
    ] = None,
    output: Annotated[
        Output, typer.Option("--output", "-o", metavar="text|json", help=OUTPUT_HELP)
    ] = Output.text,
    api_key_file: Annotated[
        Path | None,
        typer.Option("--api-key-file", metavar="FILE", envvar=credentials.API_KEY_FILE, help=KEY_FILE_HELP),
    ] = None,
    tls_ca: Annotated[
        Path | None, typer.Option("--tls-ca", metavar="FILE", envvar=credentials.TLS_CA, help=CA_HELP)
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", envvar=credentials.TLS_CERT, help=CERT_HELP)
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", envvar=credentials.TLS_KEY, help=KEY_HELP)
    ] = None,
    wait: Annotated[
        str | None, typer.Option("--wait", metavar="DURATION", help=f"{WAIT_HELP} Default: {PATIENCE}.")
    ] = None,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Say which version this is."),
    ] = False,
) -> None:
    """A durable work queue that takes failure seriously.

    Commands act on a server (--addr) or, where none runs, on a data directory (--data). These options also
    work behind the name of a command.
    """
    given = GlobalOptions(
        output=output,
        project=project,
        credentials=CredentialFiles(api_key_file, tls_ca, tls_cert, tls_key),
        key_file_from_env=_from_env(ctx, "api_key_file"),
        wait=wait,
    )
    given = replace(given, addr_from_env=addr) if _from_env(ctx, "addr") else replace(given, addr=addr)
    given = replace(given, data_from_env=data) if _from_env(ctx, "data") else replace(given, data=data)
    set_options(given)


def _from_env(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "ENVIRONMENT"
