"""Who else on this machine may read what is stored. What we make is its owner's alone; what is there is left
as it is, and said.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

#: Of what we make: messages are nobody's business but their broker's.
DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
_OTHERS_ENTER = 0o011
_OTHERS_READ = 0o044


def readable_by_others(directory: Path) -> Path | None:
    """The directory or the first file in it that others than its owner can read; None when there is none.

    What others may not enter they cannot read, whatever its files say.
    """
    if directory.stat().st_mode & _OTHERS_ENTER == 0:
        return directory if directory.stat().st_mode & _OTHERS_READ else None
    for entry in sorted(directory.iterdir()):
        if entry.lstat().st_mode & _OTHERS_READ and not entry.is_symlink():
            return entry
    return directory if directory.stat().st_mode & _OTHERS_READ else None


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """An opener for `open`: a file it makes is its owner's alone, whatever the umask."""
    return os.open(path, flags, FILE_MODE)


def show_mode(path: Path) -> str:
    return f"{stat.S_IMODE(path.stat().st_mode):04o}"
