"""The contract of a backend: rows (key and value, both bytes) in named tables, ordered by key.

A backend may be a network away. So every method is one question or one change, answers are bounded lists,
and a caller asks for many rows in one call instead of one row in many calls.

Threads: one thread at a time calls `acquire`, `write` and `checkpoint`; the caller's lock sees to
it. Any number of threads may call `sync`, `check_room`, `room` and the reading methods beside it. A read
that runs beside a write sees all of that write or nothing of it per call of `get`; `get_many`, `scan` and
`first_rows` may see a part of it. A read that starts after `write` returned sees all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Protocol

import msgspec

Row = tuple[bytes, bytes]

#: Groups in `first_rows` end before the last 8 bytes of a key, which hold a place.
SUFFIX_BYTES = 8


class Table(IntEnum):
    """Names of the tables. The numbers count from 0 without gaps; a backend may use them as indexes. A name
    is stored, so it must not change; a number is not stored.
    """

    META = 0
    QUEUES = 1
    COUNTERS = 2
    CHUNKS = 3
    PAGES = 4
    STATES = 5
    OWN = 6
    LEASES = 7
    COLD = 8
    DUE = 9
    RUNS = 10
    DEDUP = 11
    DEDUP_END = 12
    CONFIG = 13
    BUCKETS = 14
    API_KEYS = 15
    RUNBOOKS = 16
    EXTERNAL_QUEUES = 17
    AUDIT = 18
    STREAMS = 19
    CONSUMERS = 20
    OUTCOMES = 21
    ANSWERS = 22
    STAGED = 23
    STAGED_PARTS = 24
    PUBLISHING = 25
    PUBLISHED = 26
    PUBLISHED_END = 27
    INTENTS = 28
    LIVES = 29
    DONE = 30
    MEMBERS = 31
    SESSION_ENDS = 32
    CLOSED = 33


class Batch(msgspec.Struct, gc=False):
    """Changes for one `write`. A backend carries them out then, in any order.

    A key occurs at most once in a batch, and no key that is put lies in a range that the same batch deletes.
    `DictionaryStore` raises `BrokenInvariant` for a batch that breaks this rule; other backends need not notice. The
    lists may be filled without a call of a method for each row.
    """

    puts: list[tuple[Table, bytes, bytes]] = []
    deletes: list[tuple[Table, bytes]] = []
    ranges: list[tuple[Table, bytes, bytes]] = []

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        """Add the row, or replace the value of an existing row."""
        self.puts.append((table, key, value))

    def delete(self, table: Table, key: bytes) -> None:
        """Remove the row. A row that does not exist is no error."""
        self.deletes.append((table, key))

    def delete_range(self, table: Table, start: bytes, end: bytes) -> None:
        """Remove the rows with `start <= key < end`. An empty range (`start >= end`) changes nothing."""
        if start < end:
            self.ranges.append((table, start, end))


class KeyValueStore(Protocol):
    """Every method raises `BrokerClosed` after `close`, `StoreCorrupt` for a row or file that cannot be
    trusted, and `StoreFailed` when the backend cannot work at all.
    """

    @property
    def last_commit(self) -> int:
        """The number that the last stored write carried, whatever its epoch; 0 before the first write. A new
        owner that numbers its commits from here on uses no number twice.
        """
        ...

    def acquire(self) -> int:
        """Become the only writer, and return the epoch that every write must carry.

        The epoch is higher than all earlier ones and synced, with all earlier writes, before the call
        returns: no epoch is given twice, also after a crash or a power cut. From the return on, a write with
        an earlier epoch raises `StaleEpoch`. A crash during the call leaves the old epoch or the new one.
        Raises `StoreFull` and changes nothing when there is no room.
        """
        ...

    def write(self, batch: Batch, epoch: int, commit: int) -> bool:
        """Store all changes of the batch, or none: also across a crash at any moment.

        After the return the changes survive a killed process; only `sync` makes them survive a power cut.
        Writes survive in order: a power cut that loses a write loses all later ones too.

        Within an epoch commit numbers rise; they may have gaps. The same epoch and number again store
        nothing and return False, without a look at the batch: so a backend whose answer got lost may repeat
        a write. True: the batch was stored by this call.

        Raises `StaleEpoch` if another owner has called `acquire`, `BrokenInvariant` if the number is lower
        than the last one of this epoch, and `StoreFull` if there is no room; nothing is stored then, and the
        same number may be used again. After `StoreFailed` it is unknown whether the batch was stored; the
        store takes no more writes.
        """
        ...

    def sync(self) -> None:
        """Return when every write that returned before the call survives a power cut.

        Calls from several threads at the same time share their work. A failed sync is final: it raises
        `StoreFailed`, and so does every later `write`, `acquire` and `sync` of this object.
        """
        ...

    def get(self, table: Table, key: bytes) -> bytes | None: ...

    def get_many(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values in the order of the keys, None for each row that does not exist. A key may be asked for
        twice.
        """
        ...

    def scan(
        self,
        table: Table,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int,
        reverse: bool = False,
    ) -> list[Row]:
        """The first `limit` rows with `start <= key < end` in the order of their keys; with `reverse` the
        last `limit` rows, the last one first. `end=None`: no upper bound.

        Cheap to call again and again between two writes: a backend keeps what it needs to continue.
        """
        ...

    def scan_many(
        self,
        table: Table,
        ranges: Sequence[tuple[bytes, bytes]],
        *,
        limit: int,
        reverse: bool = False,
    ) -> list[list[Row]]:
        """`scan` of each range `start, end`, at most `limit` rows of each. Cheapest where the ranges are in order."""
        ...

    def first_rows(
        self,
        table: Table,
        *,
        suffix_length: int = SUFFIX_BYTES,
        prefix: bytes = b"",
        after: bytes | None = None,
        limit: int,
    ) -> list[Row]:
        """The first row of each group, in the order of the keys, for at most `limit` groups. A group is the
        rows whose keys agree up to their last `suffix_length` bytes.

        `prefix`: only keys that begin with it. `after`: a key of the group to continue behind; give the last
        key of one page to get the next page. The cost grows with the number of groups, not of rows.

        Every key of the table must be longer than `suffix_length`, and no group's name may be the beginning
        of another group's name.
        """
        ...

    def room(self, *, in_reserve: bool = False) -> int:
        """How many more bytes of rows fit above the reserve of free space, or, with `in_reserve`, above the
        part of it that is kept for changes that free space. Negative below it.
        """
        ...

    def check_room(self, incoming_bytes: int, *, in_reserve: bool = False) -> None:
        """Raise `StoreFull` unless that many bytes of rows fit, as `room` counts them. Callers ask before a
        change that grows the store; `write` itself accepts everything that fits on the disk.
        """
        ...

    def checkpoint(self, path: Path) -> None:
        """Make a consistent and synced copy of all tables, the epoch and the last commit, which the same
        backend can open. Reads, writes and syncs go on meanwhile.

        `path` must not exist yet, else `InvalidRequest`. It appears complete or not at all: a crash leaves
        at most a hidden file or directory beside it.
        """
        ...

    def close(self) -> None:
        """Release everything. All writes survive, and are synced if that is possible. Safe to call twice."""
        ...


def behind_group(key: bytes, suffix_length: int) -> bytes:
    """Where the search for the next group begins: after all keys of the group of `key`."""
    return key[: len(key) - suffix_length] + b"\xff" * suffix_length + b"\0"
