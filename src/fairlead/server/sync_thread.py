"""A thread that syncs while the next turn gathers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from fairlead.errors import FairleadError


class SyncThread:
    """`confirm` waits until a commit is as durable as requested. Then `tell` is called, in this thread, with
    the commit and with the error if it failed. One sync covers all commits before it.
    """

    def __init__(
        self, confirm: Callable[[int], None], tell: Callable[[int, FairleadError | None], None]
    ) -> None:
        self._confirm = confirm
        self._tell = tell
        self._asked: SimpleQueue[int | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="fairlead-sync", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask(self, commit: int) -> None:
        self._asked.put(commit)

    def stop(self) -> None:
        self._asked.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (commit := self._asked.get()) is not None:
            failed = None
            try:
                self._confirm(commit)
            except FairleadError as error:
                failed = error
            self._tell(commit, failed)
