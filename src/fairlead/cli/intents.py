"""`fairlead intent`: long operations in progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from rich.console import RenderableType

from fairlead.cli.from_table import Command, add_group
from fairlead.cli.global_options import wrong_usage
from fairlead.cli.output import age, table
from fairlead.model.intent import Intent


def register(app: typer.Typer) -> None:
    commands = (
        Command("list", "intents", _listed),
        Command("cancel", "cancel_intent", _cancelled, {"intent_id": typer.Argument(metavar="INTENT")}),
    )
    add_group(app, "intent", "Long operations in progress: redrives, purges, deletes.", commands)


def _listed(_: Any, found: Sequence[Intent]) -> tuple[object, RenderableType]:
    numbers = ("done", "of at most", "rate/s")
    lines = table("intent", "kind", *numbers, "since", right=("intent", *numbers))
    for intent in found:
        most = f"{intent.limit:,}" if intent.limit else "-"
        rate = f"{intent.rate:g}" if intent.rate else "-"
        lines.add_row(
            str(intent.intent_id), intent.kind, f"{intent.done:,}", most, rate, age(intent.created_ms)
        )
    return found, lines if found else "no operation is in progress"


def _cancelled(request: Any, cancelled: bool) -> tuple[object, RenderableType]:
    number = request.intent_id
    if not cancelled:
        wrong_usage(f"no redrive {number} is in progress; see: fairlead intent list")
    return {"intent_id": number, "cancelled": True}, f"stopped redrive {number}"
