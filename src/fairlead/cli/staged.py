"""`fairlead staged`: writes that are prepared and not published yet."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli.arguments import QueueName
from fairlead.cli.confirm import Yes, confirm
from fairlead.cli.output import age, clean, count_of, cut, show, table
from fairlead.cli.target import open_target


def register(app: typer.Typer) -> None:
    staged = typer.Typer(
        no_args_is_help=True,
        help="Writes that are prepared and not published yet, and those published lately.",
    )
    staged.command("list")(list_all)
    staged.command("discard")(discard)
    app.add_typer(staged, name="staged")


def list_all() -> None:
    """List staged writes: how much each holds, and when it goes by itself."""
    with open_target() as target:
        found = target.staging.list()
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
    show(found, lines if found else "nothing is staged")


def discard(
    queue: QueueName,
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="As `staged list` shows it.")],
    yes: Yes = False,
) -> None:
    """Drop a write that is not published; what is published stays."""
    with open_target() as target:
        confirm(f"drop all that is staged for {queue} under {token!r}", yes=yes)
        chunks = target.staging.discard(token, queue)
    told = f"dropped {count_of(chunks, 'chunk')} of {clean(token)!r} for {queue}"
    show({"queue": queue, "token": token, "chunks": chunks}, told)
