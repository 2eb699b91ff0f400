"""The filter options of every verb that acts on many messages."""

from __future__ import annotations

import inspect
from typing import Any

import typer

from fairlead import DeadFilter
from fairlead.cli.arguments import check_reason, complete_reason
from fairlead.cli.from_table import parameter_of
from fairlead.cli.global_options import wrong_usage
from fairlead.cli.parameters import with_parameters
from fairlead.fields import fields_of


def read_filter(**given: Any) -> DeadFilter | None:
    """Return the filter, or None when no option was given."""
    found = DeadFilter(**given | {"header": read_header(given["header"])})
    return None if found == DeadFilter() else found


def _parameters() -> list[inspect.Parameter]:
    reason = typer.Option(callback=check_reason, autocompletion=complete_reason)
    params = {
        "reason": reason,
        "error": typer.Option(metavar="TEXT"),
        "error_regex": typer.Option(metavar="PATTERN"),
        "header": typer.Option(metavar="NAME=VALUE"),
    }
    return [parameter_of(field, params.get(field.name)) for field in fields_of(DeadFilter)]


with_parameters(read_filter, _parameters(), name="read_filter", doc=read_filter.__doc__)


def read_header(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    name, equals, value = text.partition("=")
    if not equals or not name:
        wrong_usage(f"expected --header to be NAME=VALUE, got {text!r}")
    return name, value
