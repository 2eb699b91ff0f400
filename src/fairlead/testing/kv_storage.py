"""The data of a broker on the new engine: `Storage` over a key-value store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import Any, cast

import msgspec

from fairlead.broker.broker import Broker as OldBroker
from fairlead.broker.broker import Durability
from fairlead.clock import Clock
from fairlead.config import Settings
from fairlead.engine.broker import Broker
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.engine.transaction import Transaction
from fairlead.records.facts import StateFact
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.store.kv.port import Batch
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.store.rocks.reserve import DISK_RESERVE_BYTES
from fairlead.testing.manual_clock import ManualClock
from fairlead.testing.steps import Step
from fairlead.testing.storage import SMALL_CACHE_BYTES, Storage

_Inner = DictionaryStore | RocksKeyValueStore


class KeyValueStorage(Storage):
    """A step is one write; the facts in it are those of its transaction."""

    inner: _Inner  # type: ignore[assignment]
    _open_store: Callable[[], _Inner]  # type: ignore[assignment]
    #: Of the transaction that is being written.
    _facts: Sequence[StateFact] = ()

    def __init__(
        self,
        path: Path | None = None,
        *,
        cache_bytes: int = SMALL_CACHE_BYTES,
        disk_reserve_bytes: int = DISK_RESERVE_BYTES,
        forgets: bool = False,
    ) -> None:
        def open_store() -> _Inner:
            if path is None:
                return DictionaryStore()
            return RocksKeyValueStore.open(
                path, cache_bytes=cache_bytes, disk_reserve_bytes=disk_reserve_bytes
            )

        self._begin(open_store, open_store(), forgets)  # type: ignore[arg-type]

    def open_broker(
        self,
        *,
        clock: Clock | None = None,
        durability: Durability = "fsync",
        settings: Settings | None = None,
    ) -> OldBroker:
        broker = Broker(self, clock=clock, durability=durability, settings=settings)
        self._engine = engine = broker.engine
        write = engine._write

        def watched(tx: Transaction) -> None:
            self._facts = tx.facts
            write(tx)

        engine._write = watched  # type: ignore[method-assign]
        return cast(OldBroker, broker)

    def reopen(self) -> Storage:
        again = KeyValueStorage.__new__(KeyValueStorage)
        inner = self.inner
        inner.close()
        reopened = DictionaryStore(inner.data) if isinstance(inner, DictionaryStore) else self._open_store()
        again._begin(self._open_store, reopened, self._forgets)  # type: ignore[arg-type]
        return again

    @property
    def in_memory(self) -> bool:
        return isinstance(self.inner, DictionaryStore)

    def laws(self) -> list[str]:
        """Of the engine that is open on it; or of one that is opened for the question, also where a failed store has
        stopped the engine, whose memory need not be what is stored.
        """
        engine: Engine | None = self.__dict__.get("_engine")
        if engine is None or engine._over is not None:
            engine = Engine(self, clock=ManualClock())
        return broken_laws(engine)

    # The port

    def acquire(self) -> int:
        epoch = self.inner.acquire()
        if self._forgets:
            self._synced = self.snapshot()
        return epoch

    def write(self, batch: Batch, epoch: int, commit: int) -> bool:
        return self._take(Step(self._facts), lambda: self.inner.write(batch, epoch, commit))

    def sync(self) -> None:  # type: ignore[override]
        self.sync_calls += 1
        self.inner.sync()
        if self._forgets:
            self._synced = self.snapshot()
        self.on_sync()

    # Going back

    def snapshot(self) -> Any:
        return _copy_data(self.inner.data) if isinstance(self.inner, DictionaryStore) else None

    def restore(self, snapshot: Any) -> None:
        if snapshot is not None and isinstance(self.inner, DictionaryStore):
            # The epoch stays: acquiring the store is synced at once.
            epoch = max(snapshot.fence.epoch, self.inner.data.fence.epoch)
            self.inner.data = _copy_data(snapshot)
            self.inner.data.fence = msgspec.structs.replace(self.inner.data.fence, epoch=epoch)


def _copy_data(data: DictionaryData) -> DictionaryData:
    copied = DictionaryData()
    copied.fence = data.fence
    copied.tables = [copy(table) for table in data.tables]
    for table in copied.tables:
        table.rows, table.keys = dict(table.rows), list(table.keys)
    return copied
