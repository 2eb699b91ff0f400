"""The checks of `fairlead doctor` on a data directory, or on the place for a new one."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fairlead.cli.charts import show_bytes
from fairlead.cli.findings import Finding
from fairlead.cli.lock_holder import find_holder, name_holder
from fairlead.config import Settings
from fairlead.errors import FairleadError
from fairlead.store.modes import readable_by_others, show_mode
from fairlead.store.rocks.format import FORMAT, FORMAT_FILE, check_format, read_format

_SKEW_S = 5.0
_FSYNCS = 20
_NETWORKED = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "ceph", "glusterfs")
_finding = partial(Finding, "data")


def data_directory(path: Path, settings: Settings) -> Iterator[Finding]:
    if not path.exists():
        above = next(parent for parent in path.absolute().parents if parent.exists())
        yield _finding(
            "directory", "info", f"{path} does not exist yet", f"fairlead serve --data {path} creates it"
        )
        yield writable(above)
        yield room(above, settings.disk_reserve_bytes)
        yield file_system(above)
        yield from fsync_time(above)
        return
    if not path.is_dir():
        yield _finding("directory", "bad", f"{path} is not a directory", "choose another --data")
        return
    rights = writable(path)
    yield rights
    if rights.level == "bad":
        return
    yield data_format(path)
    yield room(path, settings.disk_reserve_bytes)
    yield file_system(path)
    yield holder(path)
    yield modes(path)
    yield newest_file(path, time.time())
    yield from fsync_time(path if (path / FORMAT_FILE).exists() else path.absolute().parent)


def data_format(path: Path) -> Finding:
    if not (path / FORMAT_FILE).exists():
        if any(path.iterdir()):
            return _finding(
                "format",
                "bad",
                f"{path} has files but no {FORMAT_FILE}: it is not a fairlead data directory",
                "choose a new or empty directory",
            )
        return _finding("format", "info", f"{path} is empty: a broker turns it into a data directory")
    try:
        check_format(path)
    except FairleadError as error:
        return _finding(
            "format", "bad", error.message, "restore a backup, or use the version of fairlead that wrote it"
        )
    return _finding(
        "format", "ok", f"{path} has format {read_format(path)}; this fairlead reads formats up to {FORMAT}"
    )


def writable(path: Path) -> Finding:
    if os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return _finding("rights", "ok", f"this user can read and write {path}")
    advice = f"chown or chmod the directory, or run as its owner (uid {path.stat().st_uid})"
    return _finding("rights", "bad", f"this user cannot read and write {path}", advice)


def room(path: Path, reserve: int) -> Finding:
    free = shutil.disk_usage(path).free
    found = f"{show_bytes(free)} free, the reserve is {show_bytes(reserve)}"
    if free < reserve:
        return _finding(
            "disk space",
            "bad",
            found,
            "free some space: until then requests that grow the store are refused; settles and purges still work",
        )
    if free < 4 * reserve:
        return _finding("disk space", "warn", found, "free some space before enqueues are refused")
    return _finding("disk space", "ok", found)


def file_system(path: Path) -> Finding:
    kind = _file_system_of(path)
    if kind in _NETWORKED:
        return _finding(
            "file system",
            "warn",
            f"{kind} is a network file system",
            "use a local disk: syncs and locks on a network file system may not be reliable",
        )
    if kind in ("tmpfs", "ramfs"):
        return _finding(
            "file system",
            "warn",
            f"{kind} is in memory",
            "use a disk: a restart of the machine loses everything",
        )
    return _finding("file system", "ok" if kind else "info", kind or "unknown on this system")


def _file_system_of(path: Path) -> str:
    """Return the type of the mount point nearest above the path, or "" when the system does not list mounts."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return ""
    where = path.resolve()
    above = [
        (len(point), number, kind)
        for number, (_, point, kind, *_) in enumerate(mounts)
        if where.is_relative_to(point.replace("\\040", " "))
    ]
    return max(above)[2] if above else ""


def holder(path: Path) -> Finding:
    process_id = find_holder(path)
    if process_id is None:
        return _finding("open in", "ok", "no process is known to have the directory open")
    return _finding(
        "open in",
        "info",
        name_holder(process_id),
        "use its server with other commands: --addr HOST:PORT",
    )


def modes(path: Path) -> Finding:
    entries = [path, *path.iterdir()]
    bits = 0
    for entry in entries:
        bits |= entry.lstat().st_mode
    if bits & 0o022:
        return _finding("modes", "warn", "other users may change its files", f"chmod -R go-w {path}")
    if (open_to_others := readable_by_others(path)) is not None:
        found = f"other users can read {open_to_others} (mode {show_mode(open_to_others)})"
        return _finding("modes", "warn", found, f"chmod -R go-rwx {path}, unless other users should read it")
    return _finding("modes", "ok", "only its owner may read and change its files")


def newest_file(path: Path, now_s: float) -> Finding:
    latest = max((entry.lstat().st_mtime for entry in path.iterdir()), default=0.0)
    if latest > now_s + _SKEW_S:
        advice = "the clock was set back: after a restart of the machine, due times come later by the time it was off"
        return _finding("clock", "warn", f"its newest file is {latest - now_s:.0f} s in the future", advice)
    return _finding("clock", "ok", "no file has a time in the future")


def fsync_time(path: Path) -> Iterator[Finding]:
    """Measure fsync: with durability fsync, every confirmed call waits for one or shares one."""
    if not os.access(path, os.W_OK):
        return
    file = path / f".fairlead-doctor-{os.getpid()}"
    took = []
    try:
        with open(file, "xb", buffering=0) as writing:
            for _ in range(_FSYNCS):
                writing.write(b"x" * 4096)
                began = time.perf_counter()
                os.fsync(writing.fileno())
                took.append((time.perf_counter() - began) * 1000)
    except OSError as trouble:
        yield _finding(
            "fsync",
            "bad",
            f"a file in {path} could not be written and synced: {trouble.strerror}",
            "check the disk",
        )
        return
    finally:
        file.unlink(missing_ok=True)
    yield _finding(
        "fsync", "info", f"{statistics.median(took):.2f} ms (p50 of {_FSYNCS}), {max(took):.2f} ms at most"
    )
