"""Identifies the boot of the machine."""

from __future__ import annotations

from pathlib import Path


def boot_id() -> bytes | None:
    """16 bytes that change each time the kernel starts, or None where the system has no such number.

    Data that was written and not synced survives while this value stays the same.
    """
    try:
        found = bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text("ascii").replace("-", ""))
    except (OSError, ValueError):
        return None
    return found if len(found) == 16 else None
