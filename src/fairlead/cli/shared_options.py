"""The table of options that work before and after the name of every command."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fairlead.cli import credentials
from fairlead.cli.global_options import DEFAULT_ADDR, DEFAULT_WAIT, Output, set_flag
from fairlead.cli.parameters import keyword, with_parameters


@dataclass(frozen=True)
class SharedOption:
    """One option. `name` is the field of `GlobalOptions` that the option sets."""

    name: str
    kind: Any
    metavar: str
    help: str
    envvar: str | None = None
    default: str = ""
    letters: tuple[str, ...] = ()
    #: Keeps the help of single commands short; the help of `fairlead` shows every option.
    hidden: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def before_command(self) -> inspect.Parameter:
        help = f"{self.help} Default: {self.default}." if self.default else self.help
        option = typer.Option(self.flag, *self.letters, metavar=self.metavar, help=help, envvar=self.envvar)
        return keyword(self.name, Annotated[self.kind | None, option], None)

    def after_command(self) -> inspect.Parameter:
        option = typer.Option(
            self.flag,
            *self.letters,
            metavar=self.metavar,
            help=self.help,
            callback=self._remember,
            expose_value=False,
            hidden=self.hidden,
            # Read first: the callbacks of queue arguments ask for the project.
            is_eager=self.name == "project",
        )
        return keyword(self.name, Annotated[self.kind | None, option], None)

    def _remember(self, value: Any) -> None:
        if value is not None:
            set_flag(self.name, value)


SHARED_OPTIONS = (
    SharedOption(
        "addr", str, "HOST:PORT", "Use the server at this address.", "FAIRLEAD_ADDR", default=DEFAULT_ADDR
    ),
    SharedOption("data", Path, "DIR", "Open this data directory, without a server.", "FAIRLEAD_DATA"),
    SharedOption(
        "project",
        str,
        "NAME",
        "Project of the runbook, and of queue names that do not name one.",
        "FAIRLEAD_PROJECT",
    ),
    SharedOption(
        "output",
        Output,
        "text|json",
        "Print tables for people, or JSON for programs.",
        default="text",
        letters=("-o",),
    ),
    SharedOption(
        "api_key_file",
        Path,
        "FILE",
        "Read the API key for the server from this file. FAIRLEAD_API_KEY holds the key itself.",
        credentials.API_KEY_FILE,
        hidden=True,
    ),
    SharedOption(
        "tls_ca",
        Path,
        "FILE",
        "Use TLS, and trust the authority in this PEM file; `system` trusts the system's authorities.",
        credentials.TLS_CA,
        hidden=True,
    ),
    SharedOption(
        "tls_cert",
        Path,
        "FILE",
        "Show this client certificate (PEM) to a server that asks for one.",
        credentials.TLS_CERT,
        hidden=True,
    ),
    SharedOption(
        "tls_key", Path, "FILE", "Private key (PEM) of --tls-cert.", credentials.TLS_KEY, hidden=True
    ),
    SharedOption(
        "wait", str, "DURATION", "How long to try to reach the server.", default=DEFAULT_WAIT, hidden=True
    ),
)

#: The options that say where and how a command reaches its broker.
TARGET_FLAGS = frozenset(option.flag for option in SHARED_OPTIONS) - {"--project", "--output"}


def options_after_command() -> list[Any]:
    """The options as parameters of a Typer command."""
    alone = typer.Typer(add_completion=False)
    parameters = [option.after_command() for option in SHARED_OPTIONS]
    alone.command()(with_parameters(lambda: None, parameters, name="options", doc=None))
    return [param for param in typer.main.get_command(alone).params if param.name != "help"]
