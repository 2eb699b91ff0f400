"""One frame of `fairlead top`: a scene in, something that fills exactly so many columns and lines out.

Nothing here reads a clock, a terminal or a broker. Lists are cut to the room there is, and say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rich import box
from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fairlead.cli.charts import Bar, show_age, show_bytes, show_count, show_rate, show_until, spark
from fairlead.cli.failures_view import attempts_rows, bar_rows, retries
from fairlead.cli.looks import KeyShare, Look, Rates
from fairlead.cli.output import clean
from fairlead.model.ids import short_id
from fairlead.model.views import BlockedStream, FailureMetrics, HookStats, QueueStats, ThrottleStats

WIDE = 118
_BORDER = "grey37"
_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class Scene:
    """`trail` has, by queue, what went out per second at the latest looks. `trouble` is why there is no fresher look."""

    where: str
    now_ms: int
    clock: str
    look: Look
    rates: Mapping[str, Rates] = field(default_factory=dict)
    trail: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    selected: str = ""
    shares: Sequence[KeyShare] = ()
    failures: FailureMetrics | None = None
    interval: str = "1s"
    trouble: str = ""


def frame(scene: Scene, width: int, height: int) -> Layout:
    selected = scene.look.find(scene.selected)
    queue_rows = max(1, min(len(scene.look.queues), (height - 4) // 3))
    root = Layout()
    root.split_column(
        Layout(_header(scene, width), size=1),
        Layout(_queues(scene, width, queue_rows), size=queue_rows + 3),
        Layout(_details(scene, selected, width, height - queue_rows - 5)),
        Layout(_footer(scene, width), size=1),
    )
    return root


def _header(scene: Scene, width: int) -> RenderableType:
    bar = Table.grid(expand=True)
    bar.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    bar.add_column(no_wrap=True, justify="right")
    title = Text.assemble((" fairlead ", "bold black on cyan"), (f" {clean(scene.where)}", "bold"))
    held = sum(stats.ready + stats.waiting + stats.leased for stats in scene.look.queues)
    dead = sum(stats.dead for stats in scene.look.queues)
    title.append(f"  {len(scene.look.queues)} queues, {show_count(held)} messages", style="default")
    if dead:
        title.append(f", {show_count(dead)} dead", style="red")
    bar.add_row(title, Text.assemble((f"every {scene.interval}  ", "dim"), (f"{scene.clock} ", "bold")))
    return bar


def _footer(scene: Scene, width: int) -> RenderableType:
    if scene.trouble:
        return Text(f" {clean(scene.trouble)}", style="bold white on red", no_wrap=True, overflow="ellipsis")
    keys = (("↑↓ j k tab", "choose a queue"), ("q", "leave"))
    return Text("  ").join(Text.assemble((f" {key} ", "black on grey62"), (f" {what}", "dim")) for key, what in keys)


def _queues(scene: Scene, width: int, rows: int) -> RenderableType:
    queues, first = _window(scene.look.queues, scene.selected, rows)
    counted = any(rates.flow for rates in scene.rates.values())
    trail = max(0, min(30, width - 92)) if counted or scene.trail else 0
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("", width=1)
    table.add_column("queue", no_wrap=True, overflow="ellipsis", ratio=1)
    for name in ("ready", "waiting", "leased", "dead", "bytes", "who"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("in/s", "out/s", "fail/s") if counted else ("ready/s", "dead/s"):
        table.add_column(name, justify="right", no_wrap=True, min_width=6)
    if trail:
        table.add_column("out", width=trail, no_wrap=True)
    for stats in queues:
        table.add_row(*_queue_row(scene, stats, counted, trail), style="white on grey19" if stats.queue == scene.selected else "")
    hidden = len(scene.look.queues) - len(queues)
    title = "queues" if not hidden else f"queues {first + 1} to {first + len(queues)} of {len(scene.look.queues)}"
    if not queues:
        return _panel(title, Text("no queues yet; make one with: fairlead queue create NAME", style="dim"))
    return _panel(title, table)


def _queue_row(scene: Scene, stats: QueueStats, counted: bool, trail: int) -> list[RenderableType]:
    chosen = stats.queue == scene.selected
    name = Text(clean(stats.queue), style="bold cyan" if chosen else "")
    if stats.paused:
        name.append(" paused", style="yellow")
    rates = scene.rates.get(stats.queue)
    row: list[RenderableType] = [
        Text("▸" if chosen else "", style="bold cyan"),
        name,
        _number(stats.ready, "cyan"),
        _number(stats.waiting, "yellow"),
        _number(stats.leased, "green"),
        _number(stats.dead, "red"),
        Text(show_bytes(stats.bytes), style="" if stats.bytes else "grey37"),
        _number(stats.consumers, ""),
    ]
    if counted:
        flow = rates.flow if rates else {}
        row += [Text(show_rate(flow.get(name)), style=style) for name, style in (("enqueued", "cyan"), ("delivered", "green"), ("failed", "red"))]
    else:
        change = rates.change if rates else {}
        row += [Text(show_rate(change.get(name), signed=True), style=style) for name, style in (("ready", "cyan"), ("dead", "red"))]
    if trail:
        row.append(Text(spark(scene.trail.get(stats.queue, ()), trail), style="green"))
    return row


def _number(count: int, style: str) -> Text:
    return Text(show_count(count), style=style if count else "grey37")


def _window(queues: Sequence[QueueStats], selected: str, rows: int) -> tuple[Sequence[QueueStats], int]:
    """The part of the list that holds the selected one."""
    at = next((place for place, stats in enumerate(queues) if stats.queue == selected), 0)
    first = max(0, min(at - rows // 2, len(queues) - rows))
    return queues[first : first + rows], first


def _details(scene: Scene, stats: QueueStats | None, width: int, height: int) -> RenderableType:
    if stats is None or height < 4:
        return Text("")
    area = Layout()
    if width >= WIDE:
        each = width // 3
        area.split_row(Layout(name="shares"), Layout(name="failures"), Layout(name="rest"))
        area["shares"].update(_shares(scene, stats, each, height - 2))
        area["failures"].update(_failures(scene, stats, each, height - 2))
        below = max(4, height // 2)
        area["rest"].split_column(Layout(_gates(scene, stats, each, height - below - 2)), Layout(_stuck(scene, stats, each, below - 2), size=below))
        return area
    each, below = width // 2, min(6, height // 2)
    area.split_row(Layout(name="left"), Layout(name="right"))
    area["left"].split_column(
        Layout(_shares(scene, stats, each, height - below - 2)), Layout(_gates(scene, stats, each, below - 2), size=below)
    )
    area["right"].split_column(
        Layout(_failures(scene, stats, width - each, height - below - 2)), Layout(_stuck(scene, stats, width - each, below - 2), size=below)
    )
    return area


def _shares(scene: Scene, stats: QueueStats, width: int, lines: int) -> RenderableType:
    """What each key got of the deliveries, with a tick where its weight says it should be."""
    shown, hidden = _cut(scene.shares, lines - 1)
    if not shown:
        return _panel(f"shares of {stats.queue}", Text("no key has anything ready", style="dim"))
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("key", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("w", justify="right")
    table.add_column("got ┃ due", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("ready", justify="right", no_wrap=True)
    bar = max(8, (width - 14) * 2 // 5)
    # The largest fills its bar: with many keys every share of the whole is small.
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
    return _panel(f"shares of {stats.queue}", table, _more(hidden, "keys"))


def _share_style(got: float | None, fair: float) -> str:
    """Green near what its weight says; else yellow. Without a backlog a key may well want less than its share."""
    if got is None:
        return _BORDER
    return "green" if abs(got - fair) <= max(0.02, fair * 0.15) else "yellow"


def _failures(scene: Scene, stats: QueueStats, width: int, lines: int) -> RenderableType:
    title = f"failures of {stats.queue}"
    metrics = scene.failures
    if metrics is None or metrics.queue != stats.queue:
        return _panel(title, Text("looking", style="dim"))
    if not metrics.by_reason and not metrics.scheduled:
        return _panel(title, Text("nothing alive has failed", style="green"))
    parts: list[RenderableType] = [Text(_backlog(metrics, scene.now_ms), no_wrap=True, overflow="ellipsis")]
    reasons = list(metrics.by_reason.items())
    room = max(1, lines - 1)
    with_attempts = room >= len(reasons) + 3
    shown, hidden = _cut(reasons, room if not with_attempts else len(reasons))
    parts.append(bar_rows(shown, "red", width - 4))
    if with_attempts:
        parts.append(Text("failed attempts", style="dim"))
        parts.append(bar_rows(attempts_rows(metrics.by_attempts, room - len(reasons) - 1), "yellow", width - 4))
    return _panel(title, Group(*parts), _more(hidden, "reasons"))


def _backlog(metrics: FailureMetrics, now_ms: int) -> str:
    if not metrics.scheduled:
        return "no retries scheduled"
    last = "" if metrics.latest_due in (None, metrics.next_due) else f", last {show_until(metrics.latest_due, now_ms)}"
    return f"{retries(metrics.scheduled)}, next {show_until(metrics.next_due, now_ms)}{last}"


def _gates(scene: Scene, stats: QueueStats, width: int, lines: int) -> RenderableType:
    """What may hold deliveries back: hooks of the queue with their breakers, then throttles."""
    rows: list[RenderableType] = [_hook_line(hook, scene.now_ms) for hook in stats.hooks]
    rows += [_throttle_line(throttle, width) for throttle in sorted(stats.throttles, key=_fullness)]
    shown, hidden = _cut(rows, lines)
    if not shown:
        return _panel("hooks and throttles", Text("none", style="dim"))
    return _panel("hooks and throttles", Group(*shown), _more(hidden, "more"))


def _hook_line(hook: HookStats, now_ms: int) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    until = hook.breaker_open_until_ms
    if until is not None:
        line.append(f"{hook.function} breaker open, {show_until(until, now_ms)}", style="bold red")
    else:
        line.append(hook.function, style="green" if not hook.failures else "yellow")
        line.append(f" {show_count(hook.calls)} calls, {show_count(hook.failures)} failed")
    if hook.last_error:
        line.append(f" {clean(hook.last_error)}", style="dim")
    return line


def _throttle_line(throttle: ThrottleStats, width: int) -> RenderableType:
    bar = max(4, min(16, width - 30))
    row = Table.grid(expand=True, padding=(0, 1, 0, 0))
    row.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    row.add_column(no_wrap=True)
    row.add_column(no_wrap=True, justify="right")
    fullness = _fullness(throttle)
    row.add_row(clean(throttle.key), Bar(fullness, bar, "red" if throttle.tokens < 1 else "blue"), f"{show_rate(throttle.rate)}/s")
    return row


def _fullness(throttle: ThrottleStats) -> float:
    return throttle.tokens / throttle.burst if throttle.burst > 0 else 0.0


def _stuck(scene: Scene, stats: QueueStats, width: int, lines: int) -> RenderableType:
    title = "blocked streams, poison"
    metrics = scene.failures
    if metrics is None or metrics.queue != stats.queue:
        return _panel(title, Text("looking", style="dim"))
    rows: list[RenderableType] = []
    if metrics.poison_candidates:
        count = len(metrics.poison_candidates)
        text = Text(f"{show_count(count)} poison: " if count > 1 else "poison: ", style="bold magenta", no_wrap=True, overflow="ellipsis")
        text.append(" ".join(map(short_id, metrics.poison_candidates[:8])), style="magenta not bold")
        rows.append(text)
    rows += [_stream_line(stream, scene.now_ms) for stream in metrics.blocked_streams]
    shown, hidden = _cut(rows, lines)
    if not shown:
        return _panel(title, Text("none", style="green"))
    return _panel(title, Group(*shown), _more(hidden, "more"))


def _stream_line(stream: BlockedStream, now_ms: int) -> Text:
    until = show_until(stream.until, now_ms)
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(clean(stream.stream), style="bold")
    line.append(f" {show_count(stream.behind)} behind {short_id(stream.blocker)} ")
    line.append(until, style="red" if until == "held" else "yellow")
    line.append(f" since {show_age(now_ms - stream.since)}", style="dim")
    return line


def _cut(rows: Sequence[_Row], lines: int) -> tuple[Sequence[_Row], int]:
    room = max(0, lines)
    return rows[:room], max(0, len(rows) - room)


def _more(hidden: int, what: str) -> str:
    if not hidden:
        return ""
    return f"{hidden} more" if what == "more" else f"{hidden} more {what}"


def _panel(title: str, body: RenderableType, more: str = "") -> Panel:
    below = Text(more, style="dim") if more else None
    return Panel(
        body, title=Text(clean(title), style="bold cyan"), title_align="left", subtitle=below, subtitle_align="right", border_style=_BORDER,
        box=box.ROUNDED, padding=(0, 1),
    )
