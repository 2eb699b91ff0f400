"""Draws one frame of `fairlead top`: a state in, a layout of a given width and height out.

Pure: reads no clock, terminal or broker. Lists are cut to the available lines, and show how many rows are
hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import RenderableType
from rich.layout import Layout
from rich.table import Table
from rich.text import Text

from fairlead.cli.charts import count_text, show_bytes, show_count, show_rate, sparkline
from fairlead.cli.output import clean, count_of
from fairlead.cli.stats_samples import KeyShare, Rates, StatsSample
from fairlead.cli.top_panels import failures_panel, gates_panel, panel, shares_panel, stuck_panel
from fairlead.model.views import FailureMetrics, QueueStats

WIDE = 118
_NARROW = 76
_ZERO = "grey37"


@dataclass(frozen=True, slots=True)
class TopState:
    """The values of a frame. `delivery_rates` has the rates of the last samples by queue, `trouble` why there
    is no later sample.
    """

    where: str
    now_ms: int
    clock: str
    sample: StatsSample
    rates: Mapping[str, Rates] = field(default_factory=dict)
    delivery_rates: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    selected: str = ""
    shares: Sequence[KeyShare] = ()
    failures: FailureMetrics | None = None
    interval: str = "1s"
    trouble: str = ""


def frame(state: TopState, width: int, height: int) -> Layout:
    selected = state.sample.find(state.selected)
    queue_rows = max(1, min(len(state.sample.queues), (height - 4) // 3))
    root = Layout()
    root.split_column(
        Layout(_header(state, width), size=1),
        Layout(_queues(state, width, queue_rows), size=queue_rows + 3),
        Layout(_details(state, selected, width, height - queue_rows - 5)),
        Layout(_footer(state, width), size=1),
    )
    return root


def _header(state: TopState, width: int) -> RenderableType:
    bar = Table.grid(expand=True)
    bar.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    bar.add_column(no_wrap=True, justify="right")
    title = Text.assemble((" fairlead ", "bold black on cyan"), (f" {clean(state.where)}", "bold"))
    held = sum(stats.ready + stats.waiting + stats.leased for stats in state.sample.queues)
    dead = sum(stats.dead for stats in state.sample.queues)
    title.append(
        f"  {count_of(len(state.sample.queues), 'queue')}, {show_count(held)} messages", style="default"
    )
    if dead:
        title.append(f", {show_count(dead)} dead", style="red")
    bar.add_row(title, Text.assemble((f"every {state.interval}  ", "dim"), (f"{state.clock} ", "bold")))
    return bar


def _footer(state: TopState, width: int) -> RenderableType:
    if state.trouble:
        return Text(f" {clean(state.trouble)}", style="bold white on red", no_wrap=True, overflow="ellipsis")
    keys = (("↑↓ j k tab", "select a queue"), ("q", "quit"))
    return Text("  ").join(
        Text.assemble((f" {key} ", "black on grey62"), (f" {what}", "dim")) for key, what in keys
    )


def _queues(state: TopState, width: int, rows: int) -> RenderableType:
    queues, first = _window(state.sample.queues, state.selected, rows)
    chart_width = max(0, min(30, width - 92))
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("", width=1)
    table.add_column("queue", no_wrap=True, overflow="ellipsis", ratio=1)
    for name in ("ready", "waiting", "leased", "dead", *(() if width < _NARROW else ("bytes", "who"))):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("in/s", "out/s", "fail/s"):
        table.add_column(name, justify="right", no_wrap=True, min_width=6)
    if chart_width:
        table.add_column("out", width=chart_width, no_wrap=True)
    for stats in queues:
        table.add_row(
            *_queue_row(state, stats, chart_width, width),
            style="white on grey19" if stats.queue == state.selected else "",
        )
    if not queues:
        text = "there are no queues yet; create one with: fairlead queue create NAME"
        return panel("queues", Text(text, style="dim"))
    total = len(state.sample.queues)
    title = "queues"
    if len(queues) < total:
        title = f"queues {first + 1} to {first + len(queues)} of {total}"
    return panel(title, table)


def _queue_row(state: TopState, stats: QueueStats, chart_width: int, width: int) -> list[RenderableType]:
    chosen = stats.queue == state.selected
    name = Text(clean(stats.queue), style="bold cyan" if chosen else "")
    if stats.paused:
        name.append(" paused", style="yellow")
    rates = state.rates.get(stats.queue)
    row: list[RenderableType] = [
        Text("▸" if chosen else "", style="bold cyan"),
        name,
        count_text(stats.ready, "cyan", zero=_ZERO),
        count_text(stats.waiting, "yellow", zero=_ZERO),
        count_text(stats.leased, "green", zero=_ZERO),
        count_text(stats.dead, "red", zero=_ZERO),
    ]
    if width >= _NARROW:
        row += [
            Text(show_bytes(stats.bytes), style="" if stats.bytes else _ZERO),
            count_text(stats.consumers, "", zero=_ZERO),
        ]
    flow = rates.flow if rates else {}
    row += [
        Text(show_rate(flow.get(name)), style=style)
        for name, style in (("enqueued", "cyan"), ("delivered", "green"), ("failed", "red"))
    ]
    if chart_width:
        rates_so_far = state.delivery_rates.get(stats.queue, ())
        row.append(Text(sparkline(rates_so_far, chart_width), style="green"))
    return row


def _window(queues: Sequence[QueueStats], selected: str, rows: int) -> tuple[Sequence[QueueStats], int]:
    """Return the part of the list around the selected queue, and the index of its first queue."""
    at = next((place for place, stats in enumerate(queues) if stats.queue == selected), 0)
    first = max(0, min(at - rows // 2, len(queues) - rows))
    return queues[first : first + rows], first


def _details(state: TopState, stats: QueueStats | None, width: int, height: int) -> RenderableType:
    if stats is None or height < 8:
        # Not an empty text: Rich draws a placeholder for a layout without content.
        return Text(" ")
    area = Layout()
    columns = 3 if width >= WIDE else 2
    below = max(4, height // 2) if columns == 3 else min(6, height // 2)
    tall, low = height - 2 if columns == 3 else height - below - 2, below - 2
    each, queue, now_ms = width // columns, stats.queue, state.now_ms
    shares = shares_panel(queue, state.shares, width=each, lines=tall)
    failures = failures_panel(queue, state.failures, now_ms, width=each, lines=tall)
    stuck = Layout(stuck_panel(queue, state.failures, now_ms, lines=low), size=below)
    if columns == 3:
        gates = Layout(gates_panel(stats, now_ms, width=each, lines=height - below - 2))
        area.split_row(Layout(shares), Layout(failures), Layout(name="rest"))
        area["rest"].split_column(gates, stuck)
    else:
        gates = Layout(gates_panel(stats, now_ms, width=each, lines=low), size=below)
        area.split_row(Layout(name="left"), Layout(name="right"))
        area["left"].split_column(Layout(shares), gates)
        area["right"].split_column(Layout(failures), stuck)
    return area
