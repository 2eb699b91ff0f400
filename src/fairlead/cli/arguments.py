"""Arguments and options that many commands have, as annotations, and the completion of queue names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fairlead.cli.global_options import current_options, in_project, set_options
from fairlead.cli.target import Target, nearest, open_target, queue_names
from fairlead.errors import FairleadError
from fairlead.model.failure import FailureReason
from fairlead.model.names import dead_letter_name, is_dead_letter_name

REASONS = [reason.word for reason in FailureReason]


def complete_queue(ctx: typer.Context, incomplete: str) -> list[str]:
    def find(target: Target) -> list[str]:
        names, own = queue_names(target), in_project("")
        if "/" not in incomplete:
            names = [name.removeprefix(own) for name in names if name.startswith(own)]
        return [name for name in names if name.startswith(incomplete)]

    return completing(ctx, find)


def completing(ctx: typer.Context, find: Callable[[Target], list[str]]) -> list[str]:
    """Best effort: a shell must never show an error because someone pressed Tab."""
    try:
        given = ctx.find_root().params
        found = current_options()
        if found.addr is None and found.data is None:
            data = given.get("data")
            set_options(replace(found, addr=given.get("addr"), data=None if data is None else Path(data)))
        if current_options().project is None:
            set_options(replace(current_options(), project=given.get("project")))
        with open_target(patience="300ms") as target:
            return find(target)
    except (FairleadError, typer.TyperException, OSError):
        return []


def complete_reason(incomplete: str) -> list[str]:
    return [word for word in REASONS if word.startswith(incomplete)]


def check_reason(value: str | None) -> str | None:
    """Refused here, where the near ones can be named; the engine would list them all."""
    if value is None or value in REASONS:
        return value
    near = nearest(value, REASONS)
    raise typer.BadParameter(
        f"{value!r} is no failure reason; "
        + (f"did you mean {near}?" if near else "one of " + ", ".join(REASONS))
    )


def meant(value: str | None) -> str | None:
    """Callback of every argument that names a queue."""
    return None if value is None else in_project(value)


QueueName = Annotated[
    str,
    typer.Argument(
        metavar="QUEUE",
        help="Name of a queue, or of its dead letters: QUEUE.dlq.",
        autocompletion=complete_queue,
        callback=meant,
    ),
]


def ids_argument() -> Any:
    """For the field `ids` of a verb of operators."""
    help = "Messages: full id, prefix, last characters, or stream:NAME for the first of a stream."
    return typer.Argument(metavar="ID", help=help)


def as_option() -> Any:
    """For the field `reason` of a verb that records a failure."""
    help = "The failure reason that is recorded."
    return typer.Option(
        "--as", metavar="REASON", help=help, callback=check_reason, autocompletion=complete_reason
    )


def in_dead_letters(queue: str) -> str:
    return queue if is_dead_letter_name(queue) else dead_letter_name(queue)
