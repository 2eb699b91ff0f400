"""A wrapper around any key-value store that fails, tears, delays, forgets or dies at a chosen step, and
counts steps.

A step is one call of the port. `arm(n, fault)` lets the fault happen at the n-th step from now:

* `fail`: raises an error (`StoreFull` unless another is given) and changes nothing; the store continues.
* `die_before`: the process ends before the step.
* `die_after`: the process ends after the step, and its caller never learns of the step.
* `power_cut`: as `die_after`, and everything since the last sync is lost. Needs `forgets=True`.
* `tear`: a write stores part of its batch, then the process ends. No backend does this: it shows that a test
  notices a write that is not atomic.
* `delay`: the step waits until `on_delay` returns, and then happens.

A process that has ended raises `Killed` from every call. Wrap the inner store again for the next process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from fairlead.errors import StoreFull
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.store.kv.port import SUFFIX_BYTES, Batch, KeyValueStore, Row, Table

Fault = Literal["fail", "die_before", "die_after", "power_cut", "tear", "delay"]

READS = ("get", "get_many", "scan", "first_rows")

T = TypeVar("T")
_Rows = dict[tuple[Table, bytes], bytes | None]


class Killed(BaseException):
    """The process has ended. Not an `Exception`: nothing in the engine may handle it."""


class FaultyStore:
    """Without an armed fault it keeps every promise of `inner`.

    `calls` counts the steps by method, `reads` only those that read: a test compares `reads` for a small and
    a large batch of one verb. `forgets=True` allows power cuts; every write then first reads the old rows,
    which is not counted.
    """

    def __init__(self, inner: KeyValueStore, *, forgets: bool = False) -> None:
        self.inner = inner
        self.calls: Counter[str] = Counter()
        self.on_delay: Callable[[str], None] = lambda method: None
        #: Whether the armed fault has happened.
        self.struck = False
        self.dead = False
        self._steps_left = 0
        self._fault: Fault = "fail"
        self._only: Collection[str] = ()
        self._error: Exception = StoreFull("the simulated disk", 0, 1)
        self._forgets = forgets
        #: The writes since the last sync: for each one the last commit, and the rows as they were before it.
        self._unsynced: list[tuple[int, _Rows]] = []

    @property
    def reads(self) -> Counter[str]:
        """Calls of the reading methods so far, by method."""
        return Counter({method: self.calls[method] for method in READS if self.calls[method]})

    def arm(
        self, nth: int, fault: Fault, *, only: Collection[str] = (), error: Exception | None = None
    ) -> None:
        """Let the fault happen at the n-th step from now; 0 disarms. `only`: count only steps of these
        methods.
        """
        if fault == "power_cut" and not self._forgets:
            raise ValueError("expected FaultyStore(forgets=True) for a power cut")
        self._steps_left, self._fault, self._only = nth, fault, only
        self._error = error or StoreFull("the simulated disk", 0, 1)
        self.struck = False

    @property
    def unsynced(self) -> int:
        """The number of writes that a power cut may undo."""
        return len(self._unsynced)

    def cut_power(self, *, kept: int = 0) -> None:
        """End the process, and lose every write since the last sync but the first `kept`, which reached the
        disk by themselves.

        The inner store continues as the disk of a machine that restarts.
        """
        if not self._forgets:
            raise ValueError("expected FaultyStore(forgets=True) for a power cut")
        self.dead = True
        lost, self._unsynced = self._unsynced[kept:], []
        if not lost:
            return
        before: _Rows = {}
        for _, rows in reversed(lost):
            before |= rows
        epoch, batch = self.inner.acquire(), Batch()
        for (table, key), value in before.items():
            if value is None:
                batch.delete(table, key)
            else:
                batch.put(table, key, value)
        self.inner.write(batch, epoch, lost[0][0])
        self.inner.sync()

    @property
    def last_commit(self) -> int:
        if self.dead:
            raise Killed
        return self.inner.last_commit

    def acquire(self) -> int:
        def acquire() -> int:
            epoch = self.inner.acquire()
            self._unsynced.clear()
            return epoch

        return self._step("acquire", acquire)

    def write(self, batch: Batch, epoch: int, commit: int) -> bool:
        def write() -> bool:
            last, before = self.inner.last_commit, self._rows_before(batch) if self._forgets else {}
            stored = self.inner.write(batch, epoch, commit)
            if stored and self._forgets:
                self._unsynced.append((last, before))
            return stored

        def tear() -> None:
            self.inner.write(_half_of(batch), epoch, commit)

        return self._step("write", write, tear=tear)

    def sync(self) -> None:
        def sync() -> None:
            # Another thread may write meanwhile; this sync does not cover that write.
            covered = len(self._unsynced)
            self.inner.sync()
            del self._unsynced[:covered]

        self._step("sync", sync)

    def get(self, table: Table, key: bytes) -> bytes | None:
        return self._step("get", lambda: self.inner.get(table, key))

    def get_many(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._step("get_many", lambda: self.inner.get_many(table, keys))

    def scan(
        self,
        table: Table,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int,
        reverse: bool = False,
    ) -> list[Row]:
        return self._step("scan", lambda: self.inner.scan(table, start, end, limit=limit, reverse=reverse))

    def scan_many(
        self,
        table: Table,
        ranges: Sequence[tuple[bytes, bytes]],
        *,
        limit: int,
        reverse: bool = False,
    ) -> list[list[Row]]:
        return self._step(
            "scan_many", lambda: self.inner.scan_many(table, ranges, limit=limit, reverse=reverse)
        )

    def first_rows(
        self,
        table: Table,
        *,
        suffix_length: int = SUFFIX_BYTES,
        prefix: bytes = b"",
        after: bytes | None = None,
        limit: int,
    ) -> list[Row]:
        return self._step(
            "first_rows",
            lambda: self.inner.first_rows(
                table, suffix_length=suffix_length, prefix=prefix, after=after, limit=limit
            ),
        )

    def room(self, *, in_reserve: bool = False) -> int:
        return self._step("room", lambda: self.inner.room(in_reserve=in_reserve))

    def check_room(self, incoming_bytes: int, *, in_reserve: bool = False) -> None:
        self._step("check_room", lambda: self.inner.check_room(incoming_bytes, in_reserve=in_reserve))

    def checkpoint(self, path: Path) -> None:
        self._step("checkpoint", lambda: self.inner.checkpoint(path))

    def close(self) -> None:
        """Not a step: a test also closes the store of a process that has ended."""
        self.inner.close()

    def _step(self, method: str, take: Callable[[], T], tear: Callable[[], None] | None = None) -> T:
        if self.dead:
            raise Killed
        self.calls[method] += 1
        if not self._strikes(method):
            return take()
        match self._fault:
            case "fail":
                raise self._error
            case "delay":
                self.on_delay(method)
                return take()
            case "tear" if tear is not None:
                tear()
            case "die_after" | "power_cut":
                take()
        self.dead = True
        if self._fault == "power_cut":
            self.cut_power()
        raise Killed

    def _strikes(self, method: str) -> bool:
        if not self._steps_left or (self._only and method not in self._only):
            return False
        self._steps_left -= 1
        self.struck = self._steps_left == 0
        return self.struck

    def _rows_before(self, batch: Batch) -> _Rows:
        before: _Rows = {}
        for table, start, end in batch.ranges:
            rows = self.inner.scan(table, start, end, limit=1 << 40)
            before |= {(table, found): value for found, value in rows}
        for table, key in [*[put[:2] for put in batch.puts], *batch.deletes]:
            before[table, key] = self.inner.get(table, key)
        return before


def _half_of(batch: Batch) -> Batch:
    half, count = Batch(), len(batch.puts) + len(batch.deletes) + len(batch.ranges)
    half.puts = batch.puts[: count // 2]
    half.deletes = batch.deletes[: count // 2 - len(half.puts)]
    half.ranges = batch.ranges[: count // 2 - len(half.puts) - len(half.deletes)]
    return half


def faulty_in_memory(*, forgets: bool = False) -> FaultyStore:
    """A faulty store without a disk; `Broker(faulty_in_memory())` opens it."""
    return FaultyStore(DictionaryStore(), forgets=forgets)
