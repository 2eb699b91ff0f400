"""`fairlead audit`: who did what, to how many messages, from where."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from msgspec.structs import replace
from rich.console import RenderableType
from rich.text import Text

from fairlead.cli.arguments import complete_queue, queue_in_project
from fairlead.cli.from_table import from_verb
from fairlead.cli.global_options import wants_json
from fairlead.cli.output import as_json, clean, console, cut, now_ms, plain, show, table, when
from fairlead.cli.target import Target, open_target
from fairlead.model.access import AuditRecord
from fairlead.model.durations import to_ms
from fairlead.model.limits import MAX_PAGE
from fairlead.verbs.audit import AuditRead

_PAUSE_S = 1.0
#: Entries that --follow reads again at each poll: one that was under way may have an outcome now.
_READ_AGAIN = 200


def register(app: typer.Typer) -> None:
    app.command("audit")(audit)


def _read_limit(
    limit: Annotated[
        int,
        typer.Option(
            "--limit",
            "-n",
            metavar="COUNT",
            help="Show at most this many entries, the newest.",
            min=1,
            max=MAX_PAGE,
        ),
    ] = 50,
) -> int:
    return limit


def _read_since(
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="DURATION", help="Show only entries from this long ago on, such as 1h."
        ),
    ] = None,
) -> int | None:
    return None if since is None else now_ms() - to_ms(since, "since")


@from_verb(
    "audit.read",
    params={
        "who": typer.Option(metavar="KEY|NAME"),
        "queue": typer.Option(autocompletion=complete_queue, callback=queue_in_project),
    },
    readers={"limit": _read_limit, "since": _read_since},
)
def audit(
    request: Any,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep running and show new entries, until Ctrl-C.")
    ] = False,
) -> None:
    """Show what operators did, oldest first: changes, redrives, reads of payloads, keys and rights.

    An entry with the outcome "asked" is under way, or a crash interrupted it. Needs the right admin on every
    queue.
    """
    with open_target() as target:
        found = target.do(request)[::-1]
        if follow:
            _print(found)
            for news in _news(target, found, replace(request, limit=_READ_AGAIN, before=None, since=None)):
                _print(news)
    narrowed = request != AuditRead(limit=request.limit)
    nothing = "no entry matches" if narrowed else "the audit has no entries"
    show(found, lambda: _table(found) if found else nothing)


def _news(target: Target, seen: list[AuditRecord], latest: AuditRead) -> Iterator[list[AuditRecord]]:
    """Yield each entry when it is written, and again when its outcome is known. Never ends."""
    known = {record.number: record.outcome for record in seen}
    while True:
        time.sleep(_PAUSE_S)
        found = target.do(latest)
        yield [record for record in reversed(found) if known.get(record.number) != record.outcome]
        known = {record.number: record.outcome for record in found}


def _print(records: list[AuditRecord]) -> None:
    for record in records:
        if wants_json():
            typer.echo(as_json(plain(record)))
        else:
            console().print(_line(record), soft_wrap=True)


def _table(records: list[AuditRecord]) -> RenderableType:
    lines = table(
        "when",
        "who",
        "did",
        "queue",
        "count",
        "outcome",
        "from",
        "details",
        right=("count",),
        flexible=("details",),
    )
    for record in records:
        lines.add_row(
            when(record.at_ms),
            clean(_who(record)),
            record.verb,
            record.queue or "-",
            "-" if record.count is None else f"{record.count:,}",
            _outcome(record),
            clean(record.source),
            cut(clean(_details(record))),
        )
    return lines


def _line(record: AuditRecord) -> Text:
    count = "" if record.count is None else f" count={record.count}"
    words = f"{when(record.at_ms)} {clean(_who(record))} {record.verb} {record.queue or '-'}{count} "
    return Text.assemble(words, _outcome(record), clean(f" from {record.source} {_details(record)}".rstrip()))


def _who(record: AuditRecord) -> str:
    return record.who if record.who == record.name else f"{record.who} {record.name}"


def _outcome(record: AuditRecord) -> Text:
    return Text(record.outcome, style={"done": "", "asked": "bold yellow"}.get(record.outcome, "bold red"))


def _details(record: AuditRecord) -> str:
    return " ".join(f"{field}={value}" for field, value in record.details.items() if value)
