"""Which messages, by what is known about their failures: the options of every verb that acts on many."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead import DeadFilter
from fairlead.cli.arguments import check_reason, complete_reason
from fairlead.cli.chosen import wrong_usage


def read_filter(
    reason: Annotated[
        str | None,
        typer.Option(
            metavar="REASON",
            help="The reason of the last failure.",
            callback=check_reason,
            autocompletion=complete_reason,
        ),
    ] = None,
    error: Annotated[str | None, typer.Option(metavar="TEXT", help="Found in the last error.")] = None,
    error_regex: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="A regular expression (RE2) found in the last error."),
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="The fairness key.")] = None,
    header: Annotated[str | None, typer.Option(metavar="NAME=VALUE", help="A header.")] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Dead for at least so long.")
    ] = None,
    newer_than: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Dead for at most so long.")
    ] = None,
    min_attempts: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Failed at least so often.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Failed at most so often.")
    ] = None,
) -> DeadFilter | None:
    """None when no option was given."""
    found = DeadFilter(
        reason,
        error,
        error_regex,
        key,
        read_header(header),
        older_than,
        newer_than,
        min_attempts,
        max_attempts,
    )
    return None if found == DeadFilter() else found


def read_header(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    name, equals, value = text.partition("=")
    if not equals or not name:
        wrong_usage(f"expected --header to be NAME=VALUE, got {text!r}")
    return name, value
