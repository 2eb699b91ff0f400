"""Enqueues of one transaction into one queue share a chunk, and nobody can tell from what is delivered."""

from __future__ import annotations

from operator import itemgetter
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from fairlead import Complete, Delivery, Fail, NewMessage, Release
from fairlead.engine import cold
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.errors import InvalidRequest, QueueNotFound, Unavailable
from fairlead.records.chunk import MAX_SHARED_BYTES
from fairlead.records.ids import MAX_CHUNK_MESSAGES
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.store.kv.port import Table
from fairlead.testing import ManualClock
from fairlead.verbs.claim import Claim
from fairlead.verbs.config import ConfigSet
from fairlead.verbs.enqueue import Enqueue, EnqueueMany, Quarantine
from fairlead.verbs.inspect import Stats
from fairlead.verbs.queues import CreateQueue, DeleteQueue, Purge
from fairlead.verbs.settle import Settle
from fairlead.verbs.staging import StagingPublish, StagingStage
from tests.conformance.engines.memory_sizes import memory_sizes

Message = dict[str, Any]


def open_engine(data: DictionaryData | None = None, clock: ManualClock | None = None) -> Engine:
    return Engine(DictionaryStore(data), clock=clock or ManualClock(), rng=Random(0))


@pytest.fixture
def engine() -> Engine:
    made = open_engine()
    made.do(CreateQueue("q"))
    return made


def chunk_sizes(engine: Engine, queue: str = "q") -> list[int]:
    """How many messages the stored chunks of a queue have."""
    queue_id = engine.memory.by_name[queue].record.queue_id
    assert broken_laws(engine) == []
    return [chunk.count for _, chunk in sorted(engine.memory.chunks.items()) if chunk.queue_id == queue_id]


def payloads(engine: Engine, queue: str = "q", limit: int = 1000) -> list[bytes]:
    return [one.payload for one in engine.do(Claim(queue, limit))]


def reopened(engine: Engine) -> Engine:
    assert broken_laws(engine) == []
    assert isinstance(engine.store, DictionaryStore)
    engine.stop_working()
    assert isinstance(engine.clock, ManualClock)
    return open_engine(engine.store.data, engine.clock)


def test_a_thousand_single_enqueues_of_a_transaction_are_one_chunk(engine: Engine) -> None:
    with engine.transaction():
        ids = [engine.do(Enqueue("q", b"%d" % n * 20, fairness_key=f"k{n % 7}")) for n in range(1000)]
    assert chunk_sizes(engine) == [1000]
    assert len(set(ids)) == 1000
    pages = list(engine.store.scan(Table.PAGES, b"", limit=100))
    assert 1 < len(pages) < 10
    found = engine.do(Claim("q", 1000))
    assert sorted(one.id for one in found) == sorted(ids)
    by_id = {one.id: (one.payload, one.fairness_key) for one in found}
    assert [by_id[one] for one in ids] == [(b"%d" % n * 20, f"k{n % 7}") for n in range(1000)]


def test_single_enqueues_outside_a_transaction_share_nothing(engine: Engine) -> None:
    for n in range(3):
        engine.do(Enqueue("q", b"%d" % n))
    assert chunk_sizes(engine) == [1, 1, 1]


def test_each_queue_of_a_transaction_has_a_chunk_of_its_own(engine: Engine) -> None:
    engine.do(CreateQueue("other"))
    with engine.transaction():
        for n in range(10):
            engine.do(Enqueue("q", b"q%d" % n))
            engine.do(Enqueue("other", b"other%d" % n))
    assert chunk_sizes(engine) == chunk_sizes(engine, "other") == [10]
    assert payloads(engine) == [b"q%d" % n for n in range(10)]
    assert payloads(engine, "other") == [b"other%d" % n for n in range(10)]


def test_a_chunk_that_is_full_is_followed_by_the_next_one(engine: Engine) -> None:
    with engine.transaction():
        engine.do(EnqueueMany("q", [NewMessage(b"%d" % n) for n in range(MAX_CHUNK_MESSAGES - 2)]))
        for n in range(4):
            engine.do(Enqueue("q", b"single %d" % n))
    assert chunk_sizes(engine) == [MAX_CHUNK_MESSAGES, 2]
    assert payloads(engine, limit=5000)[-4:] == [b"single %d" % n for n in range(4)]


def test_a_batch_that_does_not_fit_gets_a_chunk_of_its_own_which_grows_on(engine: Engine) -> None:
    with engine.transaction():
        engine.do(Enqueue("q", b"first"))
        engine.do(EnqueueMany("q", [NewMessage(b"batch")] * MAX_CHUNK_MESSAGES))
        engine.do(EnqueueMany("q", [NewMessage(b"two")] * 2))
        engine.do(Enqueue("q", b"last"))
    assert chunk_sizes(engine) == [1, MAX_CHUNK_MESSAGES, 3]
    assert payloads(engine, limit=5000)[-3:] == [b"two", b"two", b"last"]


def test_a_shared_chunk_has_bounded_bytes(engine: Engine) -> None:
    half = bytes(MAX_SHARED_BYTES // 2)
    with engine.transaction():
        for _ in range(5):
            engine.do(Enqueue("q", half))
    assert chunk_sizes(engine) == [2, 2, 1]


def test_a_chunk_grows_only_while_there_is_room_in_memory(engine: Engine) -> None:
    engine.do(CreateQueue("unordered", {"ordering": "none"}))
    with patch.multiple(cold, HOT_MESSAGES=5):
        with engine.transaction():
            for n in range(10):
                engine.do(Enqueue("unordered", b"%d" % n))
        assert engine.memory.hot_messages == 5
        assert payloads(engine, "unordered") == [b"%d" % n for n in range(10)]


def test_a_transaction_takes_300_000_messages() -> None:
    data = DictionaryData()
    engine = open_engine(data)
    engine.do(CreateQueue("q"))
    batch = [NewMessage(b"x")] * 3999
    with engine.transaction():
        for n in range(75):
            engine.do(EnqueueMany("q", batch))
            engine.do(Enqueue("q", b"%d" % n))
    assert engine.do(Stats("q")).ready == 300_000
    engine = open_engine(data)
    numbers = engine.memory.by_name["q"].schedule.numbers()
    assert len(set(numbers)) == 300_000
    found: list[Delivery] = []
    for _ in range(30):
        found += engine.do(Claim("q", 10_000))
    assert [one.payload for one in found if one.payload != b"x"] == [b"%d" % n for n in range(75)]


def test_places_between_enqueues_take_more_chunks_than_a_commit_has_numbers_for(engine: Engine) -> None:
    engine.do(EnqueueMany("q", [NewMessage(b"failed %d" % n) for n in range(300)]))
    held = engine.do(Claim("q", 300))
    with engine.transaction():
        for n, delivery in enumerate(held):
            engine.do(Settle([Fail(delivery)]))
            engine.do(Enqueue("q", b"new %d" % n))
    expected = [b"%s %d" % (word, n) for n in range(300) for word in (b"failed", b"new")]
    assert payloads(engine) == expected
    assert broken_laws(engine) == []


# What comes between two enqueues


def test_a_message_that_failed_stays_before_what_is_enqueued_after_it(engine: Engine) -> None:
    engine.do(Enqueue("q", b"a"))
    (held,) = engine.do(Claim("q"))
    with engine.transaction():
        engine.do(Enqueue("q", b"b"))
        engine.do(Settle([Fail(held)]))
        engine.do(Enqueue("q", b"c"))
        engine.do(Enqueue("q", b"d"))
    assert chunk_sizes(engine) == [1, 1, 2]
    assert payloads(reopened(engine)) == [b"b", b"a", b"c", b"d"]


def test_what_is_published_stays_before_what_is_enqueued_after_it(engine: Engine) -> None:
    engine.do(StagingStage("w", "a", "q", [NewMessage(b"published")]))
    with engine.transaction():
        engine.do(Enqueue("q", b"before"))
        engine.do(StagingPublish("w", "q", ["a"]))
        engine.do(Enqueue("q", b"after"))
    assert payloads(reopened(engine)) == [b"before", b"published", b"after"]


def test_a_purge_takes_only_what_was_enqueued_before_it(engine: Engine) -> None:
    with engine.transaction():
        engine.do(Enqueue("q", b"purged"))
        assert engine.do(Purge("q")) == 1
        engine.do(Enqueue("q", b"stays"))
    assert payloads(reopened(engine)) == [b"stays"]


@pytest.mark.parametrize("settled", [0, 1, 2])
def test_messages_of_a_growing_chunk_can_be_claimed_and_settled(engine: Engine, settled: int) -> None:
    with engine.transaction():
        for n in range(2):
            engine.do(Enqueue("q", b"%d" % n))
        held = engine.do(Claim("q", 2))
        engine.do(Settle([Complete(one) for one in held[:settled]]))
        engine.do(Enqueue("q", b"2"))
        assert [one.payload for one in held] == [b"0", b"1"]
        engine.do(Settle([Release(one) for one in held[settled:]]))
        engine.do(Enqueue("q", b"3"))
    assert payloads(engine) == [b"%d" % n for n in range(settled, 4)]
    assert broken_laws(engine) == []


def test_a_queue_that_is_deleted_and_created_again_gets_a_new_chunk(engine: Engine) -> None:
    with engine.transaction():
        engine.do(Enqueue("q", b"gone"))
        engine.do(DeleteQueue("q"))
        engine.do(CreateQueue("q"))
        engine.do(Enqueue("q", b"stays"))
        engine.do(Enqueue("q", b"too"))
    assert chunk_sizes(engine) == [2]
    assert payloads(engine) == [b"stays", b"too"]


def test_a_lost_transaction_leaves_nothing_of_a_growing_chunk(engine: Engine) -> None:
    def lose() -> None:
        with engine.transaction():
            for n in range(5):
                engine.do(Enqueue("q", b"%d" % n))
            raise ZeroDivisionError

    with pytest.raises(Unavailable):
        lose()
    assert chunk_sizes(engine) == []
    engine.do(Enqueue("q", b"later"))
    assert payloads(engine) == [b"later"]


def test_a_refused_enqueue_leaves_the_growing_chunk_as_it_was(engine: Engine) -> None:
    with engine.transaction():
        engine.do(Enqueue("q", b"0"))
        with pytest.raises(QueueNotFound):
            engine.do(Enqueue("unknown", b"refused"))
        engine.do(Enqueue("q", b"1"))
    assert chunk_sizes(engine) == [2]


def test_a_request_that_is_refused_behind_enqueues_is_refused_alone(engine: Engine) -> None:
    with engine.transaction():
        for n in range(3):
            engine.do(Enqueue("q", b"%d" % n))
        with pytest.raises(InvalidRequest):
            engine.do(EnqueueMany("q", [5]))  # type: ignore[list-item]
        with pytest.raises(QueueNotFound):
            engine.do(Stats("unknown"))
        engine.do(Enqueue("q", b"3"))
    assert chunk_sizes(engine) == [4]
    assert payloads(reopened(engine)) == [b"%d" % n for n in range(4)]


def test_what_differs_between_messages_of_a_shared_chunk_survives_a_reopening() -> None:
    data, clock = DictionaryData(), ManualClock()
    engine = open_engine(data, clock)
    engine.do(CreateQueue("q", {"ordering": "none", "dedup": "live"}))
    with engine.transaction():
        engine.do(Enqueue("q", b"plain"))
        engine.do(
            Enqueue("q", b"heavy", fairness_key="k", weight=5, headers={"a": "b"}, throttle_keys=("t",))
        )
        engine.do(Enqueue("q", b"late", delay="1m", stream="s"))
        first = engine.do(Enqueue("q", b"once", dedup_key="d", ttl="1h"))
        assert engine.do(Enqueue("q", b"twice", dedup_key="d")) == first
        engine.do(Enqueue("q", b"plain again"))
    assert chunk_sizes(engine) == [5]
    engine.stop_working()
    engine = open_engine(data, clock)
    clock.advance(ms=60_000)
    found = {one.payload: one for one in engine.do(Claim("q", 10))}
    assert found.keys() == {b"plain", b"heavy", b"late", b"once", b"plain again"}
    heavy = found[b"heavy"]
    assert (heavy.fairness_key, heavy.weight, heavy.headers) == ("k", 5, {"a": "b"})
    assert heavy.throttle_keys == ("t",)
    assert found[b"late"].stream == "s"
    assert found[b"plain again"].weight == 1
    assert broken_laws(engine) == []


# Ten turns as transactions, and as many single requests


class Turns:
    """Requests drawn from a seed. A settle names deliveries by their index among all so far."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._keys = [f"k{n}" for n in range(self._random.choice((1, 3, 40)))]
        self._special = self._random.choice((0.0, 0.1, 0.5))
        self._body = 0

    def turn(self) -> list[Any]:
        return [self._step() for _ in range(self._random.choice((1, 10, 60)))]

    def _step(self) -> Any:
        random = self._random
        kind = random.random()
        if kind < 0.8:
            return Enqueue("q", **self._message())
        if kind < 0.88:
            return EnqueueMany("q", [NewMessage(**self._message()) for _ in range(random.randint(0, 6))])
        if kind < 0.9:
            return Quarantine("q", [NewMessage(**self._message())], error="broken")
        if kind < 0.95:
            return Claim(random.choice(("q", "q", "q.dlq")), random.randint(1, 8))
        return random.choice((Complete, Fail, Release)), random.random()

    def _message(self) -> Message:
        random = self._random
        self._body += 1

        def drawn(field: str, *values: Any) -> Message:
            return {field: random.choice(values)} if random.random() < self._special else {}

        return {
            "payload": b"%d" % self._body,
            "fairness_key": random.choice(self._keys),
            **drawn("weight", 1, 2, 5),
            **drawn("headers", {"a": "b"}, {}),
            **drawn("throttle_keys", ("t",), ("t", "u")),
            **drawn("stream", "s1", "s2", "s3"),
            **drawn("delay", "1s", "5s"),
            **drawn("ttl", "2s", "1h"),
            **drawn("dedup_key", "d1", "d2", "d3"),
        }


def carry_out(engine: Engine, step: Any, held: list[Delivery]) -> None:
    if isinstance(step, tuple):
        settle, share = step
        if held:
            engine.do(Settle([settle(held[int(share * len(held))])]))
    elif isinstance(step, Claim):
        held += engine.do(step)
    else:
        engine.do(step)


def shown(delivery: Delivery) -> tuple[Any, ...]:
    return (
        delivery.payload,
        delivery.fairness_key,
        delivery.weight,
        delivery.headers,
        delivery.throttle_keys,
        delivery.stream,
        delivery.attempts,
    )


@pytest.mark.sample(8)
@pytest.mark.parametrize("seed", range(30), ids=lambda seed: f"seed{seed}-")
def test_ten_turns_as_transactions_deliver_in_the_order_of_as_many_single_requests(seed: int) -> None:
    with memory_sizes(seed):
        random, reopens = Random(seed), seed % 2 == 0
        options = {
            "ordering": random.choice(("none", "release", "strict")),
            "retry": random.choice(({"policy": "immediate"}, {"policy": "fixed", "cooldown": "1s"})),
            "dedup": random.choice(("live", "1m")),
            "visibility_timeout": "1h",
        }
        alone = deliver_turns(seed, options, joined=False, reopens=reopens)
        assert deliver_turns(seed, options, joined=True, reopens=reopens) == alone


def deliver_turns(seed: int, options: dict[str, Any], *, joined: bool, reopens: bool) -> list[Any]:
    data, clock, turns = DictionaryData(), ManualClock(), Turns(seed)
    engine = open_engine(data, clock)
    engine.do(CreateQueue("q", options))
    engine.do(ConfigSet("throttle:t:rate", "1000"))
    held: list[Delivery] = []
    for _ in range(10):
        if joined:
            with engine.transaction():
                for step in turns.turn():
                    carry_out(engine, step, held)
        else:
            for step in turns.turn():
                carry_out(engine, step, held)
        assert broken_laws(engine) == []
        clock.advance(ms=Random(seed).choice((1, 1000)))
    if reopens:
        engine.stop_working()
        engine = open_engine(data, clock)
    for _ in range(3):
        clock.advance(ms=5000)
        for queue in ("q", "q.dlq"):
            held += engine.do(Claim(queue, 7))
            held += engine.do(Claim(queue, 2000))
    found = [shown(delivery) for delivery in held]
    # Turns and weights that a reopening finds follow from what is in memory then, which depends on the chunks. The
    # order within a key does not.
    return sorted(found, key=itemgetter(1)) if reopens else found
