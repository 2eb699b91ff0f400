"""`fairlead intent`: long operations that are under way."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli.chosen import wrong_usage
from fairlead.cli.output import age, show, table
from fairlead.cli.target import open_target


def register(app: typer.Typer) -> None:
    intent = typer.Typer(
        no_args_is_help=True, help="Long operations that are under way: redrives, purges, deletes."
    )
    intent.command("list")(list_all)
    intent.command("cancel")(cancel)
    app.add_typer(intent, name="intent")


def list_all() -> None:
    """List what is under way, and how far it has come."""
    with open_target() as target:
        found = target.intents()
    lines = table(
        "intent",
        "kind",
        "done",
        "of at most",
        "rate/s",
        "since",
        right=("intent", "done", "of at most", "rate/s"),
    )
    for intent in found:
        most, rate = (
            (f"{intent.limit:,}" if intent.limit else "-"),
            (f"{intent.rate:g}" if intent.rate else "-"),
        )
        lines.add_row(
            str(intent.intent_id), intent.kind, f"{intent.done:,}", most, rate, age(intent.created_ms)
        )
    show(found, lines if found else "nothing is under way")


def cancel(
    number: Annotated[int, typer.Argument(metavar="INTENT", help="The number that `intent list` shows.")],
) -> None:
    """Stop a redrive where it is; what was moved stays moved."""
    with open_target() as target:
        cancelled = target.cancel_intent(number)
    if not cancelled:
        wrong_usage(f"there is no redrive {number} under way; see: fairlead intent list")
    show({"intent_id": number, "cancelled": True}, f"stopped redrive {number}")
