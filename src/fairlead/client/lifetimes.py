"""What ends a client besides its `close`: the end of the process, a fork, a loop that was left."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from queue import SimpleQueue
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


class Stoppable(Protocol):
    def stop(self) -> None: ...


class Reaper:
    """Stops what nobody refers to any longer.

    A destructor may run at any point of any thread, also inside one of our locks; so it only puts the thing
    here, into the one queue that is safe for that, and a thread of its own does the rest.
    """

    def __init__(self) -> None:
        self._left: SimpleQueue[Stoppable | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fairlead-reaper", daemon=True)
            self._thread.start()

    def put(self, left: Stoppable) -> None:
        if not sys.is_finalizing():
            self._left.put(left)

    def close(self) -> None:
        self._left.put(None)

    def _run(self) -> None:
        while (left := self._left.get()) is not None:
            left.stop()
