"""Errors on stderr: text for people, or with `-o json` one object.

`{"error": {"code": ..., "message": ..., "fields": {...}, "hints": [...]}}` has the code, message and fields
of the error as every other door gives them; wrong usage has the code `usage`. Exit codes come from
`wire/statuses.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import typer
from rich.text import Text

from fairlead.cli.global_options import WrongUsage, wants_json
from fairlead.cli.output import as_json, clean, console, plain
from fairlead.errors import FairleadError

#: Advice about TLS for Python programs, and the same advice for the command line.
_TLS_ADVICE = (
    (
        "give tls= the path of its authority's certificate, or True for those the system trusts (on the command line --tls-ca)",
        "give --tls-ca the path of its authority's certificate, or `system` for those the system trusts",
    ),
    ("leave tls= (--tls-ca) out", "leave --tls-ca out"),
    ("give fairlead.Tls(ca=, cert=, key=) (--tls-cert and --tls-key)", "give --tls-cert and --tls-key"),
    (", or say it with fairlead.Tls(server_name=)", ""),
    ("give tls= (--tls-ca) the certificate", "give --tls-ca the certificate"),
)


def _tls_message(error: FairleadError) -> str:
    message = error.message
    for in_python, in_shell in _TLS_ADVICE:
        message = message.replace(in_python, in_shell)
    return message


#: Messages of errors that name a Python method, with the command to type instead.
_SHELL_MESSAGES: dict[str, Callable[[Any], str]] = {
    "queue_not_found": lambda error: f"there is no queue {error.queue!r}",
    "queue_exists": lambda error: (
        f"queue {error.queue!r} exists already; change it with: fairlead queue update {error.queue}"
    ),
    "config_key_not_found": lambda error: (
        f"configuration key {error.key!r} is not set; see: fairlead config list"
    ),
    "consumer_not_found": lambda error: f"queue {error.queue!r} has no durable consumer {error.name!r}",
    "source_queue_gone": lambda error: (
        f"the source queue of {error.queue!r} no longer exists; create it again to bring messages back to it"
    ),
    "tls_failed": _tls_message,
}


def print_error(error: FairleadError) -> None:
    hints = list(getattr(error, "__notes__", ()))
    if wants_json():
        _print_json(error.code, error.message, error.fields, hints)
        return
    shell_message = _SHELL_MESSAGES.get(error.code)
    _print_text(shell_message(error) if shell_message else error.message, hints)


def print_usage_error(complaint: typer.TyperException) -> None:
    """Print wrong usage. Without any arguments the message is the help, or empty when Typer has printed it."""
    message = complaint.format_message()
    if not message:
        return
    if message.startswith("Usage: ") and not wants_json():
        sys.stderr.write(message + "\n")
        return
    context = None if isinstance(complaint, WrongUsage) else getattr(complaint, "ctx", None)
    hints = [f"see: {context.command_path} --help"] if context is not None else []
    if wants_json():
        _print_json("usage", message, {}, hints)
    else:
        _print_text(message, hints)


def print_system_error(error: OSError) -> None:
    """Print an error of the operating system, such as a file that cannot be read."""
    what = f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
    if wants_json():
        _print_json("system", what, {}, [])
    else:
        _print_text(what, [])


def _print_text(message: str, hints: list[str]) -> None:
    out = console(stderr=True)
    out.print(Text.assemble(("error: ", "bold red"), clean(message)), soft_wrap=True)
    for hint in hints:
        out.print(Text(f"       {clean(hint)}"), soft_wrap=True)


def _print_json(code: str, message: str, fields: dict[str, Any], hints: list[str]) -> None:
    shown = {name: _field(value) for name, value in fields.items()}
    error = {"code": code, "message": message, "fields": shown, "hints": hints}
    sys.stderr.write(as_json({"error": error}) + "\n")


def _field(value: object) -> object:
    """A field may hold any value that the caller sent, also one without a JSON form."""
    try:
        return plain(value)
    except TypeError:
        return repr(value)
