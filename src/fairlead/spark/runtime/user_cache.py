"""A directory of this user's own, for what is made once and used by every session: the launcher, log
settings, class data.

Programs are started from here, so nobody else may be able to put something in: the directory belongs to this
user, only he can enter it, and it is no link.
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
    """`$XDG_CACHE_HOME/fairlead`, else `~/.cache/fairlead`, else one in the directory for temporary files;
    made if need be.
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
    """Make it with mode 0700, or check that it is one already. Raises OSError if it is not, or cannot become,
    only ours.
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
    """A file with exactly this content. Whoever opens it sees all of it: it appears under its name when it is
    complete.
    """
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
    """A name for what is made of these parts."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _places(environ: Mapping[str, str]) -> Iterator[Path]:
    chosen = environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(chosen):
        yield Path(chosen, "fairlead")
    home = environ.get("HOME") or os.path.expanduser("~")
    if os.path.isabs(home) and os.path.isdir(home):
        yield Path(home, ".cache", "fairlead")
    yield Path(tempfile.gettempdir(), f"fairlead-{os.geteuid()}")
