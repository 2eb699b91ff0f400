"""What the demo shows: one live table while it runs, and the results as tables at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.fairness.ledger import Ledger
from examples.fairness.tenants import Tenant
from fairlead import VerifyReport
from fairlead.model.views import QueueStats


def make_console() -> Console:
    return Console(highlight=False)


def step(console: Console, number: int, title: str, *lines: str) -> None:
    console.print()
    console.print(f"[bold cyan]{number}.[/] [bold]{title}[/]")
    for line in lines:
        console.print(f"   {line}")


def live_view(tenants: Sequence[Tenant], ledger: Ledger, stats: QueueStats, seconds: float) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading, justify in (
        ("   tenant", "left"),
        ("weight", "right"),
        ("done", "left"),
        ("", "right"),
        ("ready", "right"),
    ):
        table.add_column(Text(heading, style="dim"), justify=justify)  # type: ignore[arg-type]
    for tenant in tenants:
        account = ledger.accounts[tenant.name]
        style = "yellow" if tenant.name == "noisy" else "green"
        bar = ProgressBar(
            total=tenant.messages,
            completed=account.completed,
            width=30,
            complete_style=style,
            finished_style=style,
        )
        counts = f"{account.completed:,} of {tenant.messages:,}"
        table.add_row(f"   {tenant.name}", str(tenant.weight), bar, counts, f"{max(0, account.backlog):,}")
    line = (
        f"   [dim]{seconds:.0f} s   {ledger.completed_in_all / max(seconds, 0.1):,.0f} completed/s   leased {stats.leased}   "
        f"waiting {stats.waiting}   retries {ledger.retries.total()}   dead letters {stats.dead}[/]"
    )
    return Group(table, Text(), Text.from_markup(line))


def results(
    console: Console, tenants: Sequence[Tenant], ledger: Ledger, before: Mapping[str, int], after: int
) -> None:
    console.print()
    console.rule("[bold]Results", align="left", style="dim")
    for table in (shares_table(tenants, ledger), failures_table(ledger), dead_letters_table(before, after)):
        console.print()
        console.print(table)


def verdict(
    console: Console, tenants: Sequence[Tenant], ledger: Ledger, dead: int, after: int, report: VerifyReport
) -> int:
    """Say what was just shown, each line from the ledger's own count; the exit code is 0 when all of it
    holds.
    """
    lost, doubled = ledger.never_completed(), ledger.completed_more_than_once()
    off = max(abs(ledger.share(tenant.name) - fair_share(tenant, tenants)) for tenant in tenants)
    shown = [
        (
            lost == 0,
            f"Nothing is lost: {ledger.enqueued_in_all:,} enqueued, {ledger.completed_in_all:,} completed.",
        ),
        (doubled == 0, f"Nothing is done twice: {doubled} messages were confirmed complete more than once."),
        (off < 0.05, f"All get the share of their weight, the noisy one too: off by {off * 100:.1f} points."),
        (after == 0, f"Failure is visible and repairable: {dead} died, {after} are left."),
        (report.ok, f"The directory is sound: read whole after closing, {len(report.problems)} problems."),
    ]
    console.print()
    console.print("[bold]What this just showed[/]")
    for holds, line in shown:
        console.print(f"   [green]✓[/] {line}" if holds else f"   [red]✗ {line}[/]")
    console.print()
    console.print("[bold]What to try next[/]")
    for command, why in NEXT:
        console.print(f"   [cyan]{command:<24}[/] {why}")
    return 0 if all(holds for holds, _ in shown) else 1


NEXT = (
    ("docs/tutorial.md", "your first queue, in ten minutes"),
    ("docs/tutorial-server.md", "a server, a worker, a repair from the shell"),
    ("docs/tutorial-runbook.md", "queues, steps and workers declared in a file"),
    ("examples/fairness/", "what you just watched; worker.py is a consumer"),
    ("make torture KILLS=50", "kill a loaded broker 50 times and audit what is left"),
    ("make test", "everything that is promised, held to it"),
)


def shares_table(tenants: Sequence[Tenant], ledger: Ledger) -> Table:
    in_arrival_order = ledger.median_wait_in_arrival_order_ms()
    table = _table(
        "Shares and waits",
        "tenant",
        "weight",
        "sent",
        "done",
        "fair share",
        "got",
        "median wait",
        "in arrival order",
    )
    for tenant in tenants:
        account = ledger.accounts[tenant.name]
        table.add_row(
            tenant.name,
            str(tenant.weight),
            f"{account.enqueued:,}",
            f"{account.completed:,}",
            f"{fair_share(tenant, tenants):.1%}",
            f"[bold]{ledger.share(tenant.name):.1%}[/]",
            f"[bold]{_seconds(ledger.median_wait_ms(tenant.name))}[/]",
            f"[dim]{_seconds(in_arrival_order[tenant.name])}[/]",
        )
    table.caption = (
        f"Got: of the {ledger.contended_deliveries():,} deliveries made while all five had work. "
        "In arrival order: computed from the same arrivals and the same moments of delivery."
    )
    return table


def fair_share(tenant: Tenant, tenants: Sequence[Tenant]) -> float:
    return tenant.weight / sum(other.weight for other in tenants)


def failures_table(ledger: Ledger) -> Table:
    table = _table("Failures by reason", "reason", "retried", "died", "last error", left=(0, 3))
    for reason in sorted({*ledger.retries, *ledger.dead}, key=lambda r: -ledger.retries[r] - ledger.dead[r]):
        table.add_row(
            reason, f"{ledger.retries[reason]:,}", f"{ledger.dead[reason]:,}", ledger.errors[reason]
        )
    return table


def dead_letters_table(before: Mapping[str, int], after: int) -> Table:
    table = _table("Dead letters", "reason", "before the fix", "after the redrive")
    for reason, count in before.items():
        table.add_row(reason, str(count), "0" if not after else "")
    table.add_row("[bold]in all[/]", f"[bold]{sum(before.values())}[/]", f"[bold]{after}[/]")
    return table


def _table(title: str, *headings: str, left: Sequence[int] = (0,)) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="left" if at in left else "right")
    return table


def _seconds(ms: float) -> str:
    return f"{ms / 1000:.2f} s"
