"""`fairlead consumer`: durable consumers, such as Spark queries and workers on Spark, and their claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from rich.console import RenderableType

from fairlead.cli.arguments import completing
from fairlead.cli.from_table import Command, add_group
from fairlead.cli.global_options import in_project
from fairlead.cli.output import age, clean, count_of, cut, pairs, table, when
from fairlead.cli.target import Target
from fairlead.model.consumer import ConsumerInfo
from fairlead.model.durations import show_ms


def _complete(ctx: typer.Context, incomplete: str) -> list[str]:
    queue = in_project(ctx.params.get("queue") or "")
    return completing(
        ctx, lambda target: [name for name in _names(target, queue) if name.startswith(incomplete)]
    )


_DEFAULT_OUTCOMES = {
    "complete": "complete: a message without an outcome is completed when its claim is closed",
    "release": "release: a message without an outcome returns to its place when its claim is closed",
}


def register(app: typer.Typer) -> None:
    def name() -> dict[str, Any]:
        help = "Name of the consumer, as `consumer list` shows it."
        return {"name": typer.Argument(metavar="CONSUMER", help=help, autocompletion=_complete)}

    commands = (
        Command("list", "consumers.list", _listed),
        Command("show", "consumers.show", lambda _, info: (info, lambda: pairs(_rows(info))), name()),
        Command("release", "consumers.release", _released, name(), asks=_what_is_released),
        Command("drop", "consumers.drop", _dropped, name(), asks=_what_is_dropped),
    )
    help = "Durable consumers and their claims."
    add_group(app, "consumer", help, commands)


def _listed(_: Any, found: Sequence[ConsumerInfo]) -> tuple[object, RenderableType]:
    numbers = ("closed", "open", "messages", "bytes")
    lines = table(
        "consumer",
        "queue",
        *numbers,
        "default_outcome",
        "last heard of",
        "expires",
        right=numbers,
        flexible=("consumer",),
    )
    for info in found:
        claim = (f"{info.open}", f"{info.messages:,}", f"{info.bytes:,}") if info.open else ("-", "-", "-")
        known = (info.default_outcome, age(info.seen_at), age(info.expires_at))
        lines.add_row(cut(clean(info.name)), info.queue, f"{info.last_closed:,}", *claim, *known)
    return found, lines if found else "there are no durable consumers"


def _what_is_released(target: Target, asked: Any) -> str:
    info = target.consumers.show(asked.name, asked.queue)
    return f"{_what_returns(info)} of consumer {asked.name!r} to {asked.queue}"


def _released(asked: Any, released: int) -> tuple[object, RenderableType]:
    text = f"released {count_of(released, 'message')} of consumer {clean(asked.name)!r} of {asked.queue}"
    return {"queue": asked.queue, "consumer": asked.name, "released": released}, text


def _what_is_dropped(target: Target, asked: Any) -> str:
    info = target.consumers.show(asked.name, asked.queue)
    finished = count_of(info.last_closed, "finished claim")
    what = f"{_what_returns(info)} to {asked.queue}"
    return f"{what}, and forget consumer {asked.name!r} with its {finished}"


def _dropped(asked: Any, _: None) -> tuple[object, RenderableType]:
    text = f"forgot consumer {clean(asked.name)!r} of {asked.queue}"
    return {"queue": asked.queue, "consumer": asked.name, "dropped": True}, text


def _names(target: Target, queue: str) -> list[str]:
    return [info.name for info in target.consumers.list() if info.queue == queue]


def _rows(info: ConsumerInfo) -> list[tuple[str, str]]:
    holds = "nothing"
    if info.open:
        holds = f"claim {info.open}: {count_of(info.messages, 'message')}, {count_of(info.bytes, 'byte')}"
    rows = [
        ("consumer", clean(info.name)),
        ("queue", info.queue),
        ("holds", holds),
        ("finished", f"claims up to {info.last_closed}"),
    ]
    if info.lost:
        rows.append(("lost", f"claim {info.lost}: it was released before it was closed"))
    return [
        *rows,
        ("default outcome", _DEFAULT_OUTCOMES[info.default_outcome]),
        ("generation", str(info.generation)),
        ("last heard of", f"{when(info.seen_at)} ({age(info.seen_at)})"),
        (
            "expires",
            f"{when(info.expires_at)} ({age(info.expires_at)}), after {show_ms(info.ttl_ms)} of silence",
        ),
    ]


def _what_returns(info: ConsumerInfo) -> str:
    if not info.open:
        return "return no messages"
    return f"return {count_of(info.messages, 'message')} of claim {info.open}"
