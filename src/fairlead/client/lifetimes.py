"""The end of clients without `close`: at the end of the process, and after a fork."""

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
#: Kept for ever: freeing a connection would close it, and gRPC does not work in a child.
_inherited: list[Ending] = []


def watch(core: Ending) -> None:
    _open.add(core)


def _close_all() -> None:
    """Close all clients. A thread inside pyarrow would crash the process when the interpreter exits."""
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
