"""What the options that every command has were set to, for the run of one command."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NoReturn

import typer

from fairlead.config.load import SETTINGS
from fairlead.runbook.model import full_name

DEFAULT_ADDR: str = SETTINGS["resp"].default
#: How long a command tries to reach a server unless --wait says otherwise: someone is sitting there.
PATIENCE = "1s"


class Output(StrEnum):
    text = "text"
    json = "json"


@dataclass(frozen=True, slots=True)
class CredentialFiles:
    """Files, as they were given. What is in them is for `credentials.py`."""

    api_key_file: Path | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None


@dataclass(frozen=True, slots=True)
class GlobalOptions:
    """A flag beats the environment; what was given the same way twice, as `--addr` and `--data`, is refused."""

    addr: str | None = None
    data: Path | None = None
    addr_from_env: str | None = None
    data_from_env: Path | None = None
    output: Output = Output.text
    #: Of names that have none themselves.
    project: str | None = None
    credentials: CredentialFiles = CredentialFiles()
    #: `FAIRLEAD_API_KEY_FILE` says less than an option does.
    key_file_from_env: bool = False
    #: A duration; None is what the command finds right.
    wait: str | None = None

    def target(self) -> str | Path:
        """An address, or the path of a data directory."""
        if self.addr is None and self.data is None:
            addr, data, way = self.addr_from_env, self.data_from_env, "FAIRLEAD_ADDR or FAIRLEAD_DATA"
        else:
            addr, data, way = self.addr, self.data, "--addr or --data"
        if addr is not None and data is not None:
            wrong_usage(f"expected {way}, not both: a server has its data directory to itself")
        return data if data is not None else addr or DEFAULT_ADDR


_now: ContextVar[GlobalOptions | None] = ContextVar("fairlead_cli_chosen", default=None)


def current_options() -> GlobalOptions:
    return _now.get() or GlobalOptions()


def set_options(changed: GlobalOptions) -> None:
    _now.set(changed)


def wants_json() -> bool:
    return current_options().output is Output.json


def in_project(name: str) -> str:
    """What is meant by a name of a queue, or by its beginning: one without a project is in the chosen one."""
    return name if "/" in name else full_name(current_options().project, name)


class WrongUsage(typer.BadParameter):
    """Typer's own usage error (exit code 2), without the words it puts in front."""

    def format_message(self) -> str:
        return self.message


def wrong_usage(message: str) -> NoReturn:
    raise WrongUsage(message)
