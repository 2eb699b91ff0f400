"""The module of each command. Only the module of the command that runs is imported: scripts call commands in
loops, and most of the time of a short call is imports.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib import import_module
from typing import Any

import typer

from fairlead.cli import missing_package_text

#: The module by command, in the order of the help, which is that of a newcomer's first steps.
COMMAND_MODULES = {
    "serve": "serve",
    "queue": "queues",
    "runbook": "runbook",
    "apply": "apply",
    "worker": "worker",
    "redrive": "redrive",
    "intent": "intents",
    "consumer": "consumer",
    "staged": "staged",
    "explain": "explain",
    "throttle": "throttles",
    "config": "config",
    "stats": "stats",
    "failures": "failures",
    "top": "top",
    "key": "keys",
    "audit": "audit",
    "tls": "tls",
    "backup": "maintenance",
    "restore": "maintenance",
    "verify": "maintenance",
    "repair": "repair",
    "doctor": "doctor",
    "do": "do",
}


class LazyCommands(Mapping[str, Any]):
    """Commands by name. Each is made when it is first read, and then passed to `finish`."""

    def __init__(
        self,
        names: Collection[str],
        make: Callable[[str], Any],
        finish: Callable[[str, Any], None] = lambda name, command: None,
    ) -> None:
        self._names = names
        self._make = make
        self._made: dict[str, Any] = {}
        self.finish = finish

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = command = self._make(name)
            self.finish(name, command)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def load(name: str) -> Any:
    """Import the module of a command and make the command. Raises `KeyError` for an unknown command."""
    module_name = COMMAND_MODULES[name]
    try:
        module = import_module(f"fairlead.cli.{module_name}")
    except ModuleNotFoundError as missing:
        sys.exit(missing_package_text(missing))
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.callback()(_nothing)  # Makes a group, also of a single command.
    module.register(app)
    return typer.main.get_group(app).commands[name]


def _nothing() -> None: ...
