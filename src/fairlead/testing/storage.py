"""The data of a broker, in memory or on disk, that a test can watch, restart and make fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any, Literal, TypeVar

from fairlead.broker.broker import Broker, Durability
from fairlead.clock import Clock
from fairlead.config import Settings
from fairlead.engine.broker import Broker as NewBroker
from fairlead.errors import StoreFull
from fairlead.model.facts import Fact
from fairlead.store.laws import check_laws
from fairlead.store.memory import MemoryStore
from fairlead.store.port import NO_EPOCHS
from fairlead.store.rocks.reserve import DISK_RESERVE_BYTES
from fairlead.store.rocks.store import RocksStore
from fairlead.testing.steps import Step, ignore
from fairlead.testing.which_engine import is_new_engine

SMALL_CACHE_BYTES = 8 * 1024 * 1024

#: `before`: killed, the commit is not there. `after`: killed, it is there and the caller never learns.
#: `power`: as `after`, and everything since the last sync is lost with it. `full`: refused, and the broker
#: lives on.
Trouble = Literal["before", "after", "power", "full"]

T = TypeVar("T")
_Opener = Callable[[], MemoryStore | RocksStore]


class Cut(BaseException):
    """The process is gone. Not an `Exception`: nothing in the engine may handle it."""


class Storage:
    """One life of the data, from `Storage()` or `reopen` to `close`. A broker on it works as on the real one.

    `on_step` is called with each step before it is written; an exception of its own fails the step.
    `after_step` is called once it is written. Other attributes are those of the store inside.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        cache_bytes: int = SMALL_CACHE_BYTES,
        disk_reserve_bytes: int = DISK_RESERVE_BYTES,
        forgets: bool = False,
    ) -> None:
        """`path` None: in memory. `forgets=True` allows `lose_unsynced`, and copies all data at every sync."""

        def open_store() -> MemoryStore | RocksStore:
            if path is None:
                return MemoryStore()
            return RocksStore.open(path, cache_bytes=cache_bytes, disk_reserve_bytes=disk_reserve_bytes)

        self._begin(open_store, open_store(), forgets)

    def __new__(cls, *arguments: Any, **options: Any) -> Storage:
        if cls is Storage and is_new_engine():
            from fairlead.testing.kv_storage import KeyValueStorage

            return super().__new__(KeyValueStorage)
        return super().__new__(cls)

    def _begin(self, open_store: _Opener, inner: MemoryStore | RocksStore, forgets: bool) -> None:
        self.inner = inner
        self._open_store = open_store
        self._forgets = forgets
        self.on_step: Callable[[Step], None] = ignore
        self.after_step: Callable[[Step], None] = ignore
        self.on_sync: Callable[[], None] = lambda: None
        self.commits = 0
        self.sync_calls = 0
        self.struck = False
        self._left = 0
        self._trouble: Trouble = "before"
        self._synced = self.snapshot() if self._forgets else None

    def laws(self) -> list[str]:
        return check_laws(self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def open_broker(
        self,
        *,
        clock: Clock | None = None,
        durability: Durability = "fsync",
        settings: Settings | None = None,
    ) -> Broker:
        return Broker(self, clock=clock, durability=durability, settings=settings)

    def reopen(self) -> Storage:
        """The next life of the same data, with nothing armed. This object is closed."""
        again = Storage.__new__(Storage)
        if isinstance(self.inner, MemoryStore):
            again._begin(self._open_store, self.inner.reopen(), self._forgets)
        else:
            self.inner.close()
            again._begin(self._open_store, self._open_store(), self._forgets)
        return again

    @property
    def in_memory(self) -> bool:
        return isinstance(self.inner, MemoryStore)

    @property
    def last_commit(self) -> int:
        """Grows with every commit, so that a test can see whether a call wrote anything."""
        return self.inner.last_commit

    def arm(self, nth: int, trouble: Trouble) -> None:
        """The n-th commit from now fails in that way; `struck` says whether it came. 0 disarms."""
        self._left, self._trouble = nth, trouble
        self.struck = False

    def commit(self, facts: Sequence[Fact], epochs: Mapping[int, int] = NO_EPOCHS) -> int:
        return self._take(Step(facts), lambda: self.inner.commit(facts, epochs))

    def _take(self, step: Step, store: Callable[[], T]) -> T:
        """Store a step, unless trouble is armed for it."""
        self.on_step(step)
        strikes = self._left == 1
        self._left = max(0, self._left - 1)
        self.struck |= strikes
        if strikes and self._trouble == "full":
            raise StoreFull("the simulated disk", 0, 1)
        if strikes and self._trouble == "before":
            raise Cut
        answer = store()
        self.commits += 1
        self.after_step(step)
        if strikes:
            raise Cut
        return answer

    def sync(self, commit: int) -> None:
        self.sync_calls += 1
        self.inner.sync(commit)
        if self._forgets:
            self._synced = self.snapshot()
        self.on_sync()

    def lose_unsynced(self) -> None:
        """Go back to the last sync, as after a power cut. Does nothing on disk, where the operating system
        holds the log. Raises `ValueError` without `forgets=True`.
        """
        if not self._forgets:
            raise ValueError("expected Storage(forgets=True) to lose what is not synced")
        self.restore(self._synced)

    def snapshot(self) -> Any:
        """All that is stored in memory now; None on disk."""
        return _copy_data(self.inner._data) if isinstance(self.inner, MemoryStore) else None

    def restore(self, snapshot: Any) -> None:
        """Put back what `snapshot` gave. It can be put back again later."""
        if snapshot is not None and isinstance(self.inner, MemoryStore):
            self.inner._data = _copy_data(snapshot)


@contextmanager
def read_only(path: Path) -> Iterator[Any]:
    """The store of a data directory that nobody writes to, as a crash may have left it."""
    store = RocksStore.open(path, read_only=True)
    try:
        yield store
    finally:
        store.close()


def fail_syncs(broker: Broker | NewBroker, error: Exception) -> None:
    """Every sync of an open broker fails from here on, as on a broken disk."""

    def fail(commit: int = 0) -> None:
        raise error

    store: Any = broker.engine.store if isinstance(broker, NewBroker) else broker._core.store
    store.sync = fail


def _copy_data(stored: Any) -> Any:
    """Tables hold frozen records, so the tables themselves are all there is to copy."""
    data = copy(stored)
    data._journal, data.counted = [], set()
    for name in type(data).__annotations__:
        table = copy(getattr(data, name))
        table.rows, table.order, table._journal = dict(table.rows), list(table.order), data._journal
        setattr(data, name, table)
    return data
