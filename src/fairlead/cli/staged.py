"""`fairlead staged`: writes that are prepared and not published yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from rich.console import RenderableType

from fairlead.cli.from_table import Command, add_group
from fairlead.cli.output import age, clean, count_of, cut, table
from fairlead.cli.target import Target
from fairlead.model.staging import StagedWrite


def register(app: typer.Typer) -> None:
    commands = (
        Command("list", "staging.list", _listed),
        Command("discard", "staging.discard", _discarded, asks=_what_goes),
    )
    add_group(
        app, "staged", "Writes that are prepared and not published yet, and those published lately.", commands
    )


def _listed(_: Any, found: Sequence[StagedWrite]) -> tuple[object, RenderableType]:
    numbers = ("chunks", "messages", "bytes")
    lines = table(
        "token", "queue", "state", *numbers, "since", "goes", right=numbers, flexible=("token", "queue")
    )
    for write in found:
        state = "published" if write.published else "staged"
        counts = (f"{write.chunks:,}", f"{write.messages:,}", f"{write.bytes:,}")
        lines.add_row(
            cut(clean(write.token)), write.queue, state, *counts, age(write.staged_at), age(write.expires_at)
        )
    return found, lines if found else "nothing is staged"


def _what_goes(_: Target, request: Any) -> str:
    return f"drop all that is staged for {request.queue} under {request.token!r}"


def _discarded(request: Any, chunks: int) -> tuple[object, RenderableType]:
    told = f"dropped {count_of(chunks, 'chunk')} of {clean(request.token)!r} for {request.queue}"
    return {"queue": request.queue, "token": request.token, "chunks": chunks}, told
