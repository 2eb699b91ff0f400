"""A transaction is one write: all of it, or nothing. A refusal is for its request alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead import Complete, Delivery, Extend, Fail, NewMessage, Release, Start
from fairlead.engine import work
from fairlead.engine.broker import Broker
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.engine.transaction import Transaction
from fairlead.errors import QueueNotFound, StaleEpoch, StoreFull, Unavailable
from fairlead.records.facts import MessageMoved
from fairlead.request import Request
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.store.rows import read_windows
from fairlead.testing import ManualClock, stop_before
from fairlead.testing.faulty import FaultyStore
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.inspect import Stats
from fairlead.verbs.queues import CreateQueue, Pause
from fairlead.verbs.settle import Goodbye, Settle

Counts = tuple[int, int, int, int]


def open_engine(store: FaultyStore | DictionaryStore | None = None) -> Engine:
    return Engine(store or DictionaryStore(), clock=ManualClock())


@pytest.fixture
def engine() -> Engine:
    made = open_engine()
    made.do(CreateQueue("q"))
    return made


def counts(engine: Engine, queue: str = "q") -> Counts:
    stats = engine.do(Stats(queue))
    return stats.ready, stats.leased, stats.waiting, stats.dead


def many(count: int) -> EnqueueMany:
    return EnqueueMany("q", [NewMessage(b"%d" % n, fairness_key=f"k{n % 7}") for n in range(count)])


def test_requests_of_one_transaction_see_each_other_and_are_one_write(engine: Engine) -> None:
    before = engine.store.last_commit
    with engine.transaction():
        engine.do(Enqueue("q", b"one"))
        (delivery,) = engine.do(Claim("q"))
        engine.do(Settle([Complete(delivery)]))
        engine.do(Enqueue("q", b"two"))
    assert engine.store.last_commit == before + 1
    assert counts(engine) == (1, 0, 0, 0)
    assert broken_laws(engine) == []


def test_a_refusal_is_for_its_request_alone(engine: Engine) -> None:
    with engine.transaction():
        engine.do(Enqueue("q", b"before"))
        with pytest.raises(QueueNotFound):
            engine.do(Enqueue("unknown", b"refused"))
        engine.do(Enqueue("q", b"after"))
    assert counts(engine) == (2, 0, 0, 0)
    assert broken_laws(engine) == []


def test_a_request_that_breaks_after_a_change_ends_the_transaction_for_all_who_joined_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(tx: Transaction, request: Pause) -> None:
        work.queues.pause(tx, request)
        raise ZeroDivisionError

    monkeypatch.setitem(work.WORK, Pause, breaks)
    engine.do(Enqueue("q", b"earlier"))

    def broken_turn() -> None:
        with engine.transaction():
            engine.do(Enqueue("q", b"neighbour"))
            with pytest.raises(Unavailable, match="ZeroDivisionError"):
                engine.do(Pause("q"))
            with pytest.raises(Unavailable):
                engine.do(Enqueue("q", b"later"))

    with pytest.raises(Unavailable):
        broken_turn()
    assert counts(engine) == (1, 0, 0, 0)
    assert broken_laws(engine) == []


def test_a_refusal_that_comes_after_a_change_ends_the_transaction_too(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses_late(tx: Transaction, request: Pause) -> None:
        work.queues.pause(tx, request)
        raise QueueNotFound("too late")

    monkeypatch.setitem(work.WORK, Pause, refuses_late)
    with pytest.raises(Unavailable, match="too late"):
        engine.do(Pause("q"))
    assert not engine.memory.by_name["q"].record.paused
    assert broken_laws(engine) == []


def test_a_transaction_takes_more_than_256_single_enqueues(engine: Engine) -> None:
    with engine.transaction():
        ids = [engine.do(Enqueue("q", b"%d" % n)) for n in range(600)]
    assert len(set(ids)) == 600
    assert [one.payload for one in engine.do(Claim("q", 1000))] == [b"%d" % n for n in range(600)]
    assert broken_laws(engine) == []


def test_an_enqueue_of_more_than_a_chunk_keeps_its_order(engine: Engine) -> None:
    ids = engine.do(EnqueueMany("q", [NewMessage(b"%d" % n) for n in range(9_000)]))
    assert [one.id for one in engine.do(Claim("q", 9_000))] == ids
    assert broken_laws(engine) == []


def test_a_ready_message_can_move_by_itself(engine: Engine) -> None:
    engine.do(many(8))
    with engine.transaction() as tx:
        number = engine.memory.by_name["q"].schedule.numbers()[3]
        state = replace(engine.memory.state_of(number), place=0, due_ms=tx.now_ms + 1000)
        tx.add(MessageMoved(number, state, "held"))
    assert counts(engine) == (7, 0, 1, 0)
    assert broken_laws(engine) == []
    assert len(engine.do(Claim("q", 10))) == 7


def test_places_at_the_tail_follow_what_the_same_transaction_enqueued_before(engine: Engine) -> None:
    engine.do(Enqueue("q", b"a"))
    engine.do(Enqueue("q", b"b"))
    first, second = engine.do(Claim("q", 2))
    with engine.transaction():
        engine.do(Settle([Fail(first)]))
        engine.do(Enqueue("q", b"new"))
        engine.do(Settle([Fail(second)]))
    assert [one.payload for one in engine.do(Claim("q", 3))] == [b"a", b"new", b"b"]
    assert broken_laws(engine) == []


def test_the_number_of_a_commit_without_counts_is_not_given_again() -> None:
    data = DictionaryData()
    engine = open_engine(DictionaryStore(data))
    engine.do(CreateQueue("q"))
    engine.do(Enqueue("q", b"one"))
    (delivery,) = engine.do(Claim("q", started=False))
    engine.do(Settle([Start(delivery)]))
    commit = engine.store.last_commit
    again = open_engine(DictionaryStore(data))
    again.do(Enqueue("q", b"two"))
    assert again.store.last_commit == commit + 1


def test_a_former_owner_steps_down_and_answers_nothing_more() -> None:
    data = DictionaryData()
    former = open_engine(DictionaryStore(data))
    former.do(CreateQueue("q"))
    owner = open_engine(DictionaryStore(data))
    for request in (Enqueue("q", b"late"), Stats("q"), Claim("q")):
        with pytest.raises(StaleEpoch):
            former.do(request)
    assert counts(owner) == (0, 0, 0, 0)
    owner.do(Enqueue("q", b"in time"))
    with pytest.raises(StaleEpoch):
        former.do(Stats("q"))


def test_a_claim_of_a_former_owner_settles_nothing_of_the_new_one() -> None:
    data = DictionaryData()
    former = open_engine(DictionaryStore(data))
    former.do(CreateQueue("q"))
    former.do(Enqueue("q", b"one"))
    (held,) = former.do(Claim("q"))
    owner = open_engine(DictionaryStore(data))
    assert owner.do(Goodbye("")) == 1
    (again,) = owner.do(Claim("q"))
    assert [result.outcome for result in owner.do(Settle([Complete(held), Complete(again)]))] == [
        "lost_lease",
        "completed",
    ]


# Failing writes


def scene(engine: Engine) -> list[Delivery]:
    """A queue with messages in every place, and four deliveries."""
    engine.do(CreateQueue("q", {"retry": {"policy": "fixed", "cooldown": "1m", "attempts": 2}}))
    engine.do(many(20))
    first, second, *rest = engine.do(Claim("q", 6, consumer="c", started=False))
    engine.do(Settle([Fail(first), Fail(second, dead=True)]))
    return rest


REQUESTS: dict[str, Callable[[list[Delivery]], Request[Any]]] = {
    "enqueue": lambda held: Enqueue("q", b"more"),
    "enqueue_many": lambda held: many(50),
    "claim": lambda held: Claim("q", 5),
    "claim dead": lambda held: Claim("q.dlq"),
    "complete": lambda held: Settle([Complete(held[0])]),
    "fail": lambda held: Settle([Fail(held[0]), Fail(held[1], dead=True)]),
    "release": lambda held: Settle([Release(held[0])]),
    "extend": lambda held: Settle([Extend(held[0], "1h", progress=2), Start(held[1])]),
    "goodbye": lambda held: Goodbye("c"),
    "pause": lambda held: Pause("q"),
    "create": lambda held: CreateQueue("another"),
}


@pytest.mark.parametrize("verb", REQUESTS)
def test_a_failed_write_changes_nothing_and_the_request_works_when_it_is_sent_again(verb: str) -> None:
    store = FaultyStore(DictionaryStore())
    engine = open_engine(store)
    request = REQUESTS[verb](scene(engine))
    before = counts(engine)
    store.arm(1, "fail", only=("write",))
    with pytest.raises(StoreFull):
        engine.do(request)
    assert store.struck
    assert counts(engine) == before
    assert broken_laws(engine) == []
    engine.do(request)
    assert broken_laws(engine) == []


class UnreadableStore(DictionaryStore):
    """Answers no scan while `is_unreadable`."""

    is_unreadable = False

    def scan(self, *arguments: Any, **named: Any) -> Any:
        if self.is_unreadable:
            raise OSError("the disk does not answer")
        return super().scan(*arguments, **named)


def test_memory_is_loaded_before_the_next_request_if_loading_failed_too() -> None:
    inner = UnreadableStore()
    store = FaultyStore(inner)
    engine = open_engine(store)
    engine.do(CreateQueue("q"))
    store.arm(1, "fail", only=("write",))
    inner.is_unreadable = True
    with pytest.raises(StoreFull):
        engine.do(many(10))
    with pytest.raises(OSError, match="does not answer"):
        engine.do(Stats("q"))
    inner.is_unreadable = False
    assert counts(engine) == (0, 0, 0, 0)
    assert broken_laws(engine) == []


# Reads


@pytest.mark.parametrize("verb", ["enqueue", "claim", "settle"])
def test_the_number_of_reads_does_not_grow_with_the_batch(verb: str) -> None:
    def reads(count: int) -> int:
        store = FaultyStore(DictionaryStore())
        engine = open_engine(store)
        engine.do(CreateQueue("q"))
        if verb != "enqueue":
            engine.do(many(count))
        held = engine.do(Claim("q", count)) if verb == "settle" else []
        before = store.reads.total()
        match verb:
            case "enqueue":
                engine.do(many(count))
            case "claim":
                assert len(engine.do(Claim("q", count))) == count
            case _:
                engine.do(Settle([Complete(one) for one in held]))
        return store.reads.total() - before

    assert reads(1) == reads(500) == 0


def test_a_reopened_engine_reads_the_bodies_of_a_chunk_once() -> None:
    data = DictionaryData()
    engine = open_engine(DictionaryStore(data))
    engine.do(CreateQueue("q"))
    engine.do(EnqueueMany("q", [NewMessage(b"x" * 1000) for _ in range(500)]))
    store = FaultyStore(DictionaryStore(data))
    again = open_engine(store)
    before = store.reads.total()
    assert len(again.do(Claim("q", 250))) == 250
    assert len(again.do(Claim("q", 250))) == 250
    assert store.reads.total() - before == 1


FULL = StoreFull("the disk", 0, 1)


def test_a_release_of_a_stream_that_is_not_written_leaves_the_stream_as_it_was() -> None:
    with Broker(DictionaryStore(), clock=ManualClock()) as broker:
        broker.create_queue("q")
        ids = broker.enqueue_many("q", [NewMessage(b"%d" % n, stream="s") for n in range(3)])
        broker.hold("q", ids[:1])
        with stop_before(broker, lambda step: True, FULL), pytest.raises(StoreFull):
            broker.release_stream("q", "s")
        assert broken_laws(broker.engine) == []
        assert broker.claim("q") == []


def test_windows_of_dedup_keys_whose_end_is_not_written_end_later() -> None:
    clock = ManualClock()
    with Broker(DictionaryStore(), clock=clock) as broker:
        broker.create_queue("q", dedup="10s")
        broker.enqueue("q", b"x", dedup_key="k")
        with stop_before(broker, lambda step: True, FULL), pytest.raises(StoreFull):
            clock.advance(seconds=11)
        assert broken_laws(broker.engine) == []
        broker.run_due()
        assert read_windows(broker.engine.store, 1, 10) == []
