"""What ends a client besides its `close`: the end of the process, and a fork."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Any, Protocol


class Ending(Protocol):
    def close(self) -> None: ...

    def join(self) -> None: ...

    def disown(self) -> None: ...


_open: weakref.WeakSet[Any] = weakref.WeakSet()
#: Kept for good: letting go of a connection would close it, and gRPC does not work in a child.
_inherited: list[Ending] = []


def watch(core: Ending) -> None:
    _open.add(core)


def _close_all() -> None:
    """Threads that are inside pyarrow when the interpreter goes away would take the process down with them."""
    cores = list(_open)
    for core in cores:
        core.close()
    for core in cores:
        core.join()


def _disown_all() -> None:
    for core in list(_open):
        core.disown()
        _inherited.append(core)
    _open.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
