"""`fairlead failures`: what fails in a queue, why, and which streams are blocked.

`failures_view` and the tables below it turn values into renderables, without a broker; `fairlead top` uses
them too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairlead.cli.arguments import QueueName
from fairlead.cli.charts import Bar, show_age, show_count, show_until
from fairlead.cli.output import clean, cut, first_line, now_ms, plain, show, table, unless_piped
from fairlead.cli.target import Target, open_target
from fairlead.errors import MessageNotFound
from fairlead.model.ids import short_id
from fairlead.model.views import BlockedStream, FailureMetrics, PoisonCandidate

_WIDTH = 60
#: Poison candidates to list, with their last errors.
_MAX_POISON_SHOWN = 12


def register(app: typer.Typer) -> None:
    app.command("failures")(failures)


def failures(
    queue: QueueName,
    streams: Annotated[
        int, typer.Option("--streams", min=1, max=10_000, help="List at most this many blocked streams.")
    ] = 20,
) -> None:
    """Show how often live messages have failed and why, scheduled retries, poison candidates, and blocked
    streams.
    """
    with open_target() as target:
        metrics = target.failure_metrics(queue, streams=streams)
        dead = target.stats(queue).dead
        errors = _last_errors(target, metrics.poison_candidates[:_MAX_POISON_SHOWN])
    document = {**plain(metrics), "dead": dead}
    for candidate in document["poison_candidates"]:
        if candidate["id"] in errors:
            candidate["error"] = errors[candidate["id"]]
    show(document, lambda: failures_view(metrics, dead=dead, now_ms=now_ms(), errors=errors))


def _last_errors(target: Target, candidates: Iterable[PoisonCandidate]) -> dict[str, str]:
    """Return the last error of each candidate, by id. `find` leaves out what the caller may not read.

    A message that has been removed meanwhile has no entry.
    """
    found: dict[str, str] = {}
    for candidate in candidates:
        try:
            failures = target.find(candidate.id).failures
        except MessageNotFound:
            continue
        found[candidate.id] = failures[-1].error if failures else ""
    return found


def failures_view(
    metrics: FailureMetrics, *, dead: int, now_ms: int, errors: Mapping[str, str] | None = None
) -> RenderableType:
    """`errors` has the last errors of poison candidates by id."""
    parts: list[RenderableType] = [summary(metrics, dead, now_ms)]
    if metrics.by_attempts:
        parts += [
            _title("failed attempts of live messages"),
            bar_rows(attempts_rows(metrics.by_attempts), "yellow", _WIDTH),
        ]
        parts += [
            _title("reason of the last failure"),
            bar_rows(sorted(metrics.by_reason.items(), key=_most_first), "red", _WIDTH),
        ]
    if metrics.poison_candidates:
        parts += [
            _title("poison candidates"),
            poison_table(metrics.poison_candidates[:_MAX_POISON_SHOWN], errors or {}, now_ms),
            *_more(len(metrics.poison_candidates) - _MAX_POISON_SHOWN, "all are in -o json"),
        ]
    if metrics.blocked_streams:
        parts += [_title("blocked streams"), blocked_table(metrics.blocked_streams, now_ms)]
        parts += _more(metrics.blocked_count - len(metrics.blocked_streams), "show more with --streams N")
    if not metrics.complete:
        parts.append(
            Text(
                "the queue holds more messages than one call reads: the figures cover a part of them",
                style="yellow",
            )
        )
    return Group(*parts)


def _most_first(row: tuple[str, int]) -> tuple[int, str]:
    return -row[1], row[0]


def summary(metrics: FailureMetrics, dead: int, now_ms: int) -> Text:
    failed = sum(metrics.by_attempts.values())
    text = Text()
    text.append(clean(metrics.queue), style="bold")
    text.append(f"  {show_count(failed)} failed and alive", style="yellow" if failed else "green")
    text.append(f" · {show_count(dead)} dead", style="red" if dead else "green")
    text.append(f" · {backlog(metrics, now_ms)}")
    return text


def backlog(metrics: FailureMetrics, now_ms: int) -> str:
    if not metrics.scheduled:
        return "no retries scheduled"
    times = f"next {show_until(metrics.next_due, now_ms)}"
    if metrics.latest_due is not None and metrics.latest_due != metrics.next_due:
        times += f", latest {show_until(metrics.latest_due, now_ms)}"
    return f"{retries(metrics.scheduled)} scheduled, {times}"


def retries(count: int) -> str:
    return "1 retry" if count == 1 else f"{show_count(count)} retries"


def attempts_rows(by_attempts: Mapping[int, int], most: int = 12) -> list[tuple[str, int]]:
    """Make one row per count of attempts; past `most` rows, the last one has all others ("12+")."""
    rows = sorted(by_attempts.items())
    if len(rows) <= most:
        return [(str(attempts), count) for attempts, count in rows]
    head, tail = rows[: most - 1], rows[most - 1 :]
    return [
        *((str(attempts), count) for attempts, count in head),
        (f"{tail[0][0]}+", sum(count for _, count in tail)),
    ]


def bar_rows(rows: Iterable[tuple[str, int]], style: str, width: int) -> Table:
    """Draw a bar for each row; the largest fills `width` beside the names and counts."""
    found = list(rows)
    most = max((count for _, count in found), default=1)
    bar = max(4, width - max((len(name) for name, _ in found), default=0) - len(show_count(most)) - 2)
    table = Table.grid(padding=(0, 1))
    table.add_column(
        no_wrap=True, justify="right" if all(name[:1].isdigit() for name, _ in found) else "left"
    )
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, count in found:
        table.add_row(name, Bar(count / most, bar, style), show_count(count))
    return table


def poison_table(
    candidates: Iterable[PoisonCandidate], errors: Mapping[str, str], now_ms: int
) -> RenderableType:
    made = table(
        "id", "attempts", "age", "again", "last error", right=("attempts",), flexible=("last error",)
    )
    for candidate in candidates:
        error = first_line(errors.get(candidate.id, ""))
        made.add_row(
            Text(short_id(candidate.id), style="magenta"),
            show_count(candidate.attempts),
            show_age(now_ms - candidate.created_at),
            show_until(candidate.due_at, now_ms) if candidate.due_at is not None else "-",
            cut(clean(f"{candidate.reason}: {error}" if error else candidate.reason, most=unless_piped(60))),
        )
    return made


def _more(count: int, hint: str) -> list[RenderableType]:
    return [Text(f"{show_count(count)} more; {hint}")] if count > 0 else []


def blocked_table(streams: Iterable[BlockedStream], now_ms: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("stream", overflow="ellipsis", no_wrap=True)
    table.add_column("behind", justify="right")
    table.add_column("blocked by", no_wrap=True)
    table.add_column("for", justify="right", no_wrap=True)
    table.add_column("again", no_wrap=True)
    for stream in streams:
        until = Text(show_until(stream.until, now_ms), style="red" if stream.until is None else "")
        table.add_row(
            clean(stream.stream),
            show_count(stream.behind),
            short_id(stream.blocker),
            show_age(now_ms - stream.since),
            until,
        )
    return table


def _title(text: str) -> RenderableType:
    return Text(f"\n{text}", style="bold")
