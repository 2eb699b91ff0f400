"""The panels of `fairlead top` for one queue, below the list of queues. Values in, panels of a given height
out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fairlead.cli.charts import Bar, show_age, show_count, show_rate, show_until
from fairlead.cli.failures import attempts_rows, bar_rows, retries
from fairlead.cli.output import clean
from fairlead.cli.stats_samples import KeyShare
from fairlead.model.ids import short_id
from fairlead.model.throttle import ClosedThrottle
from fairlead.model.views import BlockedStream, FailureMetrics, HookStats, QueueStats, ThrottleStats

BORDER = "grey37"
_Row = TypeVar("_Row")


def shares_panel(queue: str, shares: Sequence[KeyShare], *, width: int, lines: int) -> RenderableType:
    """Draw the share of deliveries of each fairness key, with a tick at the share that its weight gives it."""
    shown, hidden = _cut(shares, lines - 1)
    if not shown:
        return panel(f"shares of {queue}", Text("no key has ready messages", style="dim"))
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("key", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("w", justify="right")
    table.add_column("got ┃ due", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("ready", justify="right", no_wrap=True)
    bar = max(8, (width - 14) * 2 // 5)
    # The largest share fills its bar: with many keys, every share of the whole is small.
    most = max(max(share.got or 0.0, share.fair) for share in shown)
    for share in shown:
        got = share.got
        table.add_row(
            clean(share.key),
            str(share.weight),
            Bar((got or 0.0) / most, bar, _share_style(got, share.fair), mark=share.fair / most),
            Text("–" if got is None else f"{got:.0%}", style="bold"),
            show_count(share.pending) + ("+" if share.more else ""),
        )
    return panel(f"shares of {queue}", table, _more(hidden, "keys"))


def _share_style(got: float | None, fair: float) -> str:
    """Green near the share of the weight, else yellow: without a backlog a key may use less than its share."""
    if got is None:
        return BORDER
    return "green" if abs(got - fair) <= max(0.02, fair * 0.15) else "yellow"


def failures_panel(
    queue: str, metrics: FailureMetrics | None, now_ms: int, *, width: int, lines: int
) -> RenderableType:
    title = f"failures of {queue}"
    if metrics is None or metrics.queue != queue:
        return panel(title, Text("loading", style="dim"))
    if not metrics.by_reason and not metrics.scheduled:
        return panel(title, Text("no live message has failed", style="green"))
    parts: list[RenderableType] = [Text(_backlog(metrics, now_ms), no_wrap=True, overflow="ellipsis")]
    reasons = list(metrics.by_reason.items())
    room = max(1, lines - 1)
    with_attempts = room >= len(reasons) + 3
    shown, hidden = _cut(reasons, room if not with_attempts else len(reasons))
    parts.append(bar_rows(shown, "red", width - 4))
    if with_attempts:
        parts.append(Text("failed attempts", style="dim"))
        parts.append(
            bar_rows(attempts_rows(metrics.by_attempts, room - len(reasons) - 1), "yellow", width - 4)
        )
    return panel(title, Group(*parts), _more(hidden, "reasons"))


def _backlog(metrics: FailureMetrics, now_ms: int) -> str:
    if not metrics.scheduled:
        return "no retries scheduled"
    text = f"{retries(metrics.scheduled)}, next {show_until(metrics.next_due, now_ms)}"
    if metrics.latest_due not in (None, metrics.next_due):
        text += f", last {show_until(metrics.latest_due, now_ms)}"
    return text


def gates_panel(stats: QueueStats, now_ms: int, *, width: int, lines: int) -> RenderableType:
    """Draw what can delay deliveries: the hooks of the queue with their breakers, then throttles."""
    rows: list[RenderableType] = [_hook_line(hook, now_ms) for hook in stats.hooks]
    rows += [_closed_line(closed, now_ms) for closed in stats.closed_throttles]
    rows += [_throttle_line(throttle, width) for throttle in sorted(stats.throttles, key=_fullness)]
    shown, hidden = _cut(rows, lines)
    if not shown:
        return panel("hooks and throttles", Text("none", style="dim"))
    return panel("hooks and throttles", Group(*shown), _more(hidden, "more"))


def _hook_line(hook: HookStats, now_ms: int) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    until = hook.breaker_open_until_ms
    if until is not None:
        line.append(f"{hook.function} breaker open for {show_age(until - now_ms)}", style="bold red")
    else:
        line.append(hook.function, style="green" if not hook.failures else "yellow")
        line.append(f" {show_count(hook.calls)} calls, {show_count(hook.failures)} failed")
    if hook.last_error:
        line.append(f" {clean(hook.last_error)}", style="dim")
    return line


def _closed_line(closed: ClosedThrottle, now_ms: int) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    if closed.at_once:
        line.append(f"{clean(closed.key)} opens: {closed.probes} of {closed.at_once} probes", style="yellow")
    else:
        line.append(f"{clean(closed.key)} closed for {show_age(closed.until - now_ms)}", style="bold red")
    if closed.error:
        line.append(f" {clean(closed.error)}", style="dim")
    return line


def _throttle_line(throttle: ThrottleStats, width: int) -> RenderableType:
    bar = max(4, min(16, width - 30))
    row = Table.grid(expand=True, padding=(0, 1, 0, 0))
    row.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    row.add_column(no_wrap=True)
    row.add_column(no_wrap=True, justify="right")
    fullness = _fullness(throttle)
    row.add_row(
        clean(throttle.key),
        Bar(fullness, bar, "red" if throttle.tokens < 1 else "blue"),
        f"{show_rate(throttle.rate)}/s",
    )
    return row


def _fullness(throttle: ThrottleStats) -> float:
    return throttle.tokens / throttle.burst if throttle.burst > 0 else 0.0


def stuck_panel(queue: str, metrics: FailureMetrics | None, now_ms: int, *, lines: int) -> RenderableType:
    title = "blocked streams, poison"
    if metrics is None or metrics.queue != queue:
        return panel(title, Text("loading", style="dim"))
    rows: list[RenderableType] = []
    if metrics.poison_candidates:
        count = len(metrics.poison_candidates)
        text = Text(
            f"{show_count(count)} poison: " if count > 1 else "poison: ",
            style="bold magenta",
            no_wrap=True,
            overflow="ellipsis",
        )
        text.append(
            " ".join(short_id(candidate.id) for candidate in metrics.poison_candidates[:8]),
            style="magenta not bold",
        )
        rows.append(text)
    rows += [_stream_line(stream, now_ms) for stream in metrics.blocked_streams]
    shown, hidden = _cut(rows, lines)
    if not shown:
        return panel(title, Text("none", style="green"))
    return panel(title, Group(*shown), _more(hidden, "more"))


def _stream_line(stream: BlockedStream, now_ms: int) -> Text:
    until = show_until(stream.until, now_ms)
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(clean(stream.stream), style="bold")
    line.append(f" {show_count(stream.behind)} behind {short_id(stream.blocker)} ")
    line.append(until, style="red" if until == "held" else "yellow")
    line.append(f" for {show_age(now_ms - stream.since)}", style="dim")
    return line


def _cut(rows: Sequence[_Row], lines: int) -> tuple[Sequence[_Row], int]:
    room = max(0, lines)
    return rows[:room], max(0, len(rows) - room)


def _more(hidden: int, what: str) -> str:
    if not hidden:
        return ""
    return f"{hidden} more" if what == "more" else f"{hidden} more {what}"


def panel(title: str, body: RenderableType, more: str = "") -> Panel:
    below = Text(more, style="dim") if more else None
    return Panel(
        body,
        title=Text(clean(title), style="bold cyan"),
        title_align="left",
        subtitle=below,
        subtitle_align="right",
        border_style=BORDER,
        box=box.ROUNDED,
        padding=(0, 1),
    )
