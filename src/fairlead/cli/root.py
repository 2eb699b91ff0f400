"""The root command: options that work before and after the name of a command, and every way a command can
end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from fairlead.cli.error_output import print_error, print_system_error, print_usage_error
from fairlead.cli.global_options import Output, current_options, set_options
from fairlead.cli.groups import COMMAND_MODULES, LazyCommands, load
from fairlead.errors import FairleadError
from fairlead.wire.statuses import status_of

#: 128 + the number of the signal, as a shell says it of a process that the signal ended.
INTERRUPTED = 130
BROKEN_PIPE = 141

ADDR_HELP = "Talk to the server at this address."
DATA_HELP = "Open this data directory, with no server."
PROJECT_HELP = "The project of a queue that is named without one, and of a runbook."
OUTPUT_HELP = "Tables for people, or JSON for programs."
KEY_FILE_HELP = "File with the API key for the server; FAIRLEAD_API_KEY may have the key itself."
CA_HELP = (
    "Speak TLS with a server of the authority in this file, in PEM; `system`: of those the system trusts."
)
CERT_HELP = "Certificate of this client, in PEM, for a server that asks for one."
KEY_HELP = "The private key of --tls-cert."
WAIT_HELP = "How long to try to reach the server."


class RootGroup(TyperGroup):
    """Catches what commands raise, so that none of them has to; each ends with an exit code and without a
    traceback.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = cast(MutableMapping[str, Any], _groups)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """With `standalone_mode` the process ends here, with its exit code."""
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except typer.TyperException as complaint:
            if not standalone_mode:
                raise
            print_usage_error(complaint)
            code = complaint.exit_code
        except typer.Abort:
            if not standalone_mode:
                raise
            code = INTERRUPTED
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code

    def invoke(self, ctx: Any) -> Any:
        try:
            super().invoke(ctx)
            sys.stdout.flush()
        except FairleadError as error:
            print_error(error)
            raise typer.Exit(status_of(error).exit_code) from error
        except BrokenPipeError:
            _stop_printing()
            raise typer.Exit(BROKEN_PIPE) from None
        except OSError as error:
            print_system_error(error)
            raise typer.Exit(1) from error


def _add_shared_options(name: str, group: Any) -> None:
    """`name` is the first word of the command. Commands of a lazy group get theirs when they are made."""
    inner = getattr(group, "commands", None)
    if isinstance(inner, LazyCommands):
        inner.finish = lambda _, command: _add_shared_options(name, command)
        return
    shared = typer.main.get_command(_shared).params
    for command in _leaves(group):
        own = {option for param in command.params for option in param.opts}
        if own & _TARGET - {"--wait"}:
            own |= _TARGET  # it says for itself where it acts
        if name not in _NAMES_QUEUES:
            own.add("--project")
        command.params.extend(
            param for param in shared if param.name != "help" and own.isdisjoint(param.opts)
        )


_groups = LazyCommands(COMMAND_MODULES, load, _add_shared_options)


def _leaves(command: Any) -> list[Any]:
    if not isinstance(command, TyperGroup):
        return [command]
    return [leaf for below in command.commands.values() for leaf in _leaves(below)]


def _stop_printing() -> None:
    """Whoever read our output is gone: what is still buffered must not raise a second time while Python ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


# The same options behind the name of a command; they beat those in front of it.


def _note_addr(value: str | None) -> None:
    if value is not None:
        set_options(replace(current_options(), addr=value))


def _note_data(value: Path | None) -> None:
    if value is not None:
        set_options(replace(current_options(), data=value))


def _note_project(value: str | None) -> None:
    if value is not None:
        set_options(replace(current_options(), project=value))


def _note_output(value: Output | None) -> None:
    if value is not None:
        set_options(replace(current_options(), output=value))


def _note_wait(value: str | None) -> None:
    if value is not None:
        set_options(replace(current_options(), wait=value))


def _note_credential(param: typer.CallbackParam, value: Path | None) -> None:
    if value is not None:
        now = current_options()
        from_env = now.key_file_from_env and param.name != "api_key_file"
        set_options(
            replace(
                now, credentials=replace(now.credentials, **{param.name: value}), key_file_from_env=from_env
            )
        )


def _credential(name: str, help: str) -> Any:
    return typer.Option(
        name, metavar="FILE", help=help, callback=_note_credential, expose_value=False, hidden=True
    )


_TARGET = {"--addr", "--data", "--api-key-file", "--tls-ca", "--tls-cert", "--tls-key", "--wait"}
_NAMES_QUEUES = {
    "queue",
    "runbook",
    "apply",
    "worker",
    "redrive",
    "explain",
    "config",
    "stats",
    "failures",
    "top",
    "audit",
    "do",
}
_shared = typer.Typer(add_completion=False)


@_shared.command()
def _options(
    addr: Annotated[
        str | None,
        typer.Option("--addr", metavar="HOST:PORT", help=ADDR_HELP, callback=_note_addr, expose_value=False),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help=DATA_HELP, callback=_note_data, expose_value=False),
    ] = None,
    # Before the arguments, whose callbacks ask for it.
    project: Annotated[
        str | None,
        typer.Option(
            "--project",
            metavar="NAME",
            help=PROJECT_HELP,
            callback=_note_project,
            expose_value=False,
            is_eager=True,
        ),
    ] = None,
    output: Annotated[
        Output | None,
        typer.Option(
            "--output", "-o", metavar="text|json", help=OUTPUT_HELP, callback=_note_output, expose_value=False
        ),
    ] = None,
    # Hidden here, because every help would be twice as long for the sake of servers with keys; the help of
    # `fairlead` has them.
    api_key_file: Annotated[Path | None, _credential("--api-key-file", KEY_FILE_HELP)] = None,
    tls_ca: Annotated[Path | None, _credential("--tls-ca", CA_HELP)] = None,
    tls_cert: Annotated[Path | None, _credential("--tls-cert", CERT_HELP)] = None,
    tls_key: Annotated[Path | None, _credential("--tls-key", KEY_HELP)] = None,
    wait: Annotated[
        str | None,
        typer.Option(
            "--wait",
            metavar="DURATION",
            help=WAIT_HELP,
            callback=_note_wait,
            expose_value=False,
            hidden=True,
        ),
    ] = None,
) -> None: ...
