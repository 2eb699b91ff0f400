"""`fairlead queue`: create, change, list, pause, purge and delete queues."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import RenderableType

from fairlead.cli import messages, operators, queue_show
from fairlead.cli.arguments import queue_in_project
from fairlead.cli.from_table import Command, add_commands, from_verb
from fairlead.cli.global_options import wrong_usage
from fairlead.cli.options import read_queue_options
from fairlead.cli.output import clean, count_of, plain, show, table
from fairlead.cli.parameters import expand_parameters
from fairlead.cli.queue_show import options_text
from fairlead.cli.target import Target, open_target
from fairlead.model.names import is_dead_letter_name
from fairlead.model.views import QueueInfo, QueueStats


def register(app: typer.Typer) -> None:
    queue = typer.Typer(no_args_is_help=True, help="Queues, and the messages in them.")
    new_name = typer.Argument(
        metavar="NAME", help="[project/]name of the new queue.", callback=queue_in_project
    )
    options = {"options": read_queue_options}
    changes = {"options": expand_parameters(options=read_queue_options)(_read_changes)}
    add_commands(
        queue,
        (
            Command("create", "create_queue", _created, {"name": new_name}, options, creates=True),
            Command("update", "update_queue", _updated, readers=changes),
        ),
    )
    queue.command("list")(list_all)
    queue_show.register(queue)
    add_commands(
        queue,
        (
            Command("pause", "pause", _paused),
            Command("resume", "resume", _resumed),
            Command("purge", "purge", _purged, asks=_what_is_purged),
            Command("delete", "delete_queue", _deleted, asks=_what_goes),
        ),
    )
    messages.register(queue)
    operators.register(queue)
    app.add_typer(queue, name="queue")


def _created(_: Any, info: QueueInfo) -> tuple[object, RenderableType]:
    made = f"created queue {info.name!r} with dead letters in {info.dead_letter_queue!r}"
    return info, f"{made}\n{options_text(info.config)}"


def _read_changes(options: dict[str, Any]) -> dict[str, Any]:
    if not options:
        wrong_usage("expected at least one option to change; see: fairlead queue update --help")
    return options


def _updated(_: Any, info: QueueInfo) -> tuple[object, RenderableType]:
    return info, f"updated queue {info.name!r}\n{options_text(info.config)}"


@from_verb("queues", params={"prefix": typer.Argument(callback=queue_in_project)})
def list_all(
    request: Any,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="List dead-letter queues too, each on its own line.")
    ] = False,
) -> None:
    """List queues with their counts."""
    with open_target() as target:
        found = [
            (info, target.stats(info.name))
            for info in target.do(request)
            if everything or not is_dead_letter_name(info.name)
        ]
    nothing = "there are no queues yet; create one with: fairlead queue create NAME"
    if request.prefix:
        nothing = f"no queue begins with {clean(request.prefix)!r}"
    numbers = ("ready", "waiting", "leased", "dead", "consumers")
    lines = table("queue", *numbers, "state", right=numbers)
    for info, stats in found:
        counts = (stats.ready, stats.waiting, stats.leased, stats.dead, stats.consumers)
        lines.add_row(info.name, *(f"{count:,}" for count in counts), "paused" if stats.paused else "open")
    show([as_record(info, stats) for info, stats in found], lines if found else nothing)


def as_record(info: QueueInfo, stats: QueueStats) -> dict[str, Any]:
    return {**plain(info), "stats": plain(stats)}


def _paused(request: Any, _: None) -> tuple[object, RenderableType]:
    return {"queue": request.name, "paused": True}, f"paused queue {request.name!r}"


def _resumed(request: Any, _: None) -> tuple[object, RenderableType]:
    return {"queue": request.name, "paused": False}, f"resumed queue {request.name!r}"


def _what_is_purged(target: Target, request: Any) -> str:
    stats = target.stats(request.name)
    counts = f"({stats.ready:,} ready, {stats.waiting:,} waiting)"
    what = f"drop {count_of(stats.ready + stats.waiting, 'message')} of queue {request.name!r} {counts}"
    return f"{what} for good; leased messages stay ({stats.leased:,})"


def _purged(request: Any, gone: int) -> tuple[object, RenderableType]:
    text = f"dropped {count_of(gone, 'message')} of queue {request.name!r}"
    return {"queue": request.name, "dropped": gone}, text


def _what_goes(target: Target, request: Any) -> str:
    queue = request.name
    stats = target.stats(queue)
    live = stats.ready + stats.waiting + stats.leased
    messages = count_of(live, "message")
    if live:
        messages += f" ({stats.ready:,} ready, {stats.waiting:,} waiting, {stats.leased:,} leased)"
    return f"delete queue {queue!r} with {messages} and {count_of(stats.dead, 'dead letter')} for good"


def _deleted(request: Any, _: None) -> tuple[object, RenderableType]:
    return {"queue": request.name, "deleted": True}, f"deleted queue {request.name!r}"
