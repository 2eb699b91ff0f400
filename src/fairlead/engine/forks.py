"""A forked child has a copy of the broker's memory, but shares its files with the parent. It must not touch
them.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    def disown(self) -> None:
        """In a forked child: answer nothing more, and touch no file."""
        ...


_open: weakref.WeakSet[Forkable] = weakref.WeakSet()
#: Never freed: freeing the database would close it, in files that belong to the parent.
_inherited: list[Forkable] = []


def watch(engine: Forkable) -> None:
    """Call `disown` in every child process forked from now on."""
    _open.add(engine)


def _disown_all() -> None:
    for engine in list(_open):
        engine.disown()
        _inherited.append(engine)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
