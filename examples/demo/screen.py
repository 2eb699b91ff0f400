"""What the demo shows: on a terminal a live table, elsewhere a line now and then."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fairlead.model.views import QueueStats

if TYPE_CHECKING:
    from examples.demo.story import Outcome

#: Of everything below the title of a chapter.
INDENT = 3
_LINE_EVERY_S = 5.0
#: Whoever reads a log has a wide window, and nobody wants a wrapped one.
_LOG_WIDTH = 160

NEXT = (
    ("docs/tutorial-spark.md", "the same by hand, in ten minutes"),
    ("examples/marketplace/", "what you just watched: runbook, steps, bank"),
    ("make demo ARGS=--keep", "once more, and keep the data to look at"),
    ("make demo ARGS=--fairness", "exact shares of one queue, without Spark"),
    ("make test", "everything that is promised, held to it"),
)


class Screen:
    def __init__(self) -> None:
        self.console = Console(highlight=False)
        if not self.console.is_terminal:
            self.console = Console(highlight=False, width=_LOG_WIDTH)
        self._chapters = 0
        self._began = time.monotonic()

    def title(self, text: str) -> None:
        self.console.print(f"[bold]{text}[/]")

    def chapter(self, title: str, *lines: str) -> None:
        self._chapters += 1
        self.console.print()
        self.console.print(
            f"[bold cyan]{self._chapters}.[/] [bold]{title}[/]  [dim]{time.monotonic() - self._began:.0f} s[/]"
        )
        for line in lines:
            self._show(line)

    def typed(self, command: Sequence[str]) -> None:
        self._show(Text(f"$ {shlex.join(command)}", style="cyan"))

    def said(self, text: str) -> None:
        for line in text.splitlines():
            self._show(Text(line))

    def diff(self, name: str, lines: Sequence[str]) -> None:
        self._show(Text(name, style="bold"))
        for line in lines:
            self._show(Text(f"  {line}", style={"+": "green", "-": "red"}.get(line[:1], "dim")))

    def _show(self, text: str | Text) -> None:
        self.console.print(Padding(text, (0, 0, 0, INDENT), expand=False))

    @contextmanager
    def live(self, sent: Mapping[str, int]) -> Iterator[View]:
        if not self.console.is_terminal or os.environ.get("CI"):
            yield Lines(self.console, sent)
            return
        with Live(console=self.console, refresh_per_second=8) as live:
            yield Bars(live, sent)

    def results(self, shops: Mapping[str, tuple[int, int]], outcome: Outcome) -> None:
        shares = _table("shop", "turns", "orders", "paid", "95 % paid after")
        for shop, (turns, _) in shops.items():
            after = outcome.nearly_done_s.get(shop)
            shares.add_row(
                shop,
                str(turns),
                f"{outcome.sent[shop]:,}",
                f"{outcome.paid[shop]:,}",
                "" if after is None else f"{after:.0f} s",
            )
        shares.add_row(
            "[bold]in all[/]", "", f"[bold]{outcome.sent.total():,}[/]", f"[bold]{outcome.paid.total():,}[/]"
        )
        failures = _table("failed because of", "tries", "tried again", "died")
        for reason, count in outcome.failed.most_common():
            failures.add_row(
                reason, f"{count:,}", f"{count - outcome.died[reason]:,}", f"{outcome.died[reason]:,}"
            )
        for table in (shares, failures):
            self.console.print()
            self.console.print(table)

    def verdict(self, holds: Sequence[tuple[bool, str]]) -> bool:
        """Whether everything holds."""
        self.console.print("[bold]What this just showed[/]")
        for holds_so, line in holds:
            self._show(f"[green]✓[/] {line}" if holds_so else f"[red]✗ {line}[/]")
        self.console.print()
        self.console.print(
            f"[bold]What to try next[/]  [dim]({time.monotonic() - self._began:.0f} s in all; nothing is left running)[/]"
        )
        for command, why in NEXT:
            self._show(f"[cyan]{command:<26}[/] {why}")
        return all(holds_so for holds_so, _ in holds)

    def broken(self, why: str) -> None:
        self.console.print(Text(f"\nThe story broke off: {why}", style="red"))

    def kept(self, folder: Path) -> None:
        self.console.print(Text.assemble(("\nKept in ", "bold"), str(folder)))
        for line in (
            f"cd {folder}/marketplace",
            "fairlead serve --data ../data",
            "fairlead top   (in another terminal)",
        ):
            self._show(Text(line, style="cyan"))


class View:
    """Of one run of the worker."""

    def __init__(self, sent: Mapping[str, int]) -> None:
        self.sent = sent
        self._began = time.monotonic()
        self._is_working = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def update(self, paid: Mapping[str, int], stats: QueueStats) -> None:
        raise NotImplementedError

    def counts(self, stats: QueueStats) -> str:
        self._is_working = self._is_working or stats.leased > 0
        if not self._is_working:
            return "Spark is starting"
        return f"failed tries {stats.totals.failed:,}   to be tried again {stats.waiting:,}   dead letters {stats.dead:,}"


class Bars(View):
    def __init__(self, live: Live, sent: Mapping[str, int]) -> None:
        super().__init__(sent)
        self._live = live

    def update(self, paid: Mapping[str, int], stats: QueueStats) -> None:
        self._live.update(self._page(paid, stats))

    def _page(self, paid: Mapping[str, int], stats: QueueStats) -> RenderableType:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
        for shop, count in self.sent.items():
            style = "yellow" if shop == "noisy" else "green"
            bar = ProgressBar(
                total=count, completed=paid[shop], width=40, complete_style=style, finished_style=style
            )
            table.add_row(f"   {shop}", bar, f"{paid[shop]:,} of {count:,} paid")
        return Group(table, Text(f"   {self.seconds:.0f} s   {self.counts(stats)}", style="dim"))


class Lines(View):
    def __init__(self, console: Console, sent: Mapping[str, int]) -> None:
        super().__init__(sent)
        self._console = console
        self._next = 0.0
        self._last = ""

    def update(self, paid: Mapping[str, int], stats: QueueStats) -> None:
        line = f"{self.counts(stats)}   paid: {', '.join(f'{shop} {paid[shop]:,}' for shop in self.sent)}"
        is_over = not (stats.ready or stats.waiting or stats.leased)
        if line != self._last and (self.seconds >= self._next or is_over):
            self._next, self._last = self.seconds + _LINE_EVERY_S, line
            self._console.print(f"   {self.seconds:3.0f} s   {line}", soft_wrap=True)


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="right" if at else "left")
    return table
