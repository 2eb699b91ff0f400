"""`fairlead backup`, `restore` and `verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import replace
from rich.progress import BarColumn, DownloadColumn, SpinnerColumn, TextColumn, TransferSpeedColumn
from rich.text import Text

from fairlead import verify as verify_directory
from fairlead.cli.charts import show_bytes
from fairlead.cli.from_table import from_verb
from fairlead.cli.global_options import current_options, wrong_usage
from fairlead.cli.lock_holder import refuse_if_open
from fairlead.cli.output import clean, count_of, progress_bar, show
from fairlead.cli.restoring import restore as restore_backup
from fairlead.cli.target import open_target
from fairlead.engine.verify import VerifyReport
from fairlead.errors import StoreCorrupt
from fairlead.wire.statuses import STATUSES


def register(app: typer.Typer) -> None:
    app.command("backup")(backup)
    app.command("restore")(restore)
    app.command("verify")(verify)


_TARGET_HELP = "Directory for the copy; it must not exist. With a server: an absolute path on its machine."


@from_verb("checkpoint", params={"path": typer.Argument(metavar="TARGET", help=_TARGET_HELP)})
def backup(request: Any) -> None:
    """Make a consistent copy of the data directory while the broker works.

    A server writes the copy on its own machine, with its own rights. On the file system of the data directory
    the files are linked, not copied: move the copy to another disk afterwards.
    """
    target, where = Path(request.path), current_options().target()
    here = isinstance(where, Path)
    if not here and not target.is_absolute():
        wrong_usage(
            f"expected TARGET to be an absolute path, got {str(target)!r}: the server at {where} writes the backup on its machine"
        )
    with open_target() as broker:
        broker.do(replace(request, path=str(target.absolute())))
    there = "" if here else f", on the machine of the server at {where}"
    copy = clean(str(target))
    text = f"backed up to {copy}{there}; check it with: fairlead verify {copy}"
    show({"backup": str(target), "where": "here" if here else "server"}, Text(text))


def restore(
    backup: Annotated[Path, typer.Argument(metavar="BACKUP", help="A directory made by `fairlead backup`.")],
) -> None:
    """Restore a backup to the new data directory --data.

    Checks the backup, copies it, checks the copy, and only then renames the copy: an interrupted restore
    leaves no incomplete data directory. Messages that were completed after the backup was made are there
    again.
    """
    into = current_options().target()
    if not isinstance(into, Path):
        wrong_usage("expected --data DIR, a new or empty directory to restore to")
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
    )
    with progress_bar(*columns) as progress:
        task = progress.add_task("", total=None)

        def began(what: str, size: int) -> None:
            progress.reset(task, description=what, total=size or None)

        report = restore_backup(backup, into, began=began, copied=lambda size: progress.advance(task, size))
    size = sum(file.stat().st_size for file in into.iterdir())
    show(
        {
            "data": str(into),
            "bytes": size,
            "queues": report.queues,
            "messages": report.messages,
            "leases": report.leases,
        },
        lambda: Text(
            f"restored {_counts(report)} ({show_bytes(size)}) to {clean(str(into))}; start it with: fairlead serve --data {clean(str(into))}"
        ),
    )


def verify(
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="A data directory or a backup. Default: --data.")
    ] = None,
) -> None:
    """Check a data directory or backup that no broker has open: every checksum and every law. Changes
    nothing.

    The exit code is 0 without problems, else 10, that of a corrupt store.
    """
    path = directory or current_options().data
    if path is None:
        wrong_usage("expected a directory, such as: fairlead verify DIR")
    refuse_if_open(path)
    report = verify_directory(path)
    show({"directory": str(path), "ok": report.ok, **_fields(report)}, lambda: _verdict(path, report))
    if not report.ok:
        raise typer.Exit(STATUSES[StoreCorrupt].exit_code)


def _verdict(path: Path, report: VerifyReport) -> Text:
    if report.ok:
        return Text.assemble(("ok ", "bold green"), f"{clean(str(path))}: {_counts(report)}, no problems")
    text = Text.assemble(
        ("bad ", "bold red"), f"{clean(str(path))}: {count_of(len(report.problems), 'problem')}"
    )
    for problem in report.problems:
        text.append(f"\n  - {clean(problem)}")
    return text


def _counts(report: VerifyReport) -> str:
    return f"{count_of(report.messages, 'message')} in {count_of(report.queues, 'queue')}, {count_of(report.leases, 'lease')}"


def _fields(report: VerifyReport) -> dict[str, object]:
    return {
        "problems": report.problems,
        "messages": report.messages,
        "queues": report.queues,
        "leases": report.leases,
    }
