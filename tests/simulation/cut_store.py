"""A store that loses power, is killed or is full at a chosen commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Literal

from fairlead.errors import StoreFull
from fairlead.model.facts import Fact
from fairlead.store.memory import MemoryStore
from fairlead.store.port import NO_EPOCHS
from fairlead.store.rocks.store import RocksStore

#: `before`: killed, the commit is not there. `after`: killed, it is there and the caller never learns.
#: `power`: as `after`, and everything since the last sync is lost with it. `full`: refused, and the broker
#: lives on.
Trouble = Literal["before", "after", "power", "full"]


class Cut(BaseException):
    """The process is gone. Not an `Exception`: nothing in the engine may handle it."""


class CutStore:
    """Passes everything on. `seen` is told the facts of every commit that took place."""

    def __init__(self, inner: MemoryStore | RocksStore, seen: Callable[[Sequence[Fact]], None]) -> None:
        self.inner = inner
        self.commits = 0
        self.struck = False
        self.on_sync: Callable[[], None] = lambda: None
        self._seen = seen
        self._left = 0
        self._trouble: Trouble = "before"
        self._synced = _snapshot(inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def arm(self, nth: int, trouble: Trouble) -> None:
        """0 disarms."""
        self._left, self._trouble = nth, trouble
        self.struck = False

    def commit(self, facts: Sequence[Fact], epochs: Mapping[int, int] = NO_EPOCHS) -> int:
        strikes = self._left == 1
        self._left = max(0, self._left - 1)
        self.struck |= strikes
        if strikes and self._trouble == "full":
            raise StoreFull("the simulated disk", 0, 1)
        if strikes and self._trouble == "before":
            raise Cut
        number = self.inner.commit(facts, epochs)
        self.commits += 1
        self._seen(facts)
        if strikes:
            raise Cut
        return number

    def sync(self, commit: int) -> None:
        self.inner.sync(commit)
        self._synced = _snapshot(self.inner)
        self.on_sync()

    def lose_power(self) -> None:
        """Only what was synced is left. A store on disk cannot play this: its log is with the operating
        system.
        """
        if self._synced is not None and isinstance(self.inner, MemoryStore):
            self.inner._data = self._synced

    def reopen(self, path: Path, seen: Callable[[Sequence[Fact]], None]) -> CutStore:
        if isinstance(self.inner, MemoryStore):
            return CutStore(self.inner.reopen(), seen)
        self.inner.close()
        return CutStore(RocksStore.open(path, cache_bytes=1 << 20), seen)


def _snapshot(store: MemoryStore | RocksStore) -> Any:
    """Tables hold frozen records, so the tables themselves are all there is to copy."""
    if not isinstance(store, MemoryStore):
        return None
    data = copy(store._data)
    data._journal, data.counted = [], set()
    for name in type(data).__annotations__:
        table = copy(getattr(data, name))
        table.rows, table.order, table._journal = dict(table.rows), list(table.order), data._journal
        setattr(data, name, table)
    return data
