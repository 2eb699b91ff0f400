"""Generates the reference of the command line from the commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from fairlead.cli.app import app
from fairlead.cli.repair import SAVED_IN_PART
from fairlead.wire.statuses import STATUSES

#: The meaning of each code. The table of errors has no entries for 0, 1, 2 and the signals.
EXIT_CODES = {
    0: "success, also when there was nothing to do",
    1: "the answer to a question was no; a file could not be read or written; `doctor` found a problem",
    2: "wrong usage: an unknown command or option, or a question without a terminal and without `--yes`",
    3: "the request is invalid",
    4: "the named object does not exist",
    5: "the new object exists already",
    6: "the request does not fit the current state",
    7: "unavailable; the same command may work later",
    8: "a limit is reached",
    9: "a hook script or a runbook is wrong",
    10: "the data or the store is broken; the operator must act",
    11: "the server asks for an API key, and no valid key was given",
    12: "the API key lacks a right",
    SAVED_IN_PART: "`fairlead repair` saved a part into the new directory; confirmed data is lost",
    130: "ended by Ctrl-C",
    141: "the reader of the output closed it",
}


_DO = "fairlead do "


def leaf_commands() -> list[tuple[str, Any]]:
    """Return every command with its full name, in the order of the help."""
    return list(_leaves("fairlead", typer.main.get_command(app)))


def _leaves(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name in command.list_commands(None):
        yield from _leaves(f"{path} {name}", command.commands[name])


def shared_options() -> Iterator[str]:
    yield "| option | meaning |"
    yield "|---|---|"
    for param in typer.main.get_command(app).params:
        if param.name != "help":
            env = f" Environment: `{param.envvar}`." if param.envvar else ""
            yield f"| {_name(param)} | {_cell(param.help)}{env} |"


def commands_section() -> Iterator[str]:
    """List the commands with their own options; the commands of `fairlead do` refer to the reference of verbs."""
    for path, command in leaf_commands():
        if path.startswith(_DO):
            continue
        own = [param for param in command.params if param.expose_value]
        yield from _heading(path, _usage_of(path, command), command.help)
        if own:
            yield "| argument or option | meaning |"
            yield "|---|---|"
            for param in own:
                yield f"| {_name(param)} | {_cell(param.help)}{_default(param)} |"
            yield ""

    yield from _heading("fairlead do", "fairlead do VERB", typer.main.get_command(app).commands["do"].help)
    yield "| command | verb |"
    yield "|---|---|"
    for path, command in leaf_commands():
        if path.startswith(_DO):
            verb = path.removeprefix(_DO)
            usage = _usage_of(path, command).replace("|", "\\|")
            yield f"| `{usage}` | [`{verb}`](verbs.md#{verb.replace('.', '')}) |"
    yield ""


def _heading(path: str, usage: str, help: str | None) -> Iterator[str]:
    yield f"### {path}"
    yield ""
    yield f"`{usage}`"
    yield ""
    yield from re.sub(r"(?m)^ +", "", help or "").strip().splitlines()
    yield ""


def _usage_of(path: str, command: Any) -> str:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    return " ".join([path, *map(_usage, arguments)])


def exit_codes_table() -> Iterator[str]:
    yield "| code | when | errors |"
    yield "|---|---|---|"
    for code, when in EXIT_CODES.items():
        errors = ", ".join(
            f"`{error.__name__}`" for error, status in STATUSES.items() if status.exit_code == code
        )
        yield f"| {code} | {when} | {errors} |"


def _usage(param: Any) -> str:
    name = (
        (param.metavar or param.name).strip("[].").upper()
        if "|" not in (param.metavar or "")
        else param.metavar
    )
    return (name if param.required else f"[{name}]") + ("..." if param.nargs == -1 else "")


def _name(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"`{_usage(param)}`".replace("|", "\\|")
    value = "" if getattr(param, "is_flag", False) else " " + (param.metavar or "VALUE")
    names = ", ".join(f"`{name}`" for name in sorted(param.opts, key=len))
    off = "".join(f", `{name}`" for name in param.secondary_opts)
    return (names[:-1] + value + "`" + off).replace("|", "\\|")


def _default(param: Any) -> str:
    """The default, where `--help` shows it."""
    if not param.show_default or isinstance(param.default, bool) or param.default in (None, "", ()):
        return ""
    return f" Default: {param.default}."


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")
