"""The root command: it adds the shared options to every command and turns every error into an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence
from typing import Any, cast

import typer
from typer.core import TyperGroup

from fairlead.cli.error_output import print_error, print_system_error, print_usage_error
from fairlead.cli.groups import COMMAND_MODULES, LazyCommands, load
from fairlead.cli.shared_options import TARGET_FLAGS, options_after_command
from fairlead.errors import FairleadError
from fairlead.wire.statuses import status_of

#: 128 + the number of the signal, as a shell reports a process that the signal ended.
INTERRUPTED = 130
BROKEN_PIPE = 141

#: Commands and groups that name queues, and so take --project.
_WITH_PROJECT = {
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


class RootGroup(TyperGroup):
    """Catches the errors that commands raise, and ends each with an exit code and without a traceback."""

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
            _discard_output()
            raise typer.Exit(BROKEN_PIPE) from None
        except OSError as error:
            print_system_error(error)
            raise typer.Exit(1) from error


def _add_shared_options(name: str, group: Any) -> None:
    """Add the shared options to a command of the root, or to every command of a group.

    `name` is the first word of the command. The commands of a lazy group get their options when they are
    made.
    """
    inner = getattr(group, "commands", None)
    if isinstance(inner, LazyCommands):
        inner.finish = lambda _, command: _add_shared_options(name, command)
        return
    shared = options_after_command()
    for command in _leaves(group):
        own = {option for param in command.params for option in param.opts}
        if own & TARGET_FLAGS - {"--wait"}:
            own |= TARGET_FLAGS  # The command has options of its own that say where it acts.
        if name not in _WITH_PROJECT:
            own.add("--project")
        command.params.extend(param for param in shared if own.isdisjoint(param.opts))


_groups = LazyCommands(COMMAND_MODULES, load, _add_shared_options)


def _leaves(command: Any) -> list[Any]:
    if not isinstance(command, TyperGroup):
        return [command]
    return [leaf for below in command.commands.values() for leaf in _leaves(below)]


def _discard_output() -> None:
    """The reader of the output is gone: buffered text must not raise a second time while Python ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
