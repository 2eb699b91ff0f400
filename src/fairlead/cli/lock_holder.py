"""Find the process that has a data directory open, without touching its lock.

Trying the lock would be simpler, but closing the lock file would release the lock of a broker in this
process.
"""

from __future__ import annotations

import os
from pathlib import Path

from fairlead.errors import StoreLocked


def find_holder(directory: Path) -> int | None:
    """Return the process id of the broker that has the directory open, 0 for a process that the system hides,
    or None.

    None is also the answer where the system has no /proc/locks: there, only opening the directory tells.
    """
    try:
        file = os.stat(directory / "LOCK")
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    wanted = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    for line in lines:
        # "1: POSIX  ADVISORY  WRITE 18888 fe:00:9994434 0 EOF"; a waiting process has "->" after the number.
        fields = line.split()
        if len(fields) >= 6 and fields[1] == "POSIX" and fields[3] == "WRITE" and fields[5] == wanted:
            return max(0, int(fields[4]))
    return None


def name_holder(process_id: int) -> str:
    if not process_id:
        return "another process"
    try:
        words = Path(f"/proc/{process_id}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        words = []
    # Shorten "/usr/bin/python /opt/bin/fairlead serve" to "python fairlead serve": the text is cut at 80
    # characters.
    named = [word.rpartition("/")[2] if at < 2 else word for at, word in enumerate(words) if word]
    return f"process {process_id}" + (f" ({' '.join(named)[:80]})" if named else "")


def refuse_if_open(directory: Path) -> None:
    """Raise `StoreLocked`, with a note that names the process, when a broker has the directory open."""
    holder = find_holder(directory)
    if holder is not None:
        locked = StoreLocked(str(directory))
        locked.add_note(f"it is open in {name_holder(holder)}")
        raise locked
