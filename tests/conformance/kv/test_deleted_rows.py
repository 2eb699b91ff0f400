"""A scan does not walk over rows that were deleted long ago: RocksDB itself counts the rows that it passes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import FairleadError
from fairlead.store.kv.empty_ranges import EmptyRanges
from fairlead.store.kv.port import Batch, Table
from fairlead.store.kv.rocks import RocksKeyValueStore
from tests.conformance.kv.backends import CACHE_BYTES

ROWS = 3000
#: RocksDB refuses a read that passes more deleted rows than this.
FEW = 60


def key(group: int, number: int) -> bytes:
    return group.to_bytes(8, "big") + number.to_bytes(8, "big")


class Draining:
    def __init__(self, store: RocksKeyValueStore) -> None:
        self.store = store
        self.epoch = store.acquire()
        self.commit = 0

    def write(self, puts: list[bytes], deletes: list[bytes] | None = None) -> None:
        batch = Batch()
        for one in puts:
            batch.put(Table.OWN, one, b"row")
        for one in deletes or ():
            batch.delete(Table.OWN, one)
        self.commit += 1
        assert self.store.write(batch, self.epoch, self.commit)

    def first(self) -> list[bytes]:
        return [found for found, _ in self.store.scan(Table.OWN, key(1, 0), key(2, 0), limit=1)]

    def limit_walks(self) -> None:
        self.store._database.forget_reads()
        self.store._database.max_walked_rows = FEW


@pytest.fixture
def draining(directory: Path) -> Iterator[Draining]:
    store = RocksKeyValueStore.open(directory / "data", cache_bytes=CACHE_BYTES)
    yield Draining(store)
    store.close()


def test_rocksdb_refuses_a_scan_that_walks_over_many_deleted_rows(draining: Draining) -> None:
    """The other tests mean nothing without this one."""
    draining.write([key(1, number) for number in range(ROWS)])
    draining.write([], [key(1, number) for number in range(ROWS - 1)])
    draining.limit_walks()
    with pytest.raises(FairleadError, match="skip"):
        draining.first()


def test_a_queue_that_drains_at_its_front_is_scanned_without_its_past(draining: Draining) -> None:
    draining.limit_walks()
    draining.write([key(1, number) for number in range(ROWS)])
    for number in range(0, ROWS, 20):
        assert draining.first() == [key(1, number)]
        draining.write([], [key(1, number + one) for one in range(20)])
    assert draining.first() == []
    draining.write([key(1, ROWS)])
    assert draining.first() == [key(1, ROWS)]


def test_a_scan_ends_before_the_deleted_rows_behind_its_range(draining: Draining) -> None:
    """Groups that run dry and get a new row now and then, as lanes do."""
    draining.write([key(group, number) for group in (1, 2) for number in range(ROWS)])
    draining.write([], [key(group, number) for group in (1, 2) for number in range(ROWS)])
    draining.write([key(1, ROWS), key(1, ROWS + 1), key(3, 0)])
    draining.limit_walks()
    for limit in (2, 3, 10):
        found = draining.store.scan(Table.OWN, key(1, ROWS), key(2, 0), limit=limit)
        assert [one for one, _ in found] == [key(1, ROWS), key(1, ROWS + 1)]
    assert draining.store.scan(Table.OWN, key(1, ROWS + 2), key(2, 0), limit=1) == []
    draining.write([key(1, ROWS + 3)])
    assert draining.store.scan(Table.OWN, key(1, ROWS + 2), key(2, 0), limit=9) == [
        (key(1, ROWS + 3), b"row")
    ]
    # Two ends with the same cursor, without a write between them.
    assert draining.store.scan(Table.OWN, key(3, 0), key(4, 0), limit=9) == [(key(3, 0), b"row")]


def test_groups_that_drain_at_their_fronts_are_found_without_their_past(draining: Draining) -> None:
    """A group that runs dry costs one walk over the past of the next one; then both are one range."""
    draining.limit_walks()
    groups, rows = range(1, 6), 600
    draining.write([key(group, number) for group in groups for number in range(rows)])
    for number in range(0, rows, 10):
        found = draining.store.first_rows(Table.OWN, limit=10)
        assert [one for one, _ in found] == [key(group, number) for group in groups]
        draining.write([], [key(group, number + one) for group in groups for one in range(10)])
    draining.store._database.max_walked_rows = 0
    draining.write([key(7, 0)])
    assert draining.store.first_rows(Table.OWN, limit=10) == [(key(7, 0), b"row")]
    draining.store._database.max_walked_rows = FEW
    draining.write([key(7, 1)], [key(7, 0)])
    assert draining.store.first_rows(Table.OWN, limit=10) == [(key(7, 1), b"row")]


def test_a_row_in_front_of_an_empty_range_is_found(draining: Draining) -> None:
    draining.write([key(1, number) for number in range(100, 200)])
    draining.write([], [key(1, number) for number in range(100, 199)])
    assert draining.first() == [key(1, 199)]
    for number in (150, 120, 0):
        draining.write([key(1, number)])
        assert draining.first() == [key(1, number)]
        assert draining.store.first_rows(Table.OWN, limit=2) == [(key(1, number), b"row")]


changes = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 30)),
        st.tuples(st.just("delete"), st.integers(0, 30)),
        st.tuples(st.just("scan"), st.integers(0, 30)),
    ),
    max_size=60,
)


@given(changes)
def test_ranges_that_are_noted_as_empty_hide_no_row(steps: list[tuple[str, int]]) -> None:
    rows: set[bytes] = set()
    ranges = EmptyRanges()
    for what, number in steps:
        one = bytes([number])
        if what == "put":
            rows.add(one)
            ranges.fill(one)
        elif what == "delete":
            rows.discard(one)
        else:
            expected = min((row for row in rows if row >= one), default=None)
            begin = ranges.behind(one)
            found = None if begin is None else min((row for row in rows if row >= begin), default=None)
            assert found == expected
            ranges.note(one, found)
            assert ranges.behind(one) == found


def test_a_row_written_while_a_read_notes_that_there_is_none_is_found(
    draining: Draining, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write comes after the read has found its generation to be the present one, and before it notes the range."""
    note, pending = EmptyRanges.note, [key(1, 5)]

    def write_and_note(ranges: EmptyRanges, start: bytes, end: bytes | None) -> None:
        if pending:
            draining.write([pending.pop()])
        note(ranges, start, end)

    monkeypatch.setattr(EmptyRanges, "note", write_and_note)
    assert draining.first() == []
    assert pending == []
    assert draining.first() == [key(1, 5)]
