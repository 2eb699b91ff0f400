"""The times that a store remembers over a restart."""

from __future__ import annotations

import msgspec


class ClockMark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Three readings of one moment: the store's own time, the wall clock, and steady time counted from
    `origin`.

    `origin` is empty if nothing identifies the boot of the machine. `life` is the store's boot number.
    `closed` means that this life ended here, with nothing after the mark.
    """

    store_ms: int
    wall_ms: int
    steady_ms: int
    origin: bytes
    life: int
    closed: bool = False
