"""The options that every command has, as they are set for the command that runs."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

import typer

from fairlead.config.load import SETTINGS
from fairlead.runbook.model import full_name

DEFAULT_ADDR: str = SETTINGS["resp"].default
#: How long a command tries to reach a server without --wait. Short, because a person waits for the answer.
DEFAULT_WAIT = "1s"


class Output(StrEnum):
    text = "text"
    json = "json"


@dataclass(frozen=True, slots=True)
class GlobalOptions:
    """The values of the options. `from_env` names those that an environment variable set, not a flag."""

    addr: str | None = None
    data: Path | None = None
    #: The project of queue names that do not name one.
    project: str | None = None
    output: Output = Output.text
    api_key_file: Path | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    #: A duration. None: the default of the command.
    wait: str | None = None
    from_env: frozenset[str] = frozenset()

    def flag(self, name: str) -> Any:
        """The value of an option that was given as a flag, else None."""
        return None if name in self.from_env else getattr(self, name)

    def target(self) -> str | Path:
        """Return the address of the server or the path of the data directory.

        A flag takes precedence over the environment. `--addr` with `--data` is wrong usage, and so are both
        of their variables without a flag.
        """
        addr, data, names = self.flag("addr"), self.flag("data"), "--addr or --data"
        if addr is None and data is None:
            addr, data, names = self.addr, self.data, "FAIRLEAD_ADDR or FAIRLEAD_DATA"
        if addr is not None and data is not None:
            wrong_usage(f"expected {names}, not both: a server has its data directory to itself")
        if data is not None:
            return Path(data)
        return str(addr or DEFAULT_ADDR)


_current: ContextVar[GlobalOptions | None] = ContextVar("fairlead_cli_global_options", default=None)


def current_options() -> GlobalOptions:
    return _current.get() or GlobalOptions()


def set_options(options: GlobalOptions) -> None:
    _current.set(options)


def set_flag(name: str, value: object) -> None:
    """Set one option; the flag replaces a value from the environment."""
    now = current_options()
    changed: dict[str, Any] = {name: value}
    set_options(replace(now, from_env=now.from_env - {name}, **changed))


def wants_json() -> bool:
    return current_options().output is Output.json


def in_project(name: str) -> str:
    """Put a queue name, or the beginning of one, into the chosen project unless it names a project itself."""
    return name if "/" in name else full_name(current_options().project, name)


class WrongUsage(typer.BadParameter):
    """A usage error (exit code 2) whose message is printed without Typer's prefix."""

    def format_message(self) -> str:
        return self.message


def wrong_usage(message: str) -> NoReturn:
    raise WrongUsage(message)
