"""`fairlead staged`: staged writes, which are not published yet."""

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
    add_group(app, "staged", "Staged writes and recently published ones.", commands)


def _listed(_: Any, found: Sequence[StagedWrite]) -> tuple[object, RenderableType]:
    numbers = ("chunks", "messages", "bytes")
    lines = table(
        "token", "queue", "state", *numbers, "since", "expires", right=numbers, flexible=("token", "queue")
    )
    for write in found:
        state = "published" if write.published else "staged"
        counts = (f"{write.chunks:,}", f"{write.messages:,}", f"{write.bytes:,}")
        lines.add_row(
            cut(clean(write.token)), write.queue, state, *counts, age(write.staged_at), age(write.expires_at)
        )
    return found, lines if found else "there are no staged writes"


def _what_goes(_: Target, request: Any) -> str:
    return f"drop the staged write {request.token!r} of {request.queue}"


def _discarded(request: Any, chunks: int) -> tuple[object, RenderableType]:
    text = f"dropped {count_of(chunks, 'chunk')} of staged write {clean(request.token)!r} of {request.queue}"
    return {"queue": request.queue, "token": request.token, "chunks": chunks}, text
