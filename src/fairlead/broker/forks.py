"""A forked child has a copy of the broker's memory, but shares its files with the parent: it must not touch
them.
"""

from __future__ import annotations

import os
import weakref

from fairlead.broker.core import Core

_open: weakref.WeakSet[Core] = weakref.WeakSet()
#: Kept for good: letting go of the database would close it, in files that are the parent's.
_inherited: list[Core] = []


def watch(core: Core) -> None:
    """From now on a child of this process is told so when it uses this broker."""
    _open.add(core)


def _disown_all() -> None:
    for core in list(_open):
        core.disown()
        _inherited.append(core)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
