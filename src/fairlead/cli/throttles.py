"""`fairlead throttle`: closed throttle keys, whose messages are not delivered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import typer
from rich.console import RenderableType
from rich.table import Table

from fairlead.cli.from_table import Command, add_group
from fairlead.cli.output import clean, table, unless_piped, when
from fairlead.model.throttle import ClosedThrottle


def closed_table(closed: Sequence[ClosedThrottle], *, title: str | None = None) -> Table:
    lines = table(
        "throttle", "closed until", "by", "returns", "probes", "why", right=("returns",), title=title
    )
    for one in closed:
        lines.add_row(
            clean(one.key, most=unless_piped(60)),
            when(one.until),
            clean(one.by) or "-",
            f"{one.returns:,}",
            f"{one.probes} of {one.at_once}" if one.at_once else "-",
            clean(one.error, most=unless_piped(80)),
        )
    return lines


def _listed(_: Any, found: list[ClosedThrottle]) -> tuple[object, RenderableType]:
    return [asdict(one) for one in found], closed_table(found) if found else "no throttle key is closed"


def _closed(_: Any, one: ClosedThrottle) -> tuple[object, RenderableType]:
    return asdict(one), f"throttle {clean(one.key)!r} is closed until {when(one.until)}"


def _opened(made: Any, was_closed: bool) -> tuple[object, RenderableType]:
    state = "is open" if was_closed else "was not closed"
    return {"key": made.key, "was_closed": was_closed}, f"throttle {clean(made.key)!r} {state}"


def register(app: typer.Typer) -> None:
    commands = (
        Command("list", "throttles", _listed),
        Command(
            "close",
            "close_throttle",
            _closed,
            {"key": typer.Argument(), "duration": typer.Argument()},
            creates=True,
        ),
        Command("open", "open_throttle", _opened, {"key": typer.Argument()}),
    )
    add_group(app, "throttle", "Closed throttle keys: list, close and open them.", commands)
