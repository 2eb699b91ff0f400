"""`fairlead queue`: making, changing, looking at and removing queues."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fairlead.cli import messages, operators, queue_show
from fairlead.cli.arguments import QueueName, meant
from fairlead.cli.chosen import wrong_usage
from fairlead.cli.confirm import Yes, confirm
from fairlead.cli.options import read_queue_options
from fairlead.cli.output import clean, count_of, plain, show, table
from fairlead.cli.queue_show import options_text
from fairlead.cli.splice import splice
from fairlead.cli.target import Target, open_target
from fairlead.model.names import is_dead_letter_name
from fairlead.model.views import QueueInfo, QueueStats


def register(app: typer.Typer) -> None:
    queue = typer.Typer(no_args_is_help=True, help="Queues, and the messages in them.")
    for name, command in (("create", create), ("update", update), ("list", list_all)):
        queue.command(name)(command)
    queue_show.register(queue)
    for name, command in (("pause", pause), ("resume", resume), ("purge", purge), ("delete", delete)):
        queue.command(name)(command)
    messages.register(queue)
    operators.register(queue)
    app.add_typer(queue, name="queue")


@splice(options=read_queue_options)
def create(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="[project/]name of the new queue.", callback=meant)
    ],
    options: dict[str, Any],
) -> None:
    """Make a queue and its dead letters, NAME.dlq.

    With --data, the data directory is made too if there is none.
    """
    with open_target(create=True) as target:
        info = target.create_queue(name, **options)
    show(
        info,
        f"created queue {info.name!r} with dead letters in {info.dead_letter_queue!r}\n{options_text(info.config)}",
    )


@splice(options=read_queue_options)
def update(queue: QueueName, options: dict[str, Any]) -> None:
    """Change the options that are given, and keep the others.

    Later failures, claims and enqueues follow the new options; what is under way does not change.
    """
    if not options:
        wrong_usage("expected at least one option to change; see: fairlead queue update --help")
    with open_target() as target:
        info = target.update_queue(queue, **options)
    show(info, f"updated queue {info.name!r}\n{options_text(info.config)}")


def list_all(
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Only queues whose name begins so.", callback=meant)
    ] = "",
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also the dead-letter queues, each on its own line.")
    ] = False,
) -> None:
    """List queues with their counts."""
    with open_target() as target:
        found = [
            (info, target.stats(info.name))
            for info in target.queues(prefix)
            if everything or not is_dead_letter_name(info.name)
        ]
    if not found:
        show(
            [],
            f"no queue begins with {clean(prefix)!r}"
            if prefix
            else "there is no queue yet; make one with: fairlead queue create NAME",
        )
        return
    lines = table(
        "queue",
        "ready",
        "waiting",
        "leased",
        "dead",
        "consumers",
        "state",
        right=("ready", "waiting", "leased", "dead", "consumers"),
    )
    for info, stats in found:
        counts = (stats.ready, stats.waiting, stats.leased, stats.dead, stats.consumers)
        lines.add_row(info.name, *(f"{count:,}" for count in counts), "paused" if stats.paused else "open")
    show([as_record(info, stats) for info, stats in found], lines)


def as_record(info: QueueInfo, stats: QueueStats) -> dict[str, Any]:
    return {**plain(info), "stats": plain(stats)}


def pause(queue: QueueName) -> None:
    """Hand nothing out until `resume`; the queue still takes messages and settles."""
    with open_target() as target:
        target.pause(queue)
    show({"queue": queue, "paused": True}, f"paused queue {queue!r}")


def resume(queue: QueueName) -> None:
    """Hand out again."""
    with open_target() as target:
        target.resume(queue)
    show({"queue": queue, "paused": False}, f"resumed queue {queue!r}")


def purge(queue: QueueName, yes: Yes = False) -> None:
    """Drop everything that is ready or waiting; what is leased stays."""
    with open_target() as target:
        stats = target.stats(queue)
        what = f"drop {count_of(stats.ready + stats.waiting, 'message')} of queue {queue!r} ({stats.ready:,} ready, {stats.waiting:,} waiting)"
        confirm(f"{what} for good; {stats.leased:,} leased stay", yes=yes)
        gone = target.purge(queue)
    show({"queue": queue, "dropped": gone}, f"dropped {count_of(gone, 'message')} of queue {queue!r}")


def delete(queue: QueueName, yes: Yes = False) -> None:
    """Delete a queue, its dead letters and all their messages."""
    with open_target() as target:
        confirm(_what_goes(target, queue), yes=yes)
        target.delete_queue(queue)
    show({"queue": queue, "deleted": True}, f"deleted queue {queue!r}")


def _what_goes(target: Target, queue: str) -> str:
    stats = target.stats(queue)
    live = stats.ready + stats.waiting + stats.leased
    held = f" ({stats.ready:,} ready, {stats.waiting:,} waiting, {stats.leased:,} leased)" if live else ""
    return f"delete queue {queue!r} with {count_of(live, 'message')}{held} and {count_of(stats.dead, 'dead letter')} for good"
