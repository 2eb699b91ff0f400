"""Read every row of a damaged directory that can be read, without writing into it.

A `Salvage` makes a database of its own in a scratch directory and lets RocksDB merge what is left by sequence
number:

* Logs are written anew, under their numbers, with the records that are whole and have right checksums. Behind a defect the
  walk goes on at the next record, or, if the defect's length cannot be trusted, at the next block.
* The manifest is written anew. It names the tables that the damaged one names, or, if that one cannot be read, all tables.
* Tables are links. A table with damaged properties is a copy that is read by its index (`mend.py`). A table that cannot be
  opened even so is left out. Where a block of a table cannot be read, the rows of that key range come from the other tables
  and the logs: they may be older than the rows that are gone.

`damages` says which files could not be read, and where. `gaps` says which commits are in no log any more.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rocksdict import Rdict, RdictIter, ReadOptions

from fairlead.errors import StoreCorrupt
from fairlead.store.rocks.log_format import (
    HEADER_BYTES,
    RecordWalk,
    Spans,
    checksums_fit,
    joined,
    next_beginning,
    packed_records,
    restored_header,
)
from fairlead.store.rocks.manifest import Manifest, read_manifest
from fairlead.store.rocks.marks import BATCH, MARKS_FILE, Mark, read_mark
from fairlead.store.rocks.mend import has_no_ranges, mend_table
from fairlead.store.rocks.options import MIB
from fairlead.store.rocks.private import find_refused, open_private

_BLOCK_OF_TABLE = re.compile(r"(\d{6,})\.sst(?: offset (\d+) size (\d+))?")
_FAMILY_OF_TABLE = re.compile(rb"column\.family\.id(.)\x16\x04(.)name", re.DOTALL)
_FAMILY_IN_OPTIONS = re.compile(r'^\[CFOptions "(.+)"\]$', re.MULTILINE)
_CURRENT = re.compile(rb"MANIFEST-(\d{6,})\n")
#: The rows that a batch of ours consists of, each with the number of its family.
_PAGE_ROWS, _PAGE_BYTES = 2000, 4 * MIB
_MAX_KEY_BYTES = 4096
_NO_MANIFEST = "nothing says which tables belong to the data: some may be gone, and deleted rows may be back"


@dataclass(frozen=True, slots=True)
class Damage:
    """A part of a file that is missing or cannot be read. `end` 0: the file's end. `harmless`: no row is lost
    with it.
    """

    file: str
    start: int
    end: int
    what: str
    harmless: bool = False


@dataclass(frozen=True, slots=True)
class Gap:
    """Rows with these sequence numbers are in no log. 0 as a bound of the commits means unknown."""

    first_sequence: int
    last_sequence: int
    first_commit: int
    last_commit: int


@dataclass(frozen=True, slots=True)
class Row:
    """`stale`: a later change of the row may have been in a part that cannot be read."""

    key: bytes
    value: bytes
    stale: bool


@dataclass(frozen=True, slots=True)
class _BadBlock:
    table: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class SalvageLayout:
    """What the reader must know about the rows. `commit_row`: the row with the commit number inside a batch,
    up to `commit_offset` bytes before the number.
    """

    families: tuple[str, ...]
    commit_row: bytes
    commit_offset: int = 0

    def commit_of(self, batch: bytes) -> int:
        """The number of the commit that wrote this batch; 0 if no commit did. The row is the last of its
        family.
        """
        at = batch.rfind(self.commit_row)
        start = at + len(self.commit_row) + self.commit_offset
        return int.from_bytes(batch[start : start + 8], "big") if at >= 0 else 0


class Salvage:
    def __init__(
        self, damaged: Path, scratch: Path, *, step: Callable[[str], None], layout: SalvageLayout
    ) -> None:
        """Reads all logs. `scratch` is an empty directory; `step` is called with the name of each file."""
        self._path, self._scratch = damaged, scratch
        self._step = step
        self._layout = layout
        self.damages: list[Damage] = []
        self.gaps: list[Gap] = []
        #: The greatest commit number in the logs.
        self.last_commit = 0
        self._noted: set[_BadBlock] = set()
        #: Copies of tables that RocksDB cannot open otherwise.
        self._mended: dict[int, Path] = {}
        self._views: dict[frozenset[int], _View] = {}
        mark = self._read_mark()
        self._manifest, known = self._read_manifest(mark)
        if known:
            self._check_tables()
        else:
            self._find_tables()
        (scratch / "logs").mkdir()
        self._rewrite_logs(mark, known)
        self._unopenable = self._find_unopenable()

    def close(self) -> None:
        for view in self._views.values():
            view.close()
        self._views.clear()

    def rows(self, family: str) -> Iterator[Row]:
        """In the order of their keys."""
        if family not in ("default", *self._manifest.families.values()):
            return iter(())
        return self._rows(family, b"", None, self._unopenable)

    # Tables

    def _rows(self, family: str, start: bytes, end: bytes | None, excluded: frozenset[int]) -> Iterator[Row]:
        view = self._view(excluded)
        while True:
            page, bad = view.page(family, start, end)
            for key, value in page:
                yield Row(key, value, excluded != self._unopenable)
            if page:
                start = page[-1][0] + b"\0"
            if bad is not None:
                self._note(bad)
                behind = view.end_of(bad, family, start, end)
                yield from self._rows(family, start, behind or end, excluded | {bad.table})
                if behind is None:
                    return
                start = behind
            elif not page:
                return

    def _note(self, bad: _BadBlock) -> None:
        if bad not in self._noted:
            self._noted.add(bad)
            what = "a block has a wrong checksum" if bad.size else "the table cannot be read"
            self.damages.append(Damage(f"{bad.table:06}.sst", bad.start, bad.start + bad.size, what))

    def _view(self, excluded: frozenset[int]) -> _View:
        if excluded not in self._views:
            tables = [table for table in self._manifest.tables if table not in excluded]
            self._views[excluded] = self._make_view(tables)
        return self._views[excluded]

    def _make_view(self, tables: list[int]) -> _View:
        logs = (self._scratch / "logs").iterdir()
        return _View(open_private(self._scratch, self._manifest, self._files(tables), logs))

    def _files(self, tables: Iterable[int]) -> dict[int, Path]:
        return {table: self._mended.get(table, self._path / f"{table:06}.sst") for table in tables}

    def _find_unopenable(self) -> frozenset[int]:
        """Tables that RocksDB refuses to open. They are searched only if not all can be opened together."""
        try:
            self._view(frozenset())
        except Exception as trouble:
            first = trouble
        else:
            return frozenset()
        refused = find_refused(self._scratch, self._manifest, self._files(self._manifest.tables))
        if not refused:
            raise StoreCorrupt(
                str(self._path), f"RocksDB opens each table, but not all of them with the logs: {first}"
            ) from first
        unopenable = {table for table, why in refused.items() if not self._mend(table, why)}
        for table in sorted(unopenable):
            what = f"the table cannot be opened: {refused[table]}"
            self.damages.append(Damage(f"{table:06}.sst", 0, 0, what))
        return frozenset(unopenable)

    def _mend(self, table: int, why: str) -> bool:
        """Read a table without its properties, if its index is sound."""
        file = self._path / f"{table:06}.sst"
        mended = mend_table(file, self._scratch / f"mended-{table:06}")
        if mended is None or find_refused(self._scratch, self._manifest, {table: mended}):
            return False
        self._mended[table] = mended
        harmless = has_no_ranges(file)
        lost = "" if harmless else "; rows may be back that were deleted as a range"
        what = f"the properties of the table cannot be read: {why}{lost}"
        self.damages.append(Damage(file.name, 0, 0, what, harmless=harmless))
        return True

    def _check_tables(self) -> None:
        # The manifest does not name the default family, which RocksDB makes by itself.
        tables, families = self._manifest.tables, {0: "default", **self._manifest.families}
        for table in list(tables):
            file = self._path / f"{table:06}.sst"
            if not file.exists():
                family = families.get(tables.pop(table), "?")
                self.damages.append(Damage(file.name, 0, 0, f"the file is missing, a table of {family}"))
            elif (
                (found := self._family_of(file)) is not None
                and found[0] != tables[table]
                and families.get(found[0]) == found[1]
            ):
                expected, tables[table] = families.get(tables[table], "?"), found[0]
                self.damages.append(
                    Damage(
                        file.name,
                        0,
                        0,
                        f"expected a table of {expected}, found one of {found[1]}: it is another file",
                    )
                )

    def _find_tables(self) -> None:
        """Without a manifest: every table of the directory, with the family that stands in the table itself."""
        manifest = self._manifest
        manifest.tables, manifest.family_logs, manifest.closed_logs, manifest.min_log_to_keep = {}, {}, {}, 0
        self._name_families()
        for file in sorted(self._path.glob("*.sst")):
            found = self._family_of(file)
            if found is None:
                self.damages.append(Damage(file.name, 0, 0, "the family of the table cannot be read"))
            else:
                # RocksDB creates the default family, number 0, by itself.
                manifest.families |= {found[0]: found[1]} if found[0] else {}
                manifest.tables[int(file.stem)] = found[0]
        missing = set(self._layout.families) - set(manifest.families.values())
        if missing:
            what = (
                f"the numbers of {len(missing)} families are not known; their rows in the logs cannot be read"
            )
            self.damages.append(Damage("MANIFEST", 0, 0, what))
            free = iter(range(10_000, 20_000))
            manifest.families |= {next(free): family for family in sorted(missing)}

    def _family_of(self, table: Path) -> tuple[int, str] | None:
        with open(table, "rb") as file:
            file.seek(max(0, table.stat().st_size - 64 * 1024))
            end = file.read()
        for found in _FAMILY_OF_TABLE.finditer(end):
            name = end[found.end() : found.end() + found[2][0]].decode("utf-8", "replace")
            if name in ("default", *self._layout.families):
                return found[1][0], name
        return None

    def _name_families(self) -> None:
        """RocksDB lists the families in its option files in the order of their numbers."""
        for file in sorted(self._path.glob("OPTIONS-*"), reverse=True):
            names = _FAMILY_IN_OPTIONS.findall(file.read_text("utf-8", "replace"))
            if set(names) == {"default", *self._layout.families}:
                self._manifest.families |= {number: name for number, name in enumerate(names) if number}
                return

    # Marks and manifest

    def _read_mark(self) -> Mark | None:
        try:
            return read_mark(self._path)
        except StoreCorrupt as damage:
            self.damages.append(Damage(MARKS_FILE, 0, 0, f"{damage.what}; rows at the end may be gone"))
            return None

    def _read_manifest(self, mark: Mark | None) -> tuple[Manifest, bool]:
        """The manifest, and whether it is certain which tables there are."""
        file = self._find_manifest(mark)
        if file is None:
            self.damages.append(Damage("MANIFEST", 0, 0, f"the file is missing; {_NO_MANIFEST}"))
            return Manifest(), False
        manifest, walk = read_manifest(file.read_bytes())
        synced = mark.manifest_bytes if mark is not None and int(file.name[9:]) == mark.manifest else 0
        if walk.defect is not None and (walk.whole < synced or not walk.defect.torn):
            self.damages.append(
                Damage(file.name, walk.whole, len(walk.data), f"{walk.defect.what}; {_NO_MANIFEST}")
            )
            return manifest, False
        if walk.whole < synced:
            self.damages.append(
                Damage(file.name, walk.whole, synced, f"the file is cut short; {_NO_MANIFEST}")
            )
            return manifest, False
        return manifest, True

    def _find_manifest(self, mark: Mark | None) -> Path | None:
        present = {
            int(file.name[9:]): file for file in self._path.glob("MANIFEST-*") if file.name[9:].isdigit()
        }
        try:
            named = _CURRENT.fullmatch((self._path / "CURRENT").read_bytes())
        except OSError:
            named = None
        number = int(named[1]) if named else -1
        if number in present and (mark is None or number >= mark.manifest):
            return present[number]
        self.damages.append(
            Damage("CURRENT", 0, 0, "the file does not name the manifest", harmless=bool(present))
        )
        return present[max(present)] if present else None

    # Logs

    def _rewrite_logs(self, mark: Mark | None, known: bool) -> None:
        manifest = self._manifest
        logs = {int(file.stem): file for file in self._path.glob("*.log") if file.stem.isdigit()}
        wanted = {log: size for log, size in manifest.closed_logs.items() if log >= manifest.first_log}
        if mark is not None and mark.log >= manifest.first_log:
            wanted.setdefault(mark.log, 1)
        for log, size in wanted.items():
            if log not in logs:
                self.damages.append(Damage(f"{log:06}.log", 0, 0, "the file is missing"))
            elif (found := logs[log].stat().st_size) < size:
                self.damages.append(Damage(f"{log:06}.log", found, size, "the file is cut short"))
        following = manifest.last_sequence + 1 if known else 0
        reader = _LogReader(self.damages, self.gaps, following, self._layout.commit_of)
        for log in sorted(log for log in logs if log >= manifest.first_log):
            self._step(logs[log].name)
            with open(self._scratch / "logs" / logs[log].name, "wb") as file:
                file.writelines(packed_records(reader.read(logs[log])))
        if mark is not None and mark.log >= manifest.first_log:
            reader.finish(mark)
        self.last_commit = reader.commit


class _LogReader:
    """The readable batches of all logs in order. Notes what is missing between them."""

    def __init__(
        self,
        damages: list[Damage],
        gaps: list[Gap],
        highest_start: int,
        commit_of: Callable[[bytes], int],
    ) -> None:
        """`highest_start`: the first log starts at this sequence number or an earlier one (0: not known)."""
        self._damages, self._gaps = damages, gaps
        self._commit_of = commit_of
        self._highest_start = highest_start
        self._following = 0
        #: A defect behind the last batch that was read.
        self._unfinished: Damage | None = None
        self.commit = 0

    def read(self, file: Path) -> Iterator[bytes]:
        if not file.stat().st_size:
            return
        with open(file, "rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_COPY) as data:
            for start, end, found in readable_records(data):
                batch = joined(data, found) if isinstance(found, list) else b""
                if len(batch) < BATCH.size:
                    self._unfinished = Damage(file.name, start, end, str(found))
                    self._damages.append(self._unfinished)
                    continue
                sequence, rows = BATCH.unpack_from(batch)
                if sequence < self._following:
                    what = f"a batch out of order: expected sequence number {self._following}, got {sequence}"
                    self._damages.append(Damage(file.name, start, end, what))
                    continue
                commit = self._commit_of(batch)
                self._note_gap(sequence, commit)
                self._following, self.commit = sequence + rows, commit or self.commit
                self._unfinished = None
                yield batch

    def finish(self, mark: Mark) -> None:
        """The logs must reach the mark. After it, a write that a crash cut short was never confirmed."""
        if self._following <= mark.sequence:
            first = self._following or self._highest_start
            self._gaps.append(Gap(first, mark.sequence, self.commit + 1 if self.commit else 0, 0))
        elif self._unfinished is not None:
            self._damages[self._damages.index(self._unfinished)] = replace(self._unfinished, harmless=True)

    def _note_gap(self, sequence: int, commit: int) -> None:
        expected = self._following or min(self._highest_start or sequence, sequence)
        if sequence > expected:
            first = self.commit + 1 if self.commit else 0
            self._gaps.append(Gap(expected, sequence - 1, first, max(0, commit - 1)))


def readable_records(data: mmap.mmap, at: int | None = 0) -> Iterator[tuple[int, int, Spans | str]]:
    """Start, end and spans of every record that can be read, and between them what cannot be read and why.

    `data` is a private copy: a header whose type or length is damaged is put right in it.
    """
    while at is not None and at < len(data):
        walk = RecordWalk(data, at)
        wrong = None
        for spans in walk:
            if not checksums_fit(data, spans):
                wrong = spans
                break
            at = spans[-1][1]
            yield spans[0][0] - HEADER_BYTES, at, spans
        if wrong is not None:
            bad = [start - HEADER_BYTES for start, end in wrong if not checksums_fit(data, [(start, end)])]
            restored = [_restore(data, header) for header in bad]
            if not all(restored):
                start, at = wrong[0][0] - HEADER_BYTES, wrong[-1][1]
                yield start, at, f"wrong checksum of the record at byte {start}"
        elif walk.defect is None:
            return
        elif walk.defect.torn or not _restore(data, walk.defect.at):
            start, at = walk.whole, next_beginning(data, walk.defect.at)
            yield start, len(data) if at is None else at, walk.defect.what


def _restore(data: mmap.mmap, at: int) -> bool:
    header = restored_header(data, at)
    if header is None or header == data[at : at + HEADER_BYTES]:
        return False
    data[at : at + HEADER_BYTES] = header
    return True


class _View:
    """A private database, open for reading."""

    def __init__(self, db: Rdict) -> None:
        self._db = db

    def close(self) -> None:
        self._db.close()

    def page(
        self, family: str, start: bytes, end: bytes | None
    ) -> tuple[list[tuple[bytes, bytes]], _BadBlock | None]:
        """The next rows, up to the end or to a block that cannot be read."""
        page: list[tuple[bytes, bytes]] = []
        size = 0
        try:
            rows = self._iter(family, end)
            rows.seek(start)
            while rows.valid() and len(page) < _PAGE_ROWS and size < _PAGE_BYTES:
                page.append((rows.key(), rows.value()))
                size += len(page[-1][1])
                rows.next()
            rows.status()
        except Exception as trouble:
            return page, _bad_block(trouble)
        return page, None

    def end_of(self, bad: _BadBlock, family: str, start: bytes, end: bytes | None) -> bytes | None:
        """The first key behind a block that cannot be read: a search for the greatest key whose search meets
        the block.
        """
        if not bad.size:
            return None

        def meets(key: bytes) -> bool:
            return key < start or self._first_bad(family, key, end) == bad

        greatest = b""
        while len(greatest) < _MAX_KEY_BYTES:
            low, high = -1, 256
            while high - low > 1:
                middle = (low + high) // 2
                if meets(greatest + bytes((middle,))):
                    low = middle
                else:
                    high = middle
            if low < 0:
                return greatest + b"\0"
            greatest += bytes((low,))
        return None

    def _first_bad(self, family: str, key: bytes, end: bytes | None) -> _BadBlock | None:
        try:
            rows = self._iter(family, end)
            rows.seek(key)
            rows.status()
        except Exception as trouble:
            return _bad_block(trouble)
        return None

    def _iter(self, family: str, end: bytes | None) -> RdictIter:
        options = ReadOptions()
        if end is not None:
            options.set_iterate_upper_bound(end)
        return self._db.get_column_family(family).iter(options)


def _bad_block(trouble: Exception) -> _BadBlock:
    named = _BLOCK_OF_TABLE.search(str(trouble))
    if named is None:
        raise trouble
    return _BadBlock(int(named[1]), int(named[2] or 0), int(named[3] or 0))
