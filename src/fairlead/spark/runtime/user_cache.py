"""A private directory of this user for files that all sessions share: launchers, log settings, class data.

Programs are started from here, so no other user may be able to write to it: the directory belongs to this
user, has mode 0700, and is not a link.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from fairlead.errors import SparkNotReady


def user_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_CACHE_HOME/fairlead`, else `~/.cache/fairlead`, else a directory among the temporary
    files. Makes the directory if it is missing.
    """
    refusals = []
    for place in _places(environ):
        try:
            return private_directory(place)
        except OSError as refusal:
            refusals.append(f"{place}: {refusal.strerror or refusal}")
    raise SparkNotReady(
        "a private cache directory",
        "; ".join(refusals),
        "set XDG_CACHE_HOME to a directory that only you can write to",
    )


def private_directory(path: Path) -> Path:
    """Make a directory with mode 0700, or set that mode. Raises OSError for a link, another kind of file, or
    a directory of another user.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise PermissionError(0, "is not a directory") from None
        if found.st_uid != os.geteuid():
            raise PermissionError(0, f"belongs to user {found.st_uid}") from None
        if found.st_mode & 0o077:
            path.chmod(0o700)
    return path


def kept_file(directory: Path, name: str, content: str, *, mode: int = 0o600) -> Path:
    """Keep a file with exactly this content. The file appears under its name only when it is complete."""
    path = directory / name
    try:
        if path.read_text() == content and stat.S_IMODE(path.lstat().st_mode) == mode:
            return path
    except OSError:
        pass
    handle, draft = tempfile.mkstemp(dir=directory)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(content)
        os.chmod(draft, mode)
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    return path


def digest(*parts: str) -> str:
    """A name for a file made from these parts."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _places(environ: Mapping[str, str]) -> Iterator[Path]:
    chosen = environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(chosen):
        yield Path(chosen, "fairlead")
    home = environ.get("HOME") or os.path.expanduser("~")
    if os.path.isabs(home) and os.path.isdir(home):
        yield Path(home, ".cache", "fairlead")
    yield Path(tempfile.gettempdir(), f"fairlead-{os.geteuid()}")
