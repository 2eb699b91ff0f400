"""Arguments and options that many commands have, and completion in the shell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from fairlead.cli.global_options import current_options, in_project, set_options, wrong_usage
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
    """Return the words that `find` reads from the broker, or none: the Tab key must never print an error."""
    try:
        # A shell completes before the callbacks of the root command run, so its options are read here.
        before_command, options = ctx.find_root().params, current_options()
        if options.addr is None and options.data is None:
            options = replace(options, addr=before_command.get("addr"), data=before_command.get("data"))
        if options.project is None:
            options = replace(options, project=before_command.get("project"))
        set_options(options)
        with open_target(patience="300ms") as target:
            return find(target)
    except (FairleadError, typer.TyperException, OSError):
        return []


def complete_reason(incomplete: str) -> list[str]:
    return [word for word in REASONS if word.startswith(incomplete)]


def check_reason(value: str | None) -> str | None:
    """Refuse an unknown failure reason here, where similar reasons can be suggested."""
    if value is not None:
        check_word(value, REASONS, "a failure reason")
    return value


def check_word(word: str, known: Sequence[str], what: str) -> None:
    """Refuse a word that is not in a list; the message has the nearest words, or all of them."""
    if word in known:
        return
    near = nearest(word, known)
    hint = f"did you mean {near}?" if near else "expected one of " + ", ".join(known)
    wrong_usage(f"{word!r} is not {what}; {hint}")


def queue_in_project(value: str | None) -> str | None:
    """The callback of every argument that names a queue."""
    return None if value is None else in_project(value)


QueueName = Annotated[
    str,
    typer.Argument(
        metavar="QUEUE",
        help="Name of a queue, or of its dead-letter queue: QUEUE.dlq.",
        autocompletion=complete_queue,
        callback=queue_in_project,
    ),
]


def ids_argument() -> Any:
    """For the field `ids` of a verb."""
    help = "Messages, each by full id, prefix, last characters, or stream:NAME for the first of a stream."
    return typer.Argument(metavar="ID", help=help)


def as_option() -> Any:
    """For the field `reason` of a verb that records a failure."""
    help = "Failure reason to record."
    return typer.Option(
        "--as", metavar="REASON", help=help, callback=check_reason, autocompletion=complete_reason
    )


def in_dead_letters(queue: str) -> str:
    return queue if is_dead_letter_name(queue) else dead_letter_name(queue)
