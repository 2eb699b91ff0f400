"""`fairlead explain`: why a message or a queue is not being delivered."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from fairlead.cli.arguments import complete_queue
from fairlead.cli.global_options import in_project
from fairlead.cli.ids import find_message
from fairlead.cli.output import clean, first_line, show
from fairlead.cli.target import Target, open_target, queue_names
from fairlead.errors import QueueNotFound
from fairlead.model.ids import find_id
from fairlead.model.views import Explanation

_HEX = frozenset("0123456789abcdef-")


def register(app: typer.Typer) -> None:
    app.command("explain")(explain)


def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="QUEUE|ID",
            help="A queue, or the full id or first characters of a message.",
            autocompletion=complete_queue,
        ),
    ],
    message: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="A message of that queue: full id, prefix, last characters, or stream:NAME for the first of a stream.",
        ),
    ] = None,
) -> None:
    """Explain why a message, or a whole queue, is not being delivered."""
    with open_target() as target:
        found = _explain(target, what, message)
    show(found, lambda: _page(found))


def _explain(target: Target, what: str, message: str | None) -> Explanation:
    if message is not None:
        return target.explain(find_message(target, in_project(what), message).id)
    if find_id(what) is not None:
        return target.explain(what)
    if in_project(what) in queue_names(target):
        return target.explain_queue(in_project(what))
    if len(what) >= 4 and _HEX.issuperset(what.lower()):
        return target.explain(what)
    raise QueueNotFound(in_project(what))


def _page(found: Explanation) -> RenderableType:
    page = Text.assemble(clean(found.subject), ": ", (clean(found.summary), "bold"))
    for reason in found.reasons:
        page.append(f"\n  - {clean(first_line(reason.text))}")
    return page
