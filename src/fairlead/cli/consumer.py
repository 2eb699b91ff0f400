"""`fairlead consumer`: durable consumers, such as Spark queries and workers, and the claims they hold."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli.arguments import completing
from fairlead.cli.confirm import Yes, confirm
from fairlead.cli.output import age, clean, count_of, cut, pairs, show, table, when
from fairlead.cli.target import Target, nearest, open_target
from fairlead.errors import ConsumerNotFound
from fairlead.model.consumer import ConsumerInfo
from fairlead.model.durations import show_ms


def _complete(ctx: typer.Context, incomplete: str) -> list[str]:
    return completing(ctx, lambda target: [name for name in _names(target) if name.startswith(incomplete)])


Name = Annotated[str, typer.Argument(metavar="CONSUMER", help="Its name, as `consumer list` shows it.", autocompletion=_complete)]


_UNSPOKEN = {
    "complete": "complete: a message it does not speak of is done when its claim is closed",
    "release": "release: a message it does not speak of goes back to its place when its claim is closed",
}


def register(app: typer.Typer) -> None:
    consumer = typer.Typer(no_args_is_help=True, help="Durable consumers, such as Spark queries and workers, and the claims they hold.")
    for name, command in (("list", list_all), ("show", show_one), ("release", release), ("drop", drop)):
        consumer.command(name)(command)
    app.add_typer(consumer, name="consumer")


def list_all() -> None:
    """List durable consumers, with the claim that each holds open."""
    with open_target() as target:
        found = target.consumers.list()
    numbers = ("closed", "open", "messages", "bytes")
    lines = table("consumer", "queue", *numbers, "unspoken", "last heard of", "expires", right=numbers, flexible=("consumer",))
    for info in found:
        claim = (f"{info.open}", f"{info.messages:,}", f"{info.bytes:,}") if info.open else ("-", "-", "-")
        known = (info.unspoken, age(info.seen_at), age(info.expires_at))
        lines.add_row(cut(clean(info.name)), info.queue, f"{info.last_closed:,}", *claim, *known)
    show(found, lines if found else "there is no durable consumer")


def show_one(name: Name) -> None:
    """Show one: what it has finished, what it holds, when it is given up."""
    with open_target() as target:
        info = _find(target, name)
    show(info, lambda: pairs(_rows(info)))


def release(name: Name, yes: Yes = False) -> None:
    """Let go of the claim a consumer holds open: its messages go back in order, with no attempt counted.

    Whoever still works on them finds out with the next call; what they have done by then may be done again.
    """
    with open_target() as target:
        info = _find(target, name)
        confirm(f"{_what_goes_back(info)} of consumer {name!r}", yes=yes)
        released = target.consumers.release(name)
    show({"consumer": name, "released": released}, f"released {count_of(released, 'message')} of consumer {clean(name)!r}")


def drop(name: Name, yes: Yes = False) -> None:
    """Release what a consumer holds, and forget it: whoever uses the name next begins with claim 1."""
    with open_target() as target:
        info = _find(target, name)
        confirm(f"{_what_goes_back(info)} and forget consumer {name!r} with its {count_of(info.last_closed, 'finished claim')}", yes=yes)
        target.consumers.drop(name)
    show({"consumer": name, "dropped": True}, f"forgot consumer {clean(name)!r}")


def _find(target: Target, name: str) -> ConsumerInfo:
    try:
        return target.consumers.show(name)
    except ConsumerNotFound as unknown:
        near = nearest(name, _names(target))
        unknown.add_note(f"did you mean {near}?" if near else "see which there are with: fairlead consumer list")
        raise


def _names(target: Target) -> list[str]:
    return [info.name for info in target.consumers.list()]


def _rows(info: ConsumerInfo) -> list[tuple[str, str]]:
    holds = f"claim {info.open}: {count_of(info.messages, 'message')}, {count_of(info.bytes, 'byte')}" if info.open else "nothing"
    rows = [("consumer", clean(info.name)), ("queue", info.queue), ("holds", holds), ("finished", f"claims up to {info.last_closed}")]
    if info.lost:
        rows.append(("lost", f"claim {info.lost}: it was let go of before it was closed"))
    return [
        *rows,
        ("unspoken", _UNSPOKEN[info.unspoken]),
        ("generation", str(info.generation)),
        ("heard of", f"{when(info.seen_at)} ({age(info.seen_at)})"),
        ("given up", f"{when(info.expires_at)} ({age(info.expires_at)}), after {show_ms(info.ttl_ms)} of silence"),
    ]


def _what_goes_back(info: ConsumerInfo) -> str:
    return f"put back {count_of(info.messages, 'message')} of claim {info.open}" if info.open else "put back nothing"
