"""A store that is rebuilt from its rows is the same store; and what becomes of the rest when rows are lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead import NewMessage
from fairlead.engine.broker import Broker
from fairlead.engine.laws import broken_laws
from fairlead.engine.verify import verify, verify_store
from fairlead.records.chunk import OWN
from fairlead.salvage.rebuild import LAYOUT, rebuild
from fairlead.salvage.repair import repair
from fairlead.salvage.report import RepairReport
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.store.kv.port import Batch, KeyValueStore, Table
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.store.kv.rocks_options import family_name
from fairlead.store.rocks.salvage import Row, Salvage
from fairlead.store.rows import decode_value, read_table
from fairlead.store.stored_messages import read_messages
from fairlead.testing import ManualClock
from tests.conformance.engines.memory_sizes import eager_evacuation, evacuate
from tests.conformance.engines.rich_scene import make_rich

Rows = dict[Table, dict[bytes, bytes]]


@pytest.fixture(scope="module")
def rich() -> Rows:
    broker = make_rich(DictionaryStore(), ManualClock())
    broker.engine.stop_working()
    return rows_of(broker.engine.store)


def rows_of(store: KeyValueStore) -> Rows:
    return {table: dict(read_table(store, table)) for table in Table}


@dataclass
class Source:
    """The rows of a damaged directory."""

    found: Rows
    last_commit: int = 1000

    def rows(self, family: str) -> Iterator[Row]:
        for table, rows in self.found.items():
            if family_name(table) == family:
                yield from (Row(key, value, False) for key, value in sorted(rows.items()))


class NewStore(DictionaryStore):
    def continue_behind(self, epoch: int, commit: int) -> None:
        while self.acquire() < epoch:
            pass
        self.write(Batch(), epoch, commit)


def rebuilt(rows: Rows) -> tuple[RepairReport, NewStore]:
    source: Any = Source(rows)
    store: Any = NewStore()
    report = RepairReport()
    rebuild(source, store, report, step=lambda family, rows: None)
    return report, store


def messages_of(store: KeyValueStore) -> dict[int, tuple[object, object, bool]]:
    """By number: where each stored message is, which claim holds it, and whether it has a row of its own."""
    found = read_messages(store)
    return {one.number: (one.state, one.terms, one.chunk.state_of(one.number) == OWN) for one in found}


def ever_enqueued(store: KeyValueStore) -> set[int]:
    """Also those of which the states of their chunks tell that they are gone."""
    return {number for one in read_messages(store) for number in one.chunk.numbers}


def stored(rows: Rows) -> KeyValueStore:
    store = DictionaryStore()
    fill(store, rows)
    return store


def fill(store: KeyValueStore, rows: Rows, commit: int = 1) -> None:
    batch = Batch()
    for table, content in rows.items():
        for key, value in content.items():
            batch.put(table, key, value)
    store.write(batch, store.acquire(), commit)


def check(store: KeyValueStore) -> None:
    """The rebuilt store is lawful, and an engine works with it."""
    assert verify_store(store).problems == []
    broker = Broker(store, clock=ManualClock())
    assert broken_laws(broker.engine) == []
    broker.run_due()
    broker.enqueue(broker.queues()[0].name, b"goes on")
    assert broken_laws(broker.engine) == []


def check_same(rows: Rows, before: Rows) -> None:
    assert heads(rows) == heads(before)
    assert counts(rows) == counts(before)
    # The row of a life may stay as long as its chunk; a rebuilt store has those that lead somewhere. Rows that lead to
    # messages of chunks which became cold are checked by the laws.
    assert rows[Table.LIVES].keys() <= before[Table.LIVES].keys()
    others = {Table.CHUNKS, Table.COLD, Table.COUNTERS, Table.LIVES, Table.RUNS, Table.MEMBERS}
    for table in set(Table) - others:
        assert rows[table] == before[table], table.name


def heads(rows: Rows) -> dict[bytes, Any]:
    """Chunks with streams become cold in a repair."""
    found = rows[Table.CHUNKS] | rows[Table.COLD]
    return {key: replace(decode_value(Table.CHUNKS, value), has_runs=False) for key, value in found.items()}


def counts(rows: Rows) -> dict[bytes, Any]:
    return {
        key: replace(decode_value(Table.COUNTERS, value), cold=0)
        for key, value in rows[Table.COUNTERS].items()
    }


def test_the_rebuilt_rows_of_a_sound_store_are_the_same_rows(rich: Rows) -> None:
    report, store = rebuilt(rich)
    assert report.ok, report
    check_same(rows_of(store), rich)
    assert store.last_commit > 1000, "numbers that were given out are not given again"
    check(store)


def test_the_rebuilt_rows_of_a_sound_directory_are_the_same_rows(rich: Rows, directory: Path) -> None:
    with closing(RocksKeyValueStore.open(directory / "rich")) as store:
        fill(store, {table: rich[table] for table in list(Table)[:8]}, commit=1)
        store.flush_table(Table.PAGES)
        fill(store, {table: rich[table] for table in list(Table)[8:]}, commit=2 << 20)
    scratch, report = directory / "scratch", RepairReport()
    scratch.mkdir()
    source = Salvage(directory / "rich", scratch, step=lambda name: None, layout=LAYOUT)
    with closing(source), closing(RocksKeyValueStore.open(directory / "new")) as store:
        rebuild(source, store, report, step=lambda family, rows: None)
        assert (source.damages, source.gaps) == ([], [])
        assert store.last_commit > 2 << 20
        check_same(rows_of(store), rich)
    assert report.ok, report


def test_a_repair_saves_what_was_published_and_what_is_still_staged(rich: Rows, directory: Path) -> None:
    """Their payloads stay in the pages where they were staged."""
    with closing(RocksKeyValueStore.open(directory / "rich")) as store:
        fill(store, {**rich, Table.COUNTERS: {}})
        before = messages_of(store)
    report = repair(directory / "rich", directory / "new")
    assert report.ok, report
    assert verify(directory / "new").problems == []
    with closing(RocksKeyValueStore.open(directory / "new", read_only=True)) as store:
        assert messages_of(store) == before
        check_same(rows_of(store), rich)


ELSEWHERE = [
    "META",
    "CONFIG",
    "BUCKETS",
    "API_KEYS",
    "RUNBOOKS",
    "EXTERNAL_QUEUES",
    "AUDIT",
    "ANSWERS",
    "SESSION_ENDS",
    "INTENTS",
]
TABLES = [table for table in Table if table.name not in ELSEWHERE]
#: Rows that follow from others are made anew.
MADE_ANEW = {
    Table.COUNTERS,
    Table.DUE,
    Table.DONE,
    Table.LIVES,
    Table.RUNS,
    Table.MEMBERS,
    Table.DEDUP_END,
    Table.PUBLISHED_END,
}
#: Windows, what may pass in a stream, decisions to publish, and closed throttle keys: nothing else tells that they were
#: there.
UNTOLD = {Table.DEDUP, Table.STREAMS, Table.PUBLISHING, Table.CLOSED}
#: Nothing is known of a message without its head and its payload.
NEEDED = {Table.CHUNKS, Table.COLD, Table.PAGES}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name.lower())
def test_all_rows_of_any_table_may_be_lost(rich: Rows, table: Table) -> None:
    before = messages_of(stored(rich))
    report, store = rebuilt({**rich, table: {}})
    after = messages_of(store)
    assert after.keys() <= ever_enqueued(stored(rich)), "a message was invented"
    assert table is Table.STATES or after.keys() <= before.keys(), "a completed message is back"
    assert table in NEEDED or after.keys() >= before.keys(), "a message is lost"
    if table in MADE_ANEW:
        assert after == before
    assert report.ok == (table in MADE_ANEW | UNTOLD), report
    check(store)


@pytest.mark.sample(10)
@pytest.mark.parametrize("seed", range(40))
def test_any_rows_may_be_lost_and_nothing_is_invented(rich: Rows, seed: int) -> None:
    random, left = Random(seed), {table: dict(rows) for table, rows in rich.items()}
    for table in random.sample(TABLES, random.choice((1, 2, 3))):
        share = random.choice((0.2, 0.5))
        left[table] = {key: value for key, value in left[table].items() if random.random() > share}
    _, store = rebuilt(left)
    assert messages_of(store).keys() <= ever_enqueued(stored(rich)), f"seed {seed}"
    check(store)


@pytest.mark.parametrize("states", ["lost", "of an earlier time"])
def test_a_repair_brings_back_no_message_of_which_an_evacuation_left_nothing(states: str) -> None:
    broker = Broker(DictionaryStore(), clock=ManualClock())
    broker.create_queue("q")
    ids = broker.enqueue_many("q", [NewMessage(b"%d" % n * 900) for n in range(9)])
    broker.drop("q", ids[2:])
    with eager_evacuation():
        evacuate(broker.engine)
    broker.drop("q", ids[1:2])
    rows = rows_of(broker.engine.store)
    (head,) = map(decode_value, [Table.CHUNKS], rows[Table.CHUNKS].values())
    assert head.left == [0, 1]
    rows[Table.STATES] = {} if states == "lost" else dict.fromkeys(rows[Table.STATES], bytes(9))
    _, store = rebuilt(rows)
    assert [info.payload for info in Broker(store, clock=ManualClock()).browse("q")] == [
        b"0" * 900,
        b"1" * 900,
    ]
    check(store)


@pytest.mark.parametrize("lost", [(), (Table.PUBLISHED, Table.PUBLISHED_END)], ids=["known", "forgotten"])
def test_staged_chunks_that_were_published_already_are_not_published_again(lost: tuple[Table, ...]) -> None:
    """Their rows are of an earlier time than those of the messages that they have become."""
    broker = Broker(DictionaryStore(), clock=ManualClock())
    broker.create_queue("q")
    broker.staging.stage("w", "a", "q", [NewMessage(b"x" * 9_000)] * 3)
    before = rows_of(broker.engine.store)
    broker.staging.publish("w", "q", ["a"])
    broker.engine.stop_working()
    stale = {table: before[table] for table in (Table.STAGED, Table.STAGED_PARTS)}
    report, store = rebuilt(rows_of(broker.engine.store) | stale | {table: {} for table in lost})
    assert report.ok == (not lost), report
    assert (rows_of(store)[Table.STAGED], rows_of(store)[Table.STAGED_PARTS]) == ({}, {})
    assert messages_of(store) == messages_of(broker.engine.store)
    check(store)


@pytest.mark.parametrize("stream", [None, "s"], ids=["leased", "in a stream"])
def test_a_message_whose_dedup_window_is_over_is_saved_where_it_was(stream: str | None) -> None:
    clock = ManualClock()
    broker = Broker(DictionaryStore(), clock=clock)
    broker.create_queue("q", dedup="1s", visibility_timeout="1h")
    broker.enqueue_many("q", [NewMessage(b"%d" % n, dedup_key=f"k{n}", stream=stream) for n in range(6)])
    clock.advance(seconds=3)
    assert len(broker.claim("q", limit=2, max_per_stream=2)) == 2
    broker.engine.stop_working()
    report, store = rebuilt(rows_of(broker.engine.store))
    assert report.ok, report
    assert messages_of(store) == messages_of(broker.engine.store)
    check(store)
