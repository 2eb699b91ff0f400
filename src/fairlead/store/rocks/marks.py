"""How far the logs and the manifest of a directory must reach, in a small file beside them.

RocksDB takes a log that is missing, or shorter than it was, for an older state of the database. The marks
record what was synced, so that the census before the next open can distinguish an older state from a write
that no sync confirmed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fairlead.errors import StoreCorrupt, StoreLocked
from fairlead.store.boot_id import boot_id
from fairlead.store.modes import open_private
from fairlead.store.rocks.log_format import BLOCK_BYTES, HEADER_BYTES, RecordWalk

MARKS_FILE = "FAIRLEAD_SYNCED"
#: The sequence number of a batch's first row, and its number of rows: the beginning of every record in a log.
BATCH = struct.Struct("<QI")

#: A mark in the page cache survives a killed process. Only a power failure can lose it, so it is synced this
#: rarely.
SYNC_EVERY_S = 1.0
#: How often an unsynced commit leaves a mark. The mark counts until the machine restarts.
WRITTEN_EVERY_S = 0.01

#: A sector for each slot, so that no torn write damages two of them.
_SLOT_BYTES = 512
_SLOT = struct.Struct("<QQQQ16s")
_CHECKSUM = struct.Struct("<I")
_SYNCED_SLOTS, _WRITTEN_SLOT = (0, 1), 2
#: The clock of file times ticks every few milliseconds: two changes within one tick share a time.
_FILE_TICK_S = 0.02
_NO_BOOT = bytes(16)


@dataclass(frozen=True, slots=True)
class Mark:
    """The minimum that must be reached: the row with this sequence number, in this log (0: in tables), and
    this much of this manifest.
    """

    log: int = 0
    sequence: int = 0
    manifest: int = 0
    manifest_bytes: int = 0
    boot: bytes = _NO_BOOT

    @property
    def restarted(self) -> bool:
        """Whether the machine may have restarted since, and lost what was written and not synced."""
        return self.boot != boot_id()


class Marks:
    """The marks of a directory that is open for writing, and the lock that keeps other processes from opening
    it.

    Two slots take turns for what was synced, so that a torn write leaves the other. A third holds what was
    only written.
    """

    def __init__(self, path: Path, *, create: bool) -> None:
        """Raises `StoreLocked` if another broker has the directory, `StoreCorrupt` if it has no marks and
        none may be made.
        """
        self._path = path
        self._boot = boot_id() or _NO_BOOT
        self._turn = 0
        #: One thread syncs while another commits.
        self._finding = threading.Lock()
        self._synced_at = float("-inf")
        #: When an unsynced commit leaves a mark again.
        self.keeps_next_at = float("-inf")
        self._changed_ns, self._settled_at = -1, 0.0
        self._log = self._log_starts_at = 0
        self._manifest = self._manifest_whole = self._manifest_synced = 0
        try:
            self._file = open_private(path / MARKS_FILE, os.O_RDWR | (os.O_CREAT if create else 0))
        except FileNotFoundError:
            raise _missing(path) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as trouble:
            os.close(self._file)
            if isinstance(trouble, BlockingIOError):
                raise StoreLocked(str(path)) from None
            raise
        _held.add(self)

    def write_first(self) -> None:
        """For a directory in which nothing was stored yet."""
        _write_first(self._file, Mark())

    def before_sync(self, sequence: int) -> Mark:
        """What a sync that starts now will cover; pass it to `keep` afterwards."""
        with self._finding:
            return self._locate(sequence, synced=True)

    def keep(self, mark: Mark) -> None:
        self._turn ^= 1
        self._write(_SYNCED_SLOTS[self._turn], mark)
        now = time.monotonic()
        if now - self._synced_at >= SYNC_EVERY_S:
            os.fdatasync(self._file)
            self._synced_at = now

    def keep_written(self, last_sequence: Callable[[], int]) -> None:
        """Record what was written and not synced, unless the last record is recent; only then is
        `last_sequence` called. Never fails, because the write has happened.
        """
        now = time.monotonic()
        # A running sync may hold it for as long as the disk takes; the next commit tries again.
        if now < self.keeps_next_at or not self._finding.acquire(blocking=False):
            return
        try:
            self.keeps_next_at = now + WRITTEN_EVERY_S
            self._write(_WRITTEN_SLOT, self._locate(last_sequence(), synced=False))
        except OSError:
            # An older mark requires less, and refuses nothing. The next sync notices a disk that fails.
            return
        finally:
            self._finding.release()

    def close(self, sequence: int | None) -> None:
        """Sync the marks, with one up to `sequence` if given, and release the lock. Calling it twice is
        allowed.
        """
        if self not in _held:
            return
        # The directory is sound without a last mark, and without a sync of the marks.
        with contextlib.suppress(OSError):
            if sequence is not None:
                self.keep(self.before_sync(sequence))
            os.fsync(self._file)
        self.forget()

    def forget(self) -> None:
        """Close the file and leave its content unchanged: the process was forked, or the directory was not
        opened.
        """
        if self in _held:
            _held.discard(self)
            os.close(self._file)

    def _write(self, slot: int, mark: Mark) -> None:
        try:
            os.pwrite(self._file, _packed(mark), slot * _SLOT_BYTES)
        except OSError as trouble:
            # A copy-on-write file system may have no room. An older mark requires less, and refuses nothing.
            if trouble.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def _locate(self, sequence: int, *, synced: bool) -> Mark:
        self._find_log(sequence)
        try:
            self._measure_manifest(synced=synced)
        except FileNotFoundError:
            # RocksDB has just replaced it by a new one.
            self._changed_ns = -1
            self._find_log(sequence)
            self._measure_manifest(synced=synced)
        return Mark(self._log, sequence, self._manifest, self._manifest_whole, self._boot)

    def _find_log(self, sequence: int) -> None:
        """Find the log that holds the row. RocksDB starts a log at most a few times a second, and the
        directory's time tells when.
        """
        changed_ns = os.stat(self._path).st_mtime_ns
        now = time.monotonic()
        if changed_ns != self._changed_ns:
            self._changed_ns, self._settled_at = changed_ns, now + _FILE_TICK_S
        elif now >= self._settled_at and sequence >= self._log_starts_at:
            return
        # A manifest counts once CURRENT names it: RocksDB writes a new one first, and a crash may come in
        # between.
        manifest = int((self._path / "CURRENT").read_bytes()[len("MANIFEST-") :])
        if manifest != self._manifest:
            self._manifest, self._manifest_whole, self._manifest_synced = manifest, 0, 0
        self._log = self._log_starts_at = 0
        logs = (int(name[:-4]) for name in os.listdir(self._path) if name.endswith(".log"))
        for log in sorted(logs, reverse=True):
            first = _first_sequence(self._path / f"{log:06}.log")
            if first is not None and first <= sequence:
                self._log, self._log_starts_at = log, first
                return

    def _measure_manifest(self, *, synced: bool) -> None:
        """RocksDB may be in the middle of a write to its manifest: only whole records count, and only synced
        ones.
        """
        file = f"{self._path}/MANIFEST-{self._manifest:06}"
        if os.stat(file).st_size > self._manifest_whole:
            with open(file, "rb") as manifest:
                block = self._manifest_whole - self._manifest_whole % BLOCK_BYTES
                manifest.seek(block)
                walk = RecordWalk(manifest.read(), self._manifest_whole - block)
                for _ in walk:
                    pass
            self._manifest_whole = block + walk.whole
        if synced and self._manifest_synced < self._manifest_whole:
            with open(file, "rb") as manifest:
                os.fdatasync(manifest.fileno())
            self._manifest_synced = self._manifest_whole


@contextlib.contextmanager
def hold_unchanged(path: Path) -> Iterator[None]:
    """Keep brokers from opening the directory, without changing anything in it. Raises `StoreLocked`.

    A directory without marks is not locked, because no broker opens it.
    """
    try:
        file = os.open(path / MARKS_FILE, os.O_RDONLY)
    except FileNotFoundError:
        yield
        return
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreLocked(str(path)) from None
        yield
    finally:
        os.close(file)


def read_mark(path: Path) -> Mark:
    """The mark that counts, or `StoreCorrupt`."""
    try:
        data = (path / MARKS_FILE).read_bytes()
    except FileNotFoundError:
        raise _missing(path) from None
    marks = {
        slot: mark for slot in (*_SYNCED_SLOTS, _WRITTEN_SLOT) if (mark := _unpacked(data, slot)) is not None
    }
    if not any(slot in marks for slot in _SYNCED_SLOTS):
        raise StoreCorrupt(
            str(path / MARKS_FILE),
            "neither of its two marks can be read, so nothing says how far the logs must reach",
        )
    counted = [mark for slot, mark in marks.items() if slot != _WRITTEN_SLOT or not mark.restarted]
    return max(counted, key=lambda mark: (mark.sequence, mark.manifest, mark.manifest_bytes))


def write_mark(path: Path, mark: Mark) -> None:
    """Give a directory that no broker has open its first mark, synced."""
    file = open_private(path / MARKS_FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        _write_first(file, mark)
    finally:
        os.close(file)


def _write_first(file: int, mark: Mark) -> None:
    # All slots at once: later writes change bytes in place and need no room on a full disk.
    os.pwrite(
        file, b"".join(_packed(mark).ljust(_SLOT_BYTES, b"\0") for _ in (*_SYNCED_SLOTS, _WRITTEN_SLOT)), 0
    )
    os.fsync(file)


def _packed(mark: Mark) -> bytes:
    raw = _SLOT.pack(mark.log, mark.sequence, mark.manifest, mark.manifest_bytes, mark.boot)
    return raw + _CHECKSUM.pack(zlib.crc32(raw))


def _unpacked(data: bytes, slot: int) -> Mark | None:
    raw = data[slot * _SLOT_BYTES :][: _SLOT.size + _CHECKSUM.size]
    if len(raw) < _SLOT.size + _CHECKSUM.size or _CHECKSUM.unpack_from(raw, _SLOT.size)[0] != zlib.crc32(
        raw[: _SLOT.size]
    ):
        return None
    return Mark(*_SLOT.unpack_from(raw))


def _first_sequence(log: Path) -> int | None:
    """None for a log that is empty, or gone meanwhile."""
    try:
        with open(log, "rb") as file:
            head = file.read(HEADER_BYTES + BATCH.size)
    except FileNotFoundError:
        return None
    return None if len(head) < HEADER_BYTES + BATCH.size else int(BATCH.unpack_from(head, HEADER_BYTES)[0])


def _missing(path: Path) -> StoreCorrupt:
    return StoreCorrupt(
        str(path / MARKS_FILE), "the file is missing, so nothing says how far the logs must reach"
    )


#: A forked child inherits the lock with the file: left open there, it would keep the directory locked after
#: the parent's end.
_held: weakref.WeakSet[Marks] = weakref.WeakSet()


def _let_go_in_child() -> None:
    for marks in list(_held):
        marks.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)
