"""The order of a repair.

1. Refuse a directory that is open, and a target that is neither new nor empty. 2. `cut_unsynced`: copy the
files without the ends that no sync confirmed (`cut.py`). Otherwise, copy a directory that `verify` finds
sound as it is. Otherwise, read every readable row (`store/rocks/salvage.py`) and build a valid store from
them (`rebuild.py`). 3. Verify the result, then give it its name in one step.

All writing happens in one directory beside the target. Memory: some hundred bytes for each message.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from fairlead.engine.verify import verify
from fairlead.errors import FairleadError, FormatTooNew, InvalidRequest, StoreCorrupt
from fairlead.salvage.cut import find_cuts
from fairlead.salvage.rebuild import LAYOUT, rebuild
from fairlead.salvage.report import QueueReport, RepairReport
from fairlead.salvage.unfinished import UnfinishedDirectory, copy_file
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.store.rocks.format import FORMAT, FORMAT_FILE, read_format, sync_directory
from fairlead.store.rocks.marks import hold_unchanged
from fairlead.store.rocks.salvage import Damage, Salvage
from fairlead.store.rows import read_counts, read_queues

#: RocksDB creates these anew; they hold nothing about messages.
_LEFT_OUT = ("LOCK", "LOG")
#: The current work, its size (0: unknown), and how much of it is done.
Progress = Callable[[str, int, int], None]


def repair(
    damaged: str | os.PathLike[str],
    new: str | os.PathLike[str],
    *,
    cut_unsynced: bool = False,
    progress: Progress | None = None,
) -> RepairReport:
    """Copy everything readable from `damaged` into the new directory `new`; `damaged` is never written to.

    `cut_unsynced` is for a healthy directory that is refused after a power failure: it drops everything from
    the first defect after the last confirmed sync, and refuses a directory with a defect before it. Raises
    `StoreLocked`, `InvalidRequest`, `FormatTooNew`, `FormatTooOld`, `StoreFull`, and `StoreCorrupt` if
    nothing can be saved.
    """
    source, target = Path(damaged).resolve(), Path(new).resolve()
    told = progress or (lambda what, total, done: None)
    _check_target(source, target)
    damaged_format = _check_source(source)
    with hold_unchanged(source):
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = UnfinishedDirectory(target, "repair", "new")
        with unfinished.work_directory() as folder:
            finished = folder / "data"
            if cut_unsynced or _is_sound(source, told):
                report = _copy(source, finished, told, cut_unsynced=cut_unsynced)
            else:
                report = _rebuild(source, folder, finished, told)
            told("checking the new directory", 0, 0)
            checked = verify(finished)
            if not checked.ok:
                raise StoreCorrupt(
                    str(source),
                    f"the repaired data breaks {len(checked.problems)} laws: {checked.problems[0]}",
                )
            unfinished.finish(finished)
    report.damages[:0] = damaged_format
    report.messages, report.leases = checked.messages, checked.leases
    return report


def _is_sound(source: Path, told: Progress) -> bool:
    told("checking the damaged directory", 0, 0)
    try:
        return verify(source).ok
    except (FairleadError, OSError):
        return False


def _copy(source: Path, finished: Path, told: Progress, *, cut_unsynced: bool) -> RepairReport:
    report, sizes = RepairReport(), dict[str, int]()
    if cut_unsynced:
        kept = find_cuts(source)
        report.dropped, sizes = kept.dropped, kept.sizes
    finished.mkdir(mode=0o700)
    files = [
        file for file in sorted(source.iterdir()) if file.is_file() and not file.name.startswith(_LEFT_OUT)
    ]
    wanted = {file: sizes.get(file.name, file.stat().st_size) for file in files}
    total, done = sum(wanted.values()), 0
    for file, size in wanted.items():
        if size or file.name not in sizes:

            def copied(more: int) -> None:
                nonlocal done
                done += more
                told("copying", total, done)

            copy_file(file, finished / file.name, size, copied)
    sync_directory(finished)
    _open_once(finished)
    report.queues = _count(finished)
    return report


def _open_once(finished: Path) -> None:
    """Open and close the new directory, so that it has marks and a manifest of its own that expect no log to
    be longer than it is.
    """
    RocksKeyValueStore.open(finished).close()


def _rebuild(source: Path, folder: Path, finished: Path, told: Progress) -> RepairReport:
    scratch = folder / "scratch"
    scratch.mkdir()
    report = RepairReport()
    done = 0

    def step(family: str, rows: int) -> None:
        nonlocal done
        done = done + rows if rows else 0
        if done % 1000 == 0:
            told(f"saving {family}", 0, done)

    def read(name: str) -> None:
        told(f"reading {name}", 0, 0)

    salvage = Salvage(source, scratch, step=read, layout=LAYOUT)
    with closing(salvage), closing(RocksKeyValueStore.open(finished)) as store:
        rebuild(salvage, store, report, step=step)
    report.damages, report.gaps = salvage.damages, salvage.gaps
    return report


def _count(finished: Path) -> list[QueueReport]:
    with closing(RocksKeyValueStore.open(finished, read_only=True)) as store:
        counts = read_counts(store)
        names = {record.name: counts[record.queue_id] for record in read_queues(store)}
    messages = {name: counted.messages + counted.done for name, counted in names.items()}
    return [QueueReport(name, count, count, 0) for name, count in messages.items()]


def _check_source(source: Path) -> list[Damage]:
    """Damage to the file that identifies the directory as fairlead's."""
    if not source.is_dir():
        raise InvalidRequest("damaged", "a data directory", str(source))
    try:
        found = read_format(source)
    except (OSError, StoreCorrupt):
        if not any(
            name.startswith("MANIFEST-") or name.endswith((".sst", ".log")) for name in os.listdir(source)
        ):
            raise InvalidRequest(
                "damaged", f"a data directory with a {FORMAT_FILE} file", str(source)
            ) from None
        return [Damage(FORMAT_FILE, 0, 0, "the file is missing or damaged", harmless=True)]
    if found > FORMAT:
        raise FormatTooNew(str(source), found, FORMAT)
    return []


def _check_target(source: Path, target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InvalidRequest("new", "a new or empty directory", str(target))
    if os.path.ismount(target):
        raise InvalidRequest(
            "new", "a directory that can be renamed, such as one below this mount point", str(target)
        )
    if target.is_relative_to(source):
        raise InvalidRequest("new", "a directory outside the damaged one", str(target))
