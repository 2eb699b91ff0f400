"""`fairlead consumer`: durable consumers, such as Spark queries and workers, and the claims they hold."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli.arguments import QueueName, completing
from fairlead.cli.chosen import in_project
from fairlead.cli.confirm import Yes, confirm
from fairlead.cli.output import age, clean, count_of, cut, pairs, show, table, when
from fairlead.cli.target import Target, nearest, open_target
from fairlead.errors import ConsumerNotFound
from fairlead.model.consumer import ConsumerInfo
from fairlead.model.durations import show_ms


def _complete(ctx: typer.Context, incomplete: str) -> list[str]:
    queue = in_project(ctx.params.get("queue") or "")
    return completing(
        ctx, lambda target: [name for name in _names(target, queue) if name.startswith(incomplete)]
    )


Name = Annotated[
    str,
    typer.Argument(
        metavar="CONSUMER", help="Its name, as `consumer list` shows it.", autocompletion=_complete
    ),
]


_UNSPOKEN = {
    "complete": "complete: a message it does not speak of is done when its claim is closed",
    "release": "release: a message it does not speak of goes back to its place when its claim is closed",
}


def register(app: typer.Typer) -> None:
    consumer = typer.Typer(
        no_args_is_help=True,
        help="Durable consumers, such as Spark queries and workers, and the claims they hold.",
    )
    for name, command in (("list", list_all), ("show", show_one), ("release", release), ("drop", drop)):
        consumer.command(name)(command)
    app.add_typer(consumer, name="consumer")


def list_all() -> None:
    """List durable consumers, with the claim that each holds open."""
    with open_target() as target:
        found = target.consumers.list()
    numbers = ("closed", "open", "messages", "bytes")
    lines = table(
        "consumer",
        "queue",
        *numbers,
        "unspoken",
        "last heard of",
        "expires",
        right=numbers,
        flexible=("consumer",),
    )
    for info in found:
        claim = (f"{info.open}", f"{info.messages:,}", f"{info.bytes:,}") if info.open else ("-", "-", "-")
        known = (info.unspoken, age(info.seen_at), age(info.expires_at))
        lines.add_row(cut(clean(info.name)), info.queue, f"{info.last_closed:,}", *claim, *known)
    show(found, lines if found else "there is no durable consumer")


def show_one(queue: QueueName, name: Name) -> None:
    """Show one: what it has finished, what it holds, when it is given up."""
    with open_target() as target:
        info = _find(target, queue, name)
    show(info, lambda: pairs(_rows(info)))


def release(queue: QueueName, name: Name, yes: Yes = False) -> None:
    """Let go of the claim a consumer holds open: its messages go back in order, with no attempt counted.

    Whoever still works on them finds out with the next call; what they have done by then may be done again.
    """
    with open_target() as target:
        info = _find(target, queue, name)
        confirm(f"{_what_goes_back(info)} of consumer {name!r} of {queue}", yes=yes)
        released = target.consumers.release(name, queue)
    told = f"released {count_of(released, 'message')} of consumer {clean(name)!r} of {queue}"
    show({"queue": queue, "consumer": name, "released": released}, told)


def drop(queue: QueueName, name: Name, yes: Yes = False) -> None:
    """Release what a consumer holds, and forget it: whoever uses the name for this queue next begins with
    claim 1.
    """
    with open_target() as target:
        info = _find(target, queue, name)
        finished = count_of(info.last_closed, "finished claim")
        confirm(
            f"{_what_goes_back(info)} and forget consumer {name!r} of {queue} with its {finished}", yes=yes
        )
        target.consumers.drop(name, queue)
    show({"queue": queue, "consumer": name, "dropped": True}, f"forgot consumer {clean(name)!r} of {queue}")


def _find(target: Target, queue: str, name: str) -> ConsumerInfo:
    try:
        return target.consumers.show(name, queue)
    except ConsumerNotFound as unknown:
        near = nearest(name, _names(target, queue))
        unknown.add_note(
            f"did you mean {near}?" if near else "see which there are with: fairlead consumer list"
        )
        raise


def _names(target: Target, queue: str) -> list[str]:
    return [info.name for info in target.consumers.list() if info.queue == queue]


def _rows(info: ConsumerInfo) -> list[tuple[str, str]]:
    holds = (
        f"claim {info.open}: {count_of(info.messages, 'message')}, {count_of(info.bytes, 'byte')}"
        if info.open
        else "nothing"
    )
    rows = [
        ("consumer", clean(info.name)),
        ("queue", info.queue),
        ("holds", holds),
        ("finished", f"claims up to {info.last_closed}"),
    ]
    if info.lost:
        rows.append(("lost", f"claim {info.lost}: it was let go of before it was closed"))
    return [
        *rows,
        ("unspoken", _UNSPOKEN[info.unspoken]),
        ("generation", str(info.generation)),
        ("heard of", f"{when(info.seen_at)} ({age(info.seen_at)})"),
        (
            "given up",
            f"{when(info.expires_at)} ({age(info.expires_at)}), after {show_ms(info.ttl_ms)} of silence",
        ),
    ]


def _what_goes_back(info: ConsumerInfo) -> str:
    return (
        f"put back {count_of(info.messages, 'message')} of claim {info.open}"
        if info.open
        else "put back nothing"
    )
