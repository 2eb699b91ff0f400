"""Backlogs on disk: what is read of them at open and by claims, and messages of many keys that are stored one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from unittest.mock import patch

import pytest

from fairlead import Complete, Fail, NewMessage
from fairlead.engine import cold
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.records.chunk import PAGE_BYTES, Chunk
from fairlead.store import cold_rows
from fairlead.store.changes import Changes
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.store.kv.port import Row, Table
from fairlead.store.rows import read_chunks
from fairlead.testing import ManualClock
from fairlead.testing.faulty import FaultyStore
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.inspect import Peek
from fairlead.verbs.operate import Hold
from fairlead.verbs.queues import CreateQueue, DeleteQueue
from fairlead.verbs.settle import Settle

READS = ("get", "get_many", "scan", "scan_many", "first_rows")


class CountingStore(DictionaryStore):
    """Counts the rows that reads return."""

    rows = 0

    def scan(
        self,
        table: Table,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int,
        reverse: bool = False,
    ) -> list[Row]:
        found = super().scan(table, start, end, limit=limit, reverse=reverse)
        self.rows += len(found)
        return found

    def get_many(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        found = super().get_many(table, keys)
        self.rows += sum(value is not None for value in found)
        return found


@contextmanager
def sizes(hot: int, scattered_from: float = 0, cached: int = 0) -> Iterator[None]:
    with patch.multiple(
        cold,
        HOT_MESSAGES=hot,
        CACHED_MESSAGES=cached,
        WINDOW_MESSAGES=5,
        MAX_READY_TIMES_LANES=scattered_from,
    ):
        yield


def opened(store: DictionaryStore | FaultyStore) -> Engine:
    engine = Engine(store, clock=ManualClock())
    engine.do(CreateQueue("q", {"retry": {"policy": "fixed", "cooldown": "1h", "attempts": 1}}))
    return engine


def enqueue(engine: Engine, keys: Sequence[int], **options: str) -> None:
    for start in range(0, len(keys), 10):
        some = enumerate(keys[start : start + 10], start)
        batch = [NewMessage(b"%d" % at, fairness_key=f"k{key}", **options) for at, key in some]  # type: ignore[arg-type]
        engine.do(EnqueueMany("q", batch))


def stored_chunks(engine: Engine) -> list[Chunk]:
    return read_chunks(engine.store, engine.memory.by_name["q"].record.queue_id)


def keyed(keys: Sequence[int]) -> list[NewMessage]:
    return [NewMessage(b"%d" % key, fairness_key=f"k{key:02}") for key in keys]


def enqueued(engine: Engine, keys: Sequence[int]) -> list[str]:
    return engine.do(EnqueueMany("q", keyed(keys)))


def random_keys(count: int, keys: int) -> list[int]:
    random = Random(7)
    return [random.randrange(keys) for _ in range(count)]


def drain(engine: Engine) -> list[bytes]:
    bodies: list[bytes] = []
    while found := engine.do(Claim("q", 7)):
        bodies += [one.payload for one in found]
        engine.do(Settle([Complete(one) for one in found]))
        assert broken_laws(engine) == []
    return bodies


def test_the_order_of_delivery_is_the_same_for_messages_that_are_stored_one_by_one() -> None:
    orders = []
    for hot, scattered_from in ((10_000, 0.0), (0, 1e10), (0, 0.0), (30, 50.0)):
        with sizes(hot, scattered_from):
            engine = opened(DictionaryStore())
            enqueue(engine, random_keys(120, 30))
            assert broken_laws(engine) == []
            orders.append(drain(engine))
    assert orders[0] == orders[1] == orders[2] == orders[3]


@pytest.mark.parametrize(
    ("keys", "backlog", "alone"),
    [(10, 0, 10), (2, 0, 0), (10, 10_000, 0)],
    ids=["many keys", "few keys", "a small backlog"],
)
def test_messages_of_many_keys_are_stored_one_by_one_behind_a_backlog(
    keys: int, backlog: int, alone: int
) -> None:
    with sizes(0, backlog, cached=10_000):
        engine = opened(DictionaryStore())
        enqueue(engine, [0, *range(1, 10)])
        before = {chunk.first for chunk in stored_chunks(engine)}
        enqueue(engine, [at % keys for at in range(10)])
        alone_now = [chunk.count for chunk in stored_chunks(engine) if chunk.first not in before]
        assert alone_now.count(1) == alone
        assert broken_laws(engine) == []


def test_ids_of_messages_that_are_stored_one_by_one_come_in_the_order_of_the_messages() -> None:
    """More than there are chunks in a commit."""
    with sizes(0):
        engine = opened(DictionaryStore())
        enqueue(engine, list(range(10)))
        ids = engine.do(
            EnqueueMany("q", [NewMessage(b"%d" % at, fairness_key=f"k{at}") for at in range(600)])
        )
        assert ids == sorted(set(ids))
        found = {one.id: one.payload for one in engine.do(Claim("q", 700))}
        assert [found[one] for one in ids] == [b"%d" % at for at in range(600)]
        assert broken_laws(engine) == []
        again = engine.do(Enqueue("q", b"last", fairness_key="k1"))
        assert again > ids[-1]


def test_messages_stored_one_by_one_are_there_for_later_requests_of_their_transaction() -> None:
    data = DictionaryData()
    with sizes(0):
        engine = opened(DictionaryStore(data))
        with engine.transaction():
            ids = [*enqueued(engine, range(10)), *enqueued(engine, range(10, 20))]
            found = engine.do(Claim("q", 5))
            engine.do(Settle([Complete(one) for one in found[:2]]))
            engine.do(Hold("q", [found[2].id]))
            assert [one.id for one in engine.do(Peek("q", 30))] == ids[5:]
            ids += enqueued(engine, range(20, 30))
        assert [one.id for one in found] == ids[:5]
        assert broken_laws(engine) == []
        engine.close()
        again = Engine(DictionaryStore(data), clock=ManualClock())
        assert [one.id for one in again.do(Peek("q", 30))] == ids[5:]
        assert broken_laws(again) == []


def test_an_exchange_claims_messages_that_it_stored_one_by_one() -> None:
    with sizes(0):
        engine = opened(DictionaryStore())
        batch = EnqueueMany("q", keyed(range(10)))
        ids, found = engine.do(Exchange([batch, Claim("q", 4)]))
        assert [one.id for one in found] == ids[:4]
        assert broken_laws(engine) == []


def test_a_queue_may_be_deleted_in_the_transaction_that_stored_messages_one_by_one() -> None:
    with sizes(0):
        engine = opened(DictionaryStore())
        with engine.transaction():
            enqueued(engine, range(10))
            engine.do(DeleteQueue("q"))
        engine.do(CreateQueue("q"))
        assert engine.do(Claim("q", 10)) == []
        assert broken_laws(engine) == []


def test_a_long_payload_of_a_message_that_is_alone_is_in_a_page() -> None:
    data, payload = DictionaryData(), bytes(PAGE_BYTES + 1)
    with sizes(0):
        engine = opened(DictionaryStore(data))
        engine.do(EnqueueMany("q", [NewMessage(payload, fairness_key=key) for key in "abc"]))
        assert broken_laws(engine) == []
        assert [one.payload for one in engine.do(Claim("q", 2))] == [payload] * 2
        engine.close()
        again = Engine(DictionaryStore(data), clock=ManualClock())
        assert [one.payload for one in again.do(Claim("q", 2))] == [payload]
        assert broken_laws(again) == []


def test_a_claim_reads_few_chunks_more_than_it_needs() -> None:
    with sizes(0, 1e10), patch.object(cold, "WINDOW_MESSAGES", 100), patch.object(cold, "STEP_CHUNKS", 3):
        store = CountingStore()
        engine = opened(store)
        for at in range(40):
            engine.do(EnqueueMany("q", [NewMessage(b"%d" % at, fairness_key=key) for key in "ab"]))
        store.rows = 0
        assert len(engine.do(Claim("q", 4))) == 4
        # Rows of two lanes, and heads: of the messages that it takes, one more of each lane, and three.
        assert store.rows <= 2 * 42 + 6 + 3
        assert broken_laws(engine) == []
        assert len(drain(engine)) == 76


def test_each_lane_is_found_with_its_first_and_its_last_row() -> None:
    """Of few rows and of many, so that some are read one after the other, and others passed over."""
    rows = [1, 2, 40, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 200, 8, 7, 9, 16, 64, 1]
    keys = [f"k{key:02}" for key, count in enumerate(rows) for _ in range(count)]
    with sizes(0, 1e10), patch.object(cold_rows, "_PAGE_ROWS", 20):
        engine = opened(DictionaryStore())
        for key in keys:
            engine.do(Enqueue("q", b"x", fairness_key=key))
        queue_id = engine.memory.by_name["q"].record.queue_id
        found = {lane: (first, last) for _, lane, first, last in cold_rows.read_lanes(engine.store, queue_id)}
        starts = {(key,): 0 for key in keys}
        known = cold_rows.read_runs(engine.store, Changes(), queue_id, queue_id, starts, limit=300)
        assert found == {lane: (runs[0], runs[-1]) for lane, runs in known.items()}
        assert [len(known[f"k{key:02}",]) for key in range(len(rows))] == rows


def test_a_message_that_is_alone_is_not_claimed_in_the_transaction_that_holds_it() -> None:
    with sizes(0):
        engine = opened(DictionaryStore())
        enqueue(engine, [*range(10)] * 3)
        ids = [one.id for one in engine.do(Peek("q", 30))]
        with engine.transaction():
            engine.do(Hold("q", ids[:15]))
            found = engine.do(Claim("q", 30))
            assert sorted(one.id for one in found) == sorted(ids[15:])
        assert broken_laws(engine) == []


def test_a_message_that_is_alone_is_not_claimed_again_after_a_reopening() -> None:
    data = DictionaryData()
    with sizes(0):
        engine = opened(DictionaryStore(data))
        enqueue(engine, [*range(10)] * 3)
        before = {one.payload for one in engine.do(Claim("q", 13))}
        engine.close()
        again = Engine(DictionaryStore(data), clock=ManualClock())
        assert broken_laws(again) == []
        assert sorted([*before, *drain(again)]) == sorted(b"%d" % at for at in range(30))


def test_a_claim_of_many_lanes_on_disk_reads_as_often_as_one_of_few() -> None:
    counts = []
    for lanes in (4, 40):
        with sizes(0):
            store = FaultyStore(DictionaryStore())
            engine = opened(store)
            enqueue(engine, [*range(lanes)] * 3)
            before = sum(store.calls[read] for read in READS)
            assert len(engine.do(Claim("q", lanes))) == lanes
            counts.append(sum(store.calls[read] for read in READS) - before)
    # A claim from more than a few lanes reads some of them before, in a hold of its own.
    assert counts[1] <= 2 * counts[0]


def test_cold_chunks_have_the_room_that_hot_ones_leave() -> None:
    with sizes(100, 1e10):
        store = FaultyStore(DictionaryStore())
        engine = opened(store)
        enqueue(engine, [0] * 150)
        assert not engine.memory.cold_chunks
        for _ in range(11):
            found = engine.do(Claim("q", 10))
            engine.do(Settle([Complete(one) for one in found]))
        assert sum(chunk.live for chunk in engine.memory.cold_chunks.values()) > 0
        assert broken_laws(engine) == []


@pytest.mark.parametrize("others", [20, 400])
def test_an_opening_reads_nothing_of_messages_that_are_dead_or_wait(others: int) -> None:
    data = DictionaryData()
    engine = opened(DictionaryStore(data))
    enqueue(engine, [0] * 10)
    enqueue(engine, random_keys(others, 10), delay="1h")
    ready = engine.do(Claim("q", 10))
    enqueue(engine, random_keys(others, 10))
    while found := engine.do(Claim("q", 100)):
        engine.do(Settle([Fail(one) for one in found]))
    engine.do(Settle([Complete(one) for one in ready]))
    counts = [queue.counts for queue in engine.memory.by_id.values()]
    assert sorted([(one.waiting, one.ready) for one in counts]) == [(0, others), (others, 0)]
    engine.close()
    store = CountingStore(data)
    again = Engine(store, clock=ManualClock())
    assert store.rows < 20
    assert (len(again.memory.chunks), len(again.memory.own)) == (0, 0)
    assert broken_laws(again) == []
