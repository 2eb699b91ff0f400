"""Which other users of this machine may read stored data. Files that fairlead creates are readable by their
owner alone; the modes of existing files are reported, not changed.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

#: The mode of created directories: nobody but the broker's user needs to read messages.
DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
_OTHERS_ENTER = 0o011
_OTHERS_READ = 0o044


def readable_by_others(directory: Path) -> Path | None:
    """The directory, or the first file in it, that users other than its owner can read; None if there is
    none.

    Users who may not enter the directory cannot read its files, whatever their modes.
    """
    if directory.stat().st_mode & _OTHERS_ENTER == 0:
        return directory if directory.stat().st_mode & _OTHERS_READ else None
    for entry in sorted(directory.iterdir()):
        if entry.lstat().st_mode & _OTHERS_READ and not entry.is_symlink():
            return entry
    return directory if directory.stat().st_mode & _OTHERS_READ else None


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """An opener for `open`: a file that it creates is readable by its owner alone, whatever the umask."""
    return os.open(path, flags, FILE_MODE)


def show_mode(path: Path) -> str:
    return f"{stat.S_IMODE(path.stat().st_mode):04o}"
