"""Find the ends of a directory's files that no sync confirmed.

After a power failure the disk may hold later pages without earlier ones, or records of the next log without
the end of the log before it. The data up to the mark is complete, but the broker refuses to open it, because
damage looks the same. `find_cuts` cuts every log at the first defect after the mark and drops everything
later. A defect before the mark is damage, and is refused.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

from fairlead.errors import StoreCorrupt
from fairlead.salvage.report import DroppedEnd
from fairlead.store.rocks.census import current_manifest
from fairlead.store.rocks.log_format import RecordWalk, checksums_fit, joined
from fairlead.store.rocks.manifest import Manifest, read_manifest
from fairlead.store.rocks.marks import BATCH, Mark, read_mark
from fairlead.store.rocks.salvage import readable_records


@dataclass(frozen=True, slots=True)
class Kept:
    """The number of bytes kept of each file. A file without an entry is kept whole; one with 0 bytes is left
    out.
    """

    sizes: dict[str, int]
    dropped: list[DroppedEnd]


@dataclass(slots=True)
class _Log:
    whole: int
    size: int
    following: int
    defect: str


def find_cuts(path: Path) -> Kept:
    """Raises `StoreCorrupt` if a defect lies before the mark, or if the mark or the manifest is missing."""
    mark = read_mark(path)
    file, number = current_manifest(path, mark)
    manifest, walk = read_manifest(file.read_bytes())
    kept = Kept({}, [])
    if walk.defect is not None:
        if number == mark.manifest and walk.whole < mark.manifest_bytes:
            raise _before_mark(file, walk.defect.what)
        _drop(kept, file, walk.whole, len(walk.data), 0, 0)
    _cut_logs(path, manifest, mark, kept)
    return kept


def _cut_logs(path: Path, manifest: Manifest, mark: Mark, kept: Kept) -> None:
    must_reach = mark.sequence if mark.log >= manifest.first_log else 0
    logs = sorted(
        log for log in path.glob("*.log") if log.stem.isdigit() and int(log.stem) >= manifest.first_log
    )
    following, cut = 0, ""
    for log in logs:
        # RocksDB records a closed log in the manifest only after it has synced that log and all logs before
        # it.
        synced_bytes = manifest.closed_logs.get(int(log.stem), 0)
        if cut:
            if synced_bytes:
                raise _before_mark(log, cut)
            _drop(kept, log, 0, log.stat().st_size, *_count(log, 0))
            continue
        found = _walk(log, following)
        following = found.following or following
        if found.defect and (0 < must_reach >= following or found.whole < synced_bytes):
            raise _before_mark(log, found.defect)
        if found.defect:
            cut = f"{log.name}: {found.defect}"
            _drop(kept, log, found.whole, found.size, *_count(log, found.whole))
    if 0 < must_reach >= following:
        raise _before_mark(
            path, f"expected logs that reach sequence number {must_reach}, got {max(0, following - 1)}"
        )


def _walk(log: Path, following: int) -> _Log:
    """Read the log up to the first defect of its format, its order or a checksum."""
    size = log.stat().st_size
    if not size:
        return _Log(0, 0, 0, "")
    with open(log, "rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        walk, whole = RecordWalk(data), 0
        for spans in walk:
            head = joined(data, spans[:3])[: BATCH.size]
            sequence, rows = BATCH.unpack(head) if len(head) == BATCH.size else (-1, 0)
            if sequence < 0 or (following and sequence != following):
                return _Log(
                    whole,
                    size,
                    following,
                    f"expected sequence number {following} at byte {whole}, got {sequence}",
                )
            if not checksums_fit(data, spans):
                return _Log(whole, size, following, f"wrong checksum of the record at byte {whole}")
            following, whole = sequence + rows, spans[-1][1]
        return _Log(whole, size, following, walk.defect.what if walk.defect else "")


def _count(log: Path, start: int) -> tuple[int, int]:
    """The batches and rows in the records that can be read from `start` on."""
    if not log.stat().st_size:
        return 0, 0
    with open(log, "rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_COPY) as data:
        found = [
            joined(data, spans) for _, _, spans in readable_records(data, start) if isinstance(spans, list)
        ]
    return len(found), sum(BATCH.unpack_from(batch)[1] for batch in found if len(batch) >= BATCH.size)


def _drop(kept: Kept, file: Path, whole: int, size: int, batches: int, rows: int) -> None:
    if whole < size:
        kept.sizes[file.name] = whole
        kept.dropped.append(DroppedEnd(file.name, whole, size - whole, batches, rows))


def _before_mark(file: Path, what: str) -> StoreCorrupt:
    return StoreCorrupt(
        str(file),
        f"{what}, in changes that a sync confirmed: this is damage, which cut_unsynced does not repair",
    )
