"""Prove, before RocksDB opens a directory, that the result will be exact data.

RocksDB takes a log record of type 5 to 8 for the end of the log, or reads it again forever; it skips the rest
of a block after a header of zeros; and it takes a newest log that is missing or short for an older state. The
census walks the headers of the manifest and of every log that will be replayed: types, lengths, and sequence
numbers that follow from record to record and from log to log, at least up to the mark. Checksums of logs are
left to RocksDB, which refuses every wrong one once the headers are sound.
docs/decisions/0003-rocksdb-settings.md has the measurements.

`examine` changes nothing. It returns a write that a crash cut short as a `Cut`, for the caller to carry out.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fairlead.errors import StoreCorrupt
from fairlead.store.rocks.log_format import (
    HEADER_BYTES,
    Data,
    Defect,
    RecordWalk,
    checksums_fit,
    find_true_end,
    joined,
    record_beginnings,
)
from fairlead.store.rocks.manifest import read_manifest
from fairlead.store.rocks.marks import BATCH, Mark

_MANIFEST_NAME = re.compile(rb"(MANIFEST-(\d{6,}))\n")


@dataclass(frozen=True, slots=True)
class Cut:
    """The end of a file that holds no whole record: a write that no sync confirmed, cut short by a crash."""

    file: Path
    keep_bytes: int
    drop_bytes: int

    def carry_out(self) -> None:
        """Cut and sync, because RocksDB opens strictly and would refuse the bytes if they came back."""
        os.truncate(self.file, self.keep_bytes)
        with open(self.file, "rb") as file:
            os.fsync(file.fileno())

    def copy_into(self, directory: Path) -> None:
        """The same for a directory that links to this file: it gets a copy without the end."""
        copy = directory / self.file.name
        copy.unlink()
        shutil.copyfile(self.file, copy)
        os.truncate(copy, self.keep_bytes)


@dataclass(frozen=True, slots=True)
class Census:
    """`sequence` is the number that RocksDB must reach, `log` the last log with records (0: there is none)."""

    sequence: int
    log: int
    manifest: int
    manifest_bytes: int
    cuts: tuple[Cut, ...] = ()


def examine(path: Path, mark: Mark) -> Census | None:
    """The content of the directory; raises `StoreCorrupt` with the file's name. None for a directory in which
    RocksDB has created nothing yet.
    """
    if not (path / "CURRENT").exists():
        if mark.manifest:
            raise StoreCorrupt(str(path / "CURRENT"), "the file is missing")
        return None
    file, number = current_manifest(path, mark)
    manifest, manifest_walk = read_manifest(file.read_bytes())
    synced_bytes = mark.manifest_bytes if number == mark.manifest else 0
    if len(manifest_walk.data) < synced_bytes:
        raise StoreCorrupt(
            str(file),
            f"expected at least the {synced_bytes} bytes that were synced, got {len(manifest_walk.data)}",
        )
    cuts = [_judge_end(file, manifest_walk, mark, confirmed=manifest_walk.whole < synced_bytes)]

    logs = {int(log.stem): log for log in path.glob("*.log") if log.stem.isdigit()}
    must_reach = mark.sequence if mark.log >= manifest.first_log else 0
    for log, size in manifest.closed_logs.items():
        if log >= manifest.first_log:
            _check_size(path, logs, log, size)
    if must_reach:
        _check_size(path, logs, mark.log, 1)

    # The edit that made earlier logs superfluous has put a sequence number beyond all of them into the
    # manifest.
    following, newest = 0, 0
    live = [log for log in sorted(logs) if log >= manifest.first_log and logs[log].stat().st_size]
    for log in live:
        last = log == live[-1]
        # Records after the mark may be cut off, so they must be known here to be complete and not only torn.
        check_behind = must_reach if last else None
        with _mapped(logs[log]) as data:
            walk = RecordWalk(data)
            first, after = _walk_batches(walk, check_behind)
            if first is not None:
                _check_first(logs[log], first, following, logs.get(newest), manifest.last_sequence)
                following, newest = after, log
            confirmed = not last or (must_reach > 0 and following <= must_reach)
            cuts.append(_judge_end(logs[log], walk, mark, confirmed=confirmed, following=following))
    if must_reach and following <= must_reach:
        raise StoreCorrupt(
            str(logs[mark.log]),
            f"expected rows up to sequence number {must_reach}, which was synced, got {max(0, following - 1)}",
        )
    reached = max(manifest.last_sequence, following - 1)
    return Census(reached, newest, number, manifest_walk.whole, tuple(cut for cut in cuts if cut))


def find_bad_checksum(path: Path) -> tuple[Path, int] | None:
    """The log with a record that has a wrong checksum, and its position: RocksDB says only that there is one."""
    for log in sorted(path.glob("*.log")):
        if not log.stat().st_size:
            continue
        with _mapped(log) as data:
            for spans in RecordWalk(data):
                if not checksums_fit(data, spans):
                    return log, spans[0][0] - HEADER_BYTES
    return None


def current_manifest(path: Path, mark: Mark) -> tuple[Path, int]:
    """The manifest and its number, or `StoreCorrupt` if CURRENT does not name one that the mark allows."""
    current = path / "CURRENT"
    content = current.read_bytes()
    named = _MANIFEST_NAME.fullmatch(content)
    if named is None:
        raise StoreCorrupt(
            str(current), f"expected the name of a manifest and a newline, got {content[:40]!r}"
        )
    name, number = named[1].decode(), int(named[2])
    if number < mark.manifest:
        raise StoreCorrupt(
            str(current),
            f"expected it to name manifest {mark.manifest} or a later one, got {name}: the file is an older copy",
        )
    if not (path / name).exists():
        raise StoreCorrupt(str(current), f"expected it to name a file, got {name}, which is missing")
    return path / name, number


def _check_size(path: Path, logs: dict[int, Path], log: int, size: int) -> None:
    if log not in logs:
        raise StoreCorrupt(
            str(path / f"{log:06}.log"),
            f"the file is missing, and with it at least {size} bytes of confirmed changes",
        )
    found = logs[log].stat().st_size
    if found < size:
        raise StoreCorrupt(
            str(logs[log]),
            f"expected at least {size} bytes, got {found}: {size - found} bytes of confirmed changes are gone",
        )


def _check_first(log: Path, first: int, following: int, before: Path | None, last_in_tables: int) -> None:
    """`before`: the log that ends where this one must start."""
    if before is not None and first != following:
        raise StoreCorrupt(
            str(log),
            f"expected it to start at sequence number {following}, where {before.name} ends, got {first}:"
            " one of the two is another file, or a log between them is missing",
        )
    if before is None and first > last_in_tables + 1:
        raise StoreCorrupt(
            str(log),
            f"expected it to start at sequence number {last_in_tables + 1} or earlier, got {first}:"
            " it is another file, or a log before it is missing",
        )


def _walk_batches(walk: RecordWalk, check_behind: int | None) -> tuple[int | None, int]:
    """The first sequence number of a log and the one that must follow its last. Checksums are read behind
    `check_behind`.
    """
    data, first, following = walk.data, None, 0
    for spans in walk:
        start, end = spans[0]
        if end - start >= BATCH.size:
            sequence, rows = BATCH.unpack_from(data, start)
        else:
            head = joined(data, spans[:3])
            sequence, rows = BATCH.unpack_from(head) if len(head) >= BATCH.size else (-1, 0)
        if sequence < 0 or (first is not None and sequence != following):
            walk.defect = Defect(
                start, f"expected sequence number {following} in the record at byte {start}, got {sequence}"
            )
            break
        if check_behind is not None and sequence > check_behind and not checksums_fit(data, spans):
            walk.defect = Defect(start, f"wrong checksum of the record at byte {start}")
            break
        first, following = sequence if first is None else first, sequence + rows
    return first, following


def _judge_end(
    file: Path, walk: RecordWalk, mark: Mark, *, confirmed: bool, following: int = 0
) -> Cut | None:
    """What to cut off so that RocksDB can open strictly. Raises `StoreCorrupt` for a defect that no crash
    explains.
    """
    defect = walk.defect
    if defect is None:
        return None
    lost = f"{len(walk.data) - walk.whole} bytes from byte {walk.whole} on cannot be trusted"
    if confirmed:
        raise StoreCorrupt(str(file), f"{defect.what}, in changes that were confirmed; {lost}")
    if not mark.restarted and not defect.torn:
        raise StoreCorrupt(
            str(file), f"{defect.what}, and no crash explains it: the machine has not restarted since; {lost}"
        )
    if defect.torn and (end := find_true_end(walk.data, defect.at)) is not None:
        raise StoreCorrupt(
            str(file), f"{defect.what}, but its checksum says that it ends at byte {end}; {lost}"
        )
    # Without a restart every byte is as it was written, so the torn record reaches up to the end of the file.
    if mark.restarted and (behind := _record_behind(walk.data, defect.at, following)) is not None:
        raise StoreCorrupt(str(file), f"{defect.what}, and a whole record follows at byte {behind}; {lost}")
    return Cut(file, walk.whole, len(walk.data) - walk.whole)


def _record_behind(data: Data, at: int, following: int) -> int | None:
    """The position of a whole record after a defect. In a log its sequence number must be possible there.

    A payload may itself contain the bytes of a log, and a power failure may cut it short: those are not
    records of this log. Each row takes at least a byte, so the rows between here and there are bounded by the
    bytes.
    """
    for found in record_beginnings(data, at + 1):
        start = found + HEADER_BYTES
        if not following or (
            start + BATCH.size <= len(data)
            and 0 <= BATCH.unpack_from(data, start)[0] - following <= found - at
        ):
            return found
    return None


@contextmanager
def _mapped(file: Path) -> Iterator[mmap.mmap]:
    with open(file, "rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data
