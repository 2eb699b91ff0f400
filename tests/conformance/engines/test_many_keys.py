"""Nobody holds the lock for long because of keys and messages that are gone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from fairlead import Complete, Fail, NewMessage
from fairlead.decide.dead_filter import DeadFilter
from fairlead.engine import cold, moves, walk
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.engine.memory import Memory
from fairlead.engine.queue import Queue
from fairlead.engine.read_ahead import read_ahead
from fairlead.engine.reduce.queues import sweep_states, take_discarded
from fairlead.engine.transaction import HookAnswers, Transaction
from fairlead.engine.work import inspect, large, queues
from fairlead.errors import StoreFull
from fairlead.records.lease import GroupLease
from fairlead.request import LOCAL
from fairlead.schedule.drr import Container, Scheduler
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.store.kv.port import Row, Table
from fairlead.testing import ManualClock
from fairlead.testing.faulty import FaultyStore
from fairlead.verbs.claim import Claim
from fairlead.verbs.consumers import ConsumersClaim, ConsumersRegister
from fairlead.verbs.enqueue import EnqueueMany
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.inspect import Peek, Stats
from fairlead.verbs.operate import Drop
from fairlead.verbs.queues import CreateQueue, DeleteQueue, Purge, UpdateQueue
from fairlead.verbs.sessions import OpenSession
from fairlead.verbs.settle import Settle

KEYS = 20
#: Keys that a step forgets, in these tests.
FEW = 3


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(moves, "MAX_EMPTY_KEYS", FEW)
    made = Engine(DictionaryStore(), clock=clock)
    made.do(CreateQueue("q", {"visibility_timeout": "1h"}))
    return made


def enqueue(engine: Engine, queue: str = "q", ttl: str | None = None) -> list[bytes]:
    payloads = [b"%d" % n for n in range(KEYS)]
    messages = [NewMessage(one, fairness_key=f"k{one!r}", ttl=ttl) for one in payloads]
    engine.do(EnqueueMany(queue, messages))
    return payloads


def keys_in_ring(engine: Engine) -> int:
    return engine.memory.by_name["q"].schedule.active_keys


def check_works(engine: Engine) -> None:
    payloads = enqueue(engine)
    assert keys_in_ring(engine) == KEYS
    assert sorted(one.payload for one in engine.do(Claim("q", 100))) == sorted(payloads)
    assert broken_laws(engine) == []


@pytest.mark.parametrize("hot_messages", [0, 400_000])
def test_a_purge_leaves_few_keys_in_the_ring(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, hot_messages: int
) -> None:
    monkeypatch.setattr(cold, "HOT_MESSAGES", hot_messages)
    enqueue(engine)
    steps: list[int] = []
    drop_empty_keys = Scheduler.drop_empty_keys

    def counted(schedule: Scheduler, limit: int) -> bool:
        steps.append(limit)
        assert len(steps) < KEYS, "the purge does not end"
        return drop_empty_keys(schedule, limit)

    monkeypatch.setattr(Scheduler, "drop_empty_keys", counted)
    assert engine.do(Purge("q")) == KEYS
    assert steps == [FEW] * ((KEYS - 1) // FEW)
    assert keys_in_ring(engine) <= FEW
    engine.do(Purge("q"))
    check_works(engine)


def test_no_step_waits_for_keys_that_cannot_leave_the_ring(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold, "HOT_MESSAGES", 0)
    enqueue(engine)
    queue = engine.memory.by_name["q"]
    with engine.transaction() as tx:
        # Its messages are gone, and memory does not know yet that nothing is left of them on disk.
        monkeypatch.setattr(queue.counts, "ready", 0)
        assert not moves.forget_keys(tx, queue)


@pytest.mark.parametrize("hot_messages", [0, 400_000])
def test_the_end_of_many_lives_leaves_few_keys_in_the_ring(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, hot_messages: int
) -> None:
    monkeypatch.setattr(cold, "HOT_MESSAGES", hot_messages)
    enqueue(engine, ttl="1s")
    clock.advance(ms=1000)
    assert keys_in_ring(engine) <= FEW
    assert broken_laws(engine) == []


def test_a_claim_of_a_queue_without_messages_passes_over_few_keys(engine: Engine) -> None:
    enqueue(engine)
    engine.do(Drop("q", filter=DeadFilter()))
    assert keys_in_ring(engine) == KEYS
    for left in range(KEYS - FEW, FEW, -FEW):
        assert engine.do(Claim("q")) == []
        assert keys_in_ring(engine) == left
    engine.do(Claim("q"))
    check_works(engine)


def test_a_key_with_messages_stays_in_the_ring(engine: Engine) -> None:
    enqueue(engine)
    queue = engine.memory.by_name["q"]
    queue.schedule.drop_empty_keys(100)
    assert keys_in_ring(engine) == KEYS
    assert len(engine.do(Claim("q", 100))) == KEYS


def test_a_limit_of_unsettled_messages_per_key_counts_what_is_leased_already(engine: Engine) -> None:
    for _ in range(3):
        enqueue(engine)
    held = engine.do(Claim("q", KEYS + 5))
    engine.do(Settle([Fail(held[0])]))
    engine.do(UpdateQueue("q", {"max_unsettled_per_key": 2}))
    assert broken_laws(engine) == []
    found = engine.do(Claim("q", 100))
    # Each key may have two: five keys had two before, of which one has failed once.
    assert len(found) == 2 * KEYS - (KEYS + 5) + 1
    assert engine.do(Claim("q")) == []
    engine.do(UpdateQueue("q", {"max_unsettled_per_key": 0}))
    assert broken_laws(engine) == []
    assert len(engine.do(Claim("q", 100))) == 3 * KEYS - 2 * KEYS


# Lanes on disk

#: Lanes that one hold reads from disk, in these tests, and messages that it reads ahead.
LANES = 3
AHEAD = 6


@pytest.fixture
def reads(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many lanes each transaction read from disk."""
    for module in (cold, walk, inspect):
        monkeypatch.setattr(module, "STEP_LANES", LANES)
    monkeypatch.setattr(cold, "STEP_READ_AHEAD", AHEAD)
    monkeypatch.setattr(cold, "HOT_MESSAGES", 0)
    counts = [0]
    begin, scan_many = Engine._begin, engine.store.scan_many

    def begun(self: Engine, hooks: HookAnswers) -> Transaction:
        counts.append(0)
        return begin(self, hooks)

    def scanned(table: Table, ranges: Sequence[Any], **options: Any) -> list[list[Row]]:
        counts[-1] += len(ranges) if table is Table.RUNS else 0
        return scan_many(table, ranges, **options)

    monkeypatch.setattr(Engine, "_begin", begun)
    monkeypatch.setattr(engine.store, "scan_many", scanned)
    return counts


@pytest.mark.parametrize("limit", [KEYS, 10 * KEYS])
def test_a_claim_reads_few_lanes_at_a_time(
    engine: Engine, reads: list[int], monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(large, "CLAIM_PART", 3 * KEYS)
    payloads = enqueue(engine) + enqueue(engine)
    found = [one.payload for one in engine.do(Claim("q", limit))]
    assert found == payloads[:limit]
    assert sum(reads) >= KEYS
    assert max(reads) <= LANES
    assert broken_laws(engine) == []


@pytest.mark.parametrize("way", ["in a session", "in an exchange", "of two queues"])
def test_a_claim_that_is_one_write_reads_few_lanes_at_a_time(
    engine: Engine, reads: list[int], way: str
) -> None:
    payloads = enqueue(engine)
    if way == "in a session":
        engine.do(OpenSession("s"))
        found = engine.do(Claim("q", 2 * KEYS), LOCAL._replace(session="s", number=1))
    elif way == "in an exchange":
        (found,) = engine.do(Exchange([Claim("q", 2 * KEYS)]))
    else:
        engine.do(CreateQueue("other"))
        payloads += enqueue(engine, "other")
        found = engine.do(Claim(["q", "other"], 2 * KEYS))
    assert sorted(one.payload for one in found) == sorted(payloads)
    assert sum(reads) >= KEYS
    assert max(reads) <= LANES
    assert broken_laws(engine) == []


@pytest.mark.parametrize(("messages", "most"), [(1, 4), (2, 2), (200, 1)])
def test_a_claim_reads_few_chunks_at_a_time_and_fewer_large_ones(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, messages: int, most: int
) -> None:
    """All messages are of one key, and one claim takes the first ones."""
    monkeypatch.setattr(cold, "HOT_MESSAGES", 0)
    monkeypatch.setattr(cold, "CACHED_MESSAGES", 0)
    monkeypatch.setattr(cold, "STEP_CHUNKS", 4)
    monkeypatch.setattr(cold, "MESSAGES_OF_STEP", 2)
    for _ in range(KEYS):
        engine.do(EnqueueMany("q", [NewMessage(b"x", fairness_key=f"k{n}") for n in range(messages)]))
    held, chunks = [0], engine.store.get_many
    begin = Engine._begin

    def begun(self: Engine, hooks: HookAnswers) -> Transaction:
        held.append(0)
        return begin(self, hooks)

    def read(table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        held[-1] += len(keys) if table is Table.COLD else 0
        return chunks(table, keys)

    monkeypatch.setattr(Engine, "_begin", begun)
    monkeypatch.setattr(engine.store, "get_many", read)
    monkeypatch.setattr(cold, "CACHED_MESSAGES", 100_000)
    read_ahead(engine, ["q"], KEYS)
    assert sum(held) >= KEYS // messages
    assert max(held) <= most
    assert len(engine.do(Claim("q", KEYS))) == KEYS
    assert max(held) <= most
    assert broken_laws(engine) == []


def test_a_numbered_claim_reads_few_lanes_at_a_time(engine: Engine, reads: list[int]) -> None:
    enqueue(engine)
    generation = engine.do(ConsumersRegister("etl", "q")).generation
    assert engine.do(ConsumersClaim("etl", "q", generation, 1)).count == KEYS
    assert sum(reads) >= KEYS
    assert max(reads) <= LANES


def test_views_read_few_lanes_at_a_time(engine: Engine, reads: list[int]) -> None:
    payloads = enqueue(engine)
    assert sorted(one.payload for one in engine.do(Peek("q", limit=100))) == sorted(payloads)
    stats = engine.do(Stats("q", keys=True))
    assert sum(key.pending for key in stats.keys) == KEYS
    assert sum(reads) >= KEYS
    assert max(reads) <= LANES


def test_lanes_that_are_read_together_share_what_is_read_ahead(engine: Engine, reads: list[int]) -> None:
    for _ in range(AHEAD):
        enqueue(engine)
    engine.do(Claim("q", LANES))
    assert engine.memory.by_name["q"].schedule.held <= AHEAD
    engine.do(Claim("q"))
    assert engine.memory.by_name["q"].schedule.held <= 2 * AHEAD


# Deleting a queue


def states(engine: Engine) -> int:
    return len(engine.memory.own)


def with_states(engine: Engine, queue: str) -> None:
    """Messages with states of their own: dead, leased after a failure, ready after a failure."""
    enqueue(engine, queue)
    held = engine.do(Claim(queue, KEYS))
    engine.do(Settle([Fail(one, dead=at < 5) for at, one in enumerate(held)]))
    assert len(engine.do(Claim(queue, 3))) == 3


def test_a_deleted_queue_leaves_nothing_in_memory_and_takes_nothing_of_others(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "_SWEPT_STATES", 3)
    with_states(engine, "q")
    engine.do(CreateQueue("other"))
    with_states(engine, "other")
    sweeps: list[int] = []

    def counted(memory: Memory, limit: int) -> bool:
        before = len(memory.own)
        is_left = sweep_states(memory, limit)
        sweeps.append(before - len(memory.own))
        return is_left

    monkeypatch.setattr(queues, "sweep_states", counted)
    engine.do(DeleteQueue("q"))
    assert states(engine) == KEYS
    assert len(sweeps) > KEYS // 3
    assert max(sweeps) <= 3
    assert take_discarded(engine.memory) == []
    assert broken_laws(engine) == []
    stats = engine.do(Stats("other"))
    assert (stats.ready, stats.leased, stats.dead) == (KEYS - 8, 3, 5)


def test_a_queue_that_could_not_be_deleted_is_as_it_was(clock: ManualClock) -> None:
    store = FaultyStore(DictionaryStore())
    engine = Engine(store, clock=clock)
    engine.do(CreateQueue("q", {"visibility_timeout": "1h"}))
    with_states(engine, "q")
    before = engine.do(Stats("q"))
    store.arm(1, "fail", only=("write",))
    with pytest.raises(StoreFull):
        engine.do(DeleteQueue("q"))
    assert broken_laws(engine) == []
    after = engine.do(Stats("q"))
    assert (after.ready, after.leased, after.dead) == (before.ready, before.leased, before.dead)
    engine.do(DeleteQueue("q"))
    assert states(engine) == 0


def test_a_deleted_queue_is_freed_piece_by_piece_and_without_the_lock(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_states(engine, "q")
    queue, had_lock = engine.memory.by_name["q"], list[bool]()
    containers = Queue.containers

    def noted(self: Queue) -> list[Container]:
        had_lock.append(engine.lock.is_owned)
        return containers(self)

    monkeypatch.setattr(Queue, "containers", noted)
    assert sum(map(len, containers(queue))) > KEYS
    engine.do(DeleteQueue("q"))
    assert had_lock == [False, False], "a queue and its dead letters"
    assert not any(containers(queue))


def test_a_message_that_the_same_transaction_settled_is_swept_with_its_queue(engine: Engine) -> None:
    enqueue(engine)
    held = engine.do(Claim("q", KEYS))
    with engine.transaction():
        engine.do(Settle([Fail(held[0]), Complete(held[1])]))
        engine.do(DeleteQueue("q"))
    assert states(engine) == 0
    assert broken_laws(engine) == []
    outcomes = [result.outcome for result in engine.do(Settle([Complete(one) for one in held]))]
    assert outcomes == ["not_found"] * KEYS


def test_leased_messages_are_put_in_order_without_the_lock(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(engine)
    engine.do(Claim("q", KEYS))
    in_claim_order, had_lock = Memory.in_claim_order, list[bool]()

    def noted(self: Memory, leases: Iterable[GroupLease]) -> list[tuple[GroupLease, int]]:
        had_lock.append(engine.lock.is_owned)
        return in_claim_order(self, leases)

    monkeypatch.setattr(Memory, "in_claim_order", noted)
    assert len(engine.do(Drop("q", filter=DeadFilter())).changed) == KEYS
    assert had_lock
    assert not any(had_lock)
