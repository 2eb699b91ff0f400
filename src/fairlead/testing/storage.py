"""The data of a broker, in memory or on disk, that a test can watch, restart and make fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from fairlead.clock import Clock
from fairlead.config import Settings
from fairlead.engine.broker import Broker, Durability
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.errors import StoreFull
from fairlead.records.facts import StateFact
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.store.kv.port import Batch
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.store.rocks.reserve import DISK_RESERVE_BYTES
from fairlead.testing.manual_clock import ManualClock
from fairlead.testing.steps import CommitStep, ignore

SMALL_CACHE_BYTES = 8 * 1024 * 1024

#: `before`: killed, and the commit is not stored. `after`: killed, the commit is stored, and the caller never
#: learns of it. `power`: as `after`, and everything since the last sync is lost. `full`: refused, and the
#: broker continues.
Trouble = Literal["before", "after", "power", "full"]

T = TypeVar("T")
_Inner = DictionaryStore | RocksKeyValueStore
_Opener = Callable[[], _Inner]


class ProcessEnded(BaseException):
    """The process has ended. Not an `Exception`: nothing in the engine may handle it."""


class Storage:
    """One life of the data, from `Storage()` or `reopen` to `close`. A broker works on it as on the real
    store.

    A step is one write, with the facts of its transaction. `on_step` is called with each step before it is
    written; an exception of its own fails the step. `after_step` is called once the step is written. Other
    attributes are those of the inner store.
    """

    #: The facts of the transaction that is being written.
    _facts: Sequence[StateFact] = ()

    def __init__(
        self,
        path: Path | None = None,
        *,
        cache_bytes: int = SMALL_CACHE_BYTES,
        disk_reserve_bytes: int = DISK_RESERVE_BYTES,
        forgets: bool = False,
    ) -> None:
        """`path` None: in memory. `forgets=True` allows `lose_unsynced`, and copies all data at every sync."""

        def open_store() -> _Inner:
            if path is None:
                return DictionaryStore()
            return RocksKeyValueStore.open(
                path, cache_bytes=cache_bytes, disk_reserve_bytes=disk_reserve_bytes
            )

        self._begin(open_store, open_store(), forgets)

    def _begin(self, open_store: _Opener, inner: _Inner, forgets: bool) -> None:
        self.inner = inner
        self._open_store = open_store
        self._forgets = forgets
        self.on_step: Callable[[CommitStep], None] = ignore
        self.after_step: Callable[[CommitStep], None] = ignore
        self.on_sync: Callable[[], None] = lambda: None
        self.commits = 0
        self.sync_calls = 0
        self.struck = False
        self._left = 0
        self._trouble: Trouble = "before"
        self._synced = self.snapshot() if self._forgets else None

    def laws(self) -> list[str]:
        """The violated laws of the engine that has it open, or of an engine opened for this question.

        After a store failed, the stopped engine's memory may differ from the stored data, so a new engine
        answers.
        """
        engine: Engine | None = self.__dict__.get("_engine")
        if engine is None or engine._over is not None:
            engine = Engine(self, clock=ManualClock())
        return broken_laws(engine)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def open_broker(
        self,
        *,
        clock: Clock | None = None,
        durability: Durability = "fsync",
        settings: Settings | None = None,
    ) -> Broker:
        broker = Broker(self, clock=clock, durability=durability, settings=settings)
        self._engine = engine = broker.engine
        write = engine._write

        def watched(commit: int, facts: Sequence[StateFact]) -> None:
            self._facts = facts
            write(commit, facts)

        engine._write = watched  # type: ignore[method-assign]
        return broker

    def reopen(self) -> Storage:
        """The next life of the same data, with nothing armed. This object is closed."""
        again, inner = Storage.__new__(Storage), self.inner
        inner.close()
        reopened = DictionaryStore(inner.data) if isinstance(inner, DictionaryStore) else self._open_store()
        again._begin(self._open_store, reopened, self._forgets)
        return again

    @property
    def in_memory(self) -> bool:
        return isinstance(self.inner, DictionaryStore)

    @property
    def last_commit(self) -> int:
        """Grows with every commit, so that a test can see whether a call wrote anything."""
        return self.inner.last_commit

    def arm(self, nth: int, trouble: Trouble) -> None:
        """Let the n-th commit from now fail in that way; `struck` tells whether it happened. 0 disarms."""
        self._left, self._trouble = nth, trouble
        self.struck = False

    # The port

    def acquire(self) -> int:
        epoch = self.inner.acquire()
        if self._forgets:
            self._synced = self.snapshot()
        return epoch

    def write(self, batch: Batch, epoch: int, commit: int) -> bool:
        return self._take(CommitStep(self._facts), lambda: self.inner.write(batch, epoch, commit))

    def _take(self, step: CommitStep, store: Callable[[], T]) -> T:
        """Store a step, unless a fault is armed for it."""
        self.on_step(step)
        strikes = self._left == 1
        self._left = max(0, self._left - 1)
        self.struck |= strikes
        if strikes and self._trouble == "full":
            raise StoreFull("the simulated disk", 0, 1)
        if strikes and self._trouble == "before":
            raise ProcessEnded
        answer = store()
        self.commits += 1
        self.after_step(step)
        if strikes:
            raise ProcessEnded
        return answer

    def sync(self) -> None:
        self.sync_calls += 1
        self.inner.sync()
        if self._forgets:
            self._synced = self.snapshot()
        self.on_sync()

    # Going back

    def lose_unsynced(self) -> None:
        """Go back to the last sync, as after a power cut. Has no effect on disk, where the operating system
        holds the log. Raises `ValueError` without `forgets=True`.
        """
        if not self._forgets:
            raise ValueError("expected Storage(forgets=True) to lose what is not synced")
        self.restore(self._synced)

    def snapshot(self) -> Any:
        """All data stored in memory now; None on disk."""
        return copy_data(self.inner.data) if isinstance(self.inner, DictionaryStore) else None

    def restore(self, snapshot: Any) -> None:
        """Restore what `snapshot` returned. This can be repeated."""
        if snapshot is not None and isinstance(self.inner, DictionaryStore):
            # The epoch stays, because acquiring the store is synced at once.
            epoch = max(snapshot.fence.epoch, self.inner.data.fence.epoch)
            self.inner.data = copy_data(snapshot)
            self.inner.data.fence = msgspec.structs.replace(self.inner.data.fence, epoch=epoch)


@contextmanager
def read_only(path: Path) -> Iterator[RocksKeyValueStore]:
    """The store of a data directory that no process writes to, for example after a crash."""
    store = RocksKeyValueStore.open(path, read_only=True)
    try:
        yield store
    finally:
        store.close()


def fail_syncs(broker: Broker, error: Exception) -> None:
    """Make every sync of an open broker fail from now on, as on a broken disk."""

    def fail() -> None:
        raise error

    store: Any = broker.engine.store
    store.sync = fail


def copy_data(data: DictionaryData) -> DictionaryData:
    copied = DictionaryData()
    copied.fence = data.fence
    copied.tables = [copy(table) for table in data.tables]
    for table in copied.tables:
        table.rows, table.keys = dict(table.rows), list(table.keys)
    return copied
