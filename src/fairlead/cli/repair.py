"""`fairlead repair`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from fairlead.cli.lock_holder import refuse_if_open
from fairlead.cli.output import clean, count_of, progress_bar, show
from fairlead.salvage.repair import repair as repair_directory
from fairlead.salvage.report import DroppedEnd, RepairReport
from fairlead.store.rocks.salvage import Damage, Gap

#: The exit code when confirmed data is lost and the rest was saved. A failed repair has the code of its
#: error.
SAVED_IN_PART = 13
#: Lines of each list; `-o json` has all of them.
_MAX_LINES = 50


def register(app: typer.Typer) -> None:
    app.command("repair")(repair)


def repair(
    damaged: Annotated[
        Path, typer.Argument(metavar="DAMAGED", help="The damaged data directory, which is only read.")
    ],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="A new or empty directory for the saved data.")],
    cut_unsynced: Annotated[
        bool,
        typer.Option(
            "--cut-unsynced",
            help="After a power failure: drop commits that no sync confirmed, from the first defect on.",
        ),
    ] = False,
) -> None:
    """Save the readable data of a damaged data directory into a new one, and list the losses.

    The new directory gets its name when it is complete and checked; an interrupted repair leaves none. The
    exit code is 0 if no confirmed data is lost, and 13 if some is lost and the rest was saved. With any other
    code there is no new directory.
    """
    refuse_if_open(damaged)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]}"),
    )
    with progress_bar(*columns) as progress:
        task = progress.add_task("", total=None, rows="")

        def show_progress(what: str, total: int, done: int) -> None:
            rows = f"{done:,} rows" if done and not total else ""
            progress.update(task, description=what, total=total or None, completed=done, rows=rows)

        report = repair_directory(damaged, new, cut_unsynced=cut_unsynced, progress=show_progress)
    show(
        {"damaged": str(damaged), "new": str(new), "ok": report.ok, **dataclasses.asdict(report)},
        lambda: _view(damaged, new, report),
    )
    if not report.ok:
        raise typer.Exit(SAVED_IN_PART)


def _view(damaged: Path, new: Path, report: RepairReport) -> RenderableType:
    verdict = ("nothing lost ", "bold green") if report.ok else ("data lost ", "bold red")
    saved = f"saved {count_of(report.messages, 'message')} of {clean(str(damaged))} to {clean(str(new))}"
    parts: list[RenderableType] = [Text.assemble(verdict, saved)]
    if report.queues:
        parts.append(_queues(report))
    parts += _list("files that cannot be read", [_damage(damage) for damage in report.damages])
    parts += _list("lost commits", [_gap(gap) for gap in report.gaps])
    parts += _list("dropped, not confirmed by a sync", [_dropped(end) for end in report.dropped])
    parts += _list(
        "lost messages",
        [f"{gone.id} in {gone.queue}, key {gone.key}, {gone.where}" for gone in report.gone],
    )
    parts += _list("messages that may be delivered again", report.redelivered)
    parts += _list("messages whose attempts and failures are lost", report.lost_history)
    parts += _list("also", report.other)
    return Group(*parts)


def _queues(report: RepairReport) -> Table:
    table = Table("queue", "counted", "saved", "known to be lost")
    for queue in report.queues:
        counted = "?" if queue.counted is None else str(queue.counted)
        table.add_row(clean(queue.queue), counted, str(queue.saved), str(queue.gone))
    return table


def _damage(damage: Damage) -> str:
    where = f"bytes {damage.start} to {damage.end}: " if damage.end else ""
    return f"{damage.file}: {where}{damage.what}" + (" (no row is lost with it)" if damage.harmless else "")


def _gap(gap: Gap) -> str:
    rows = f"sequence numbers {gap.first_sequence} to {gap.last_sequence}"
    first = str(gap.first_commit) if gap.first_commit else "an unknown one"
    last = str(gap.last_commit) if gap.last_commit else "an unknown one"
    return f"commits {first} to {last} ({rows}): messages that they enqueued are lost, messages that they completed may come back"


def _dropped(end: DroppedEnd) -> str:
    records = f"{count_of(end.rows, 'row')} in {count_of(end.batches, 'readable commit')}"
    return f"{end.file}: {end.dropped_bytes} bytes from byte {end.kept_bytes} on, with {records}"


def _list(title: str, lines: list[str]) -> list[RenderableType]:
    if not lines:
        return []
    text = Text(f"{title}: {len(lines)}", style="bold")
    for line in lines[:_MAX_LINES]:
        text.append(f"\n  - {clean(line)}", style="not bold")
    if len(lines) > _MAX_LINES:
        text.append(
            f"\n  and {len(lines) - _MAX_LINES} more; list all with: fairlead -o json repair ...",
            style="not bold",
        )
    return [text]
