"""`verify` names rows that were replaced or deleted, which no checksum shows, and changes no directory."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from fairlead import Complete, Fail, NewMessage
from fairlead.engine.engine import Engine
from fairlead.engine.verify import verify, verify_store
from fairlead.errors import BrokenInvariant, FormatTooNew, InvalidRequest, StoreCorrupt
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.store.kv.port import Batch, Table
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.store.rocks.format import FORMAT, FORMAT_FILE
from fairlead.testing import ManualClock
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import EnqueueMany
from fairlead.verbs.queues import CreateQueue
from fairlead.verbs.settle import Goodbye, Settle


@pytest.fixture
def engine() -> Engine:
    """A chunk with pages, a chunk with its payloads inside, and messages with rows of their own."""
    made = Engine(DictionaryStore(), clock=ManualClock())
    made.do(CreateQueue("q", {"dedup": "5m"}))
    made.do(EnqueueMany("q", [NewMessage(b"x" * 9_000, dedup_key=f"d{n}") for n in range(8)]))
    made.do(EnqueueMany("q", [NewMessage(b"%d" % n, delay="1m" if n == 2 else None) for n in range(5)]))
    claimed = made.do(Claim("q", 4))
    made.do(Settle([Complete(claimed[0])]))
    assert verify_store(made.store).ok
    return made


def change(engine: Engine, table: Table, value: bytes | None, *, at: int = 0) -> bytes:
    """Replace or delete a row behind the back of the engine; its key."""
    key = engine.store.scan(table, limit=at + 1)[at][0]
    batch = Batch()
    if value is None:
        batch.delete(table, key)
    else:
        batch.put(table, key, value)
    engine.store.write(batch, engine.store.acquire(), engine.store.last_commit + 1)
    return key


@pytest.mark.parametrize(
    "table",
    [
        Table.QUEUES,
        Table.COUNTERS,
        Table.CHUNKS,
        Table.PAGES,
        Table.STATES,
        Table.OWN,
        Table.LEASES,
        Table.DEDUP_END,
    ],
)
def test_verify_misses_each_row_that_is_gone(engine: Engine, table: Table) -> None:
    change(engine, table, None)
    assert not verify_store(engine.store).ok


@pytest.mark.parametrize(
    "table", [table for table in Table if table.name in "QUEUES COUNTERS CHUNKS OWN LEASES DEDUP"]
)
def test_verify_names_a_row_that_cannot_be_decoded(engine: Engine, table: Table) -> None:
    change(engine, table, b"\xc1")
    problem, *_ = verify_store(engine.store).problems
    assert problem.startswith(f"table {table.name.lower()}, row ")


def test_a_page_of_another_size_is_named_by_verify_and_by_whoever_reads_it(engine: Engine) -> None:
    _, raw = engine.store.scan(Table.PAGES, limit=1)[0]
    change(engine, Table.PAGES, raw + b"x")
    (problem,) = verify_store(engine.store).problems
    assert problem.endswith("page 0 of its payloads is missing or has another size")
    opened = Engine(engine.store, clock=ManualClock())
    with pytest.raises(BrokenInvariant, match="expected payloads of"):
        opened.do(Claim("q", 20))


@pytest.mark.parametrize(
    "raw", [b"", b"\xc1", b"\x99later version"], ids=["empty", "no code", "a later version"]
)
@pytest.mark.parametrize("table", [Table.QUEUES, Table.COUNTERS, Table.CHUNKS, Table.LEASES])
def test_an_engine_does_not_open_with_a_row_that_cannot_be_decoded_and_names_it(
    engine: Engine, table: Table, raw: bytes
) -> None:
    engine.do(Goodbye(""))
    engine.do(Settle([Fail(one) for one in engine.do(Claim("q", 2))]))
    engine.do(Claim("q", 2))
    key = change(engine, table, raw)
    with pytest.raises(StoreCorrupt) as refused:
        Engine(engine.store, clock=ManualClock())
    assert refused.value.where == f"table {table.name.lower()}, row {key.hex()}"


def test_verify_reports_wrong_states(engine: Engine) -> None:
    change(engine, Table.STATES, b"\x07" * 8)
    assert not verify_store(engine.store).ok


def test_verify_does_not_change_a_directory_that_a_crash_left(tmp_path: Path) -> None:
    store = RocksKeyValueStore.open(tmp_path / "data")
    made = Engine(store, clock=ManualClock())
    made.do(CreateQueue("q"))
    made.do(EnqueueMany("q", [NewMessage(b"%d" % n) for n in range(30)]))
    copy = tmp_path / "left"
    store.checkpoint(copy)
    before = {file.name: file.read_bytes() for file in copy.iterdir()}
    report = verify(copy)
    assert (report.problems, report.messages, report.queues) == ([], 30, 2)
    assert {file.name: file.read_bytes() for file in copy.iterdir()} == before
    made.close()


def test_verify_refuses_what_is_no_data_directory_or_a_later_one_and_leaves_it_alone(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"")
    for refused in ("empty", "nothing", "photos"):
        with pytest.raises(InvalidRequest):
            verify(tmp_path / refused)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "photos"]
    later = tmp_path / "later"
    RocksKeyValueStore.open(later).close()
    number = b"fairlead %d" % (FORMAT + 1)
    (later / FORMAT_FILE).write_bytes(number + b" %08x\n" % zlib.crc32(number))
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in later.iterdir()}
    with pytest.raises(FormatTooNew, match=f"got {FORMAT + 1}"):
        verify(later)
    assert {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in later.iterdir()} == before
