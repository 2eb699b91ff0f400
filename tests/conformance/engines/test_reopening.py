"""Random runs that are closed and opened again between steps: the laws hold, nothing is lost or doubled."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from fairlead import Complete, Fail, NewMessage
from fairlead.engine import cold
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.errors import FairleadError
from fairlead.model.ids import show_id
from fairlead.request import Request
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.testing import ManualClock, Storage
from fairlead.verbs.claim import Claim
from fairlead.verbs.config import ConfigDelete, ConfigList, ConfigSet
from fairlead.verbs.consumers import ConsumersClose, ConsumersDrop, ConsumersList, ConsumersRead
from fairlead.verbs.enqueue import Enqueue, EnqueueMany, Quarantine, Twin
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.inspect import Peek, Stats
from fairlead.verbs.operate import Done, Drain, Drop, Prune, Unhold
from fairlead.verbs.queues import CreateQueue, DeleteQueue, Purge, Resume, UpdateQueue
from fairlead.verbs.settle import Ack, Goodbye, Settle
from fairlead.verbs.staging import StagingPublish
from tests.conformance.engines.memory_sizes import eager_evacuation, evacuate, make_some_cold, memory_sizes
from tests.conformance.engines.running import CONSUMERS, QUEUES, Called, Run, Side, for_side

STEPS = 100


class Ledger:
    """What is known outside the engine: which messages were confirmed, which of them may end uncompleted (by
    their time to live, or by an operator), and how often each was completed.
    """

    def __init__(self) -> None:
        self.confirmed: set[int] = set()
        self.mortal: set[int] = set()
        self.completed: Counter[int] = Counter()
        self._queues_with_ttl: set[str] = set()
        #: Answers by number and part: a remembered answer is no second effect.
        self._remembered: dict[tuple[int, int], Any] = {}
        #: The queue that each message was enqueued into.
        self._homes: dict[int, str] = {}

    def note(self, request: Request[Any] | Called, answer: Any) -> None:
        if isinstance(answer, tuple) and isinstance(answer[0], str):
            return  # refused
        match request:
            case Called(Exchange() as exchange, caller):
                for at, (part, its_answer) in enumerate(zip(exchange.requests, answer, strict=True)):
                    self._note_once(part, its_answer, caller.number, at)
            case Called(single, caller):
                self._note_once(single, answer, caller.number, 0)
            case Purge() | DeleteQueue():
                queue = request.name.removesuffix(".dlq")
                self.mortal.update(name for name, home in self._homes.items() if home == queue)
            case Drain():
                self.mortal.update(info["id"] for info in answer)
            case Drop() | Done() | Prune():
                if not request.dry_run:
                    self.mortal.update(answer[0])
            case Ack():
                name, outcome, *_ = answer
                self.completed.update([name] if outcome == "completed" else [])
            case CreateQueue():
                if request.options["ttl"] is not None:
                    self._queues_with_ttl.add(request.name)
            case UpdateQueue():
                # It may be switched off later: then some messages count as mortal that are not.
                if request.options.get("ttl") is not None:
                    self._queues_with_ttl.add(request.name)
            case Enqueue():
                self._note_message(request.queue, request.message(), answer)
            case Quarantine():
                self.confirmed.update(answer)
                self._homes.update(dict.fromkeys(answer, request.queue))
            case StagingPublish():
                self.confirmed.update(answer[1])
                # Those that have a time to live are not known here.
                self.mortal.update(answer[1])
            case EnqueueMany():
                for message, name in zip(request.messages, answer, strict=True):
                    self._note_message(request.queue, message, name)
            case Settle():
                self.completed.update(name for name, outcome, *_ in answer if outcome == "completed")

    def _note_once(self, request: Request[Any], answer: Any, number: int, at: int) -> None:
        if not number or self._remembered.get((number, at)) != answer:
            self.note(request, answer)
        if number:
            self._remembered[number, at] = answer

    def _note_message(self, queue: str, message: NewMessage, name: int) -> None:
        if name in self.confirmed:
            return  # a duplicate
        self.confirmed.add(name)
        self._homes[name] = queue
        if message.ttl not in (None, "0s") or (message.ttl is None and queue in self._queues_with_ttl):
            self.mortal.add(name)


def run_and_reopen(seed: int, data: DictionaryData | Path, *, in_streams: bool = False) -> None:
    def open_again() -> Engine:
        store = DictionaryStore(data) if isinstance(data, DictionaryData) else RocksKeyValueStore.open(data)
        return Engine(store, clock=clock)

    run, random, clock, ledger = (
        Run(seed, keeps=True, in_streams=in_streams, closes=seed % 3 == 1),
        Random(seed),
        ManualClock(),
        Ledger(),
    )
    engine = open_again()
    side = Side(engine.do, clock)
    for created in run.first_steps():
        ledger.note(created, side.carry_out(created))
    for at in range(STEPS):
        step = run.next_step(len(side.deliveries))
        if isinstance(step, int):
            clock.advance(ms=step)
        else:
            request = for_side(step, side)
            members = read_members(engine, request)
            ledger.note(request, side.carry_out(request))
            ledger.completed.update(side.names[raw_id] for raw_id in completed_of(engine, members))
        if random.random() < 0.15:
            make_some_cold(engine, random)
        if random.random() < 0.2:
            engine.close()
            engine = open_again()
            side.do = engine.do
        assert broken_laws(engine) == [], f"step {at} of seed {seed}"
        if seed % 2:
            evacuate(engine)
    drain(engine, side, ledger)
    assert ledger.confirmed - ledger.mortal <= set(ledger.completed) <= ledger.confirmed, f"seed {seed}"
    assert set(ledger.completed.values()) <= {1}, f"seed {seed}"
    assert all(queue.counts.messages == 0 for queue in engine.memory.by_id.values()), f"seed {seed}"
    engine.close()


def read_members(engine: Engine, request: Request[Any]) -> list[bytes]:
    """The members of the numbered claim that the request would close."""
    if not isinstance(request, ConsumersClose):
        return []
    try:
        pages = engine.do(ConsumersRead(request.name, request.queue, request.generation, request.up_to))
        return [delivery.raw_id for page in pages for delivery in page]
    except FairleadError:
        return []


def completed_of(engine: Engine, members: list[bytes]) -> list[bytes]:
    """Those that a close has completed, and perhaps kept."""
    with engine.transaction() as tx:
        found = tx.find_messages(members)
        return [one for one in members if one not in found or tx.state_of(found[one]).done_ms]


def drain(engine: Engine, side: Side, ledger: Ledger) -> None:
    """Complete everything that is left, dead letters included."""
    for consumer in CONSUMERS:
        engine.do(Goodbye(consumer))
    for info in engine.do(ConsumersList()):
        engine.do(ConsumersDrop(info.name, info.queue))
    for key in engine.do(ConfigList()):
        engine.do(ConfigDelete(key))
    side.clock.advance(ms=10_000_000)
    for queue in QUEUES:
        if queue not in engine.memory.by_name:
            continue
        engine.do(Resume(queue))
        engine.do(Unhold(queue, [show_id(raw_id) for raw_id in side.names]))
        for name in (queue, f"{queue}.dlq"):
            # The limits of a consumer may allow only a few at a time.
            while found := engine.do(Claim(name, 1000)):
                request = Settle([Complete(delivery) for delivery in found])
                ledger.note(request, side.carry_out(request))


@pytest.mark.sample(5)
@pytest.mark.parametrize("seed", range(20))
def test_a_run_with_reopenings_loses_and_doubles_nothing(seed: int) -> None:
    with memory_sizes(seed), eager_evacuation():
        run_and_reopen(seed, DictionaryData())


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(2000, 2010))
def test_a_reopened_engine_goes_on_with_streams_of_which_it_holds_a_part(seed: int) -> None:
    with memory_sizes(seed), eager_evacuation():
        run_and_reopen(seed, DictionaryData(), in_streams=True)


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(100, 103))
def test_a_run_with_reopenings_on_rocksdb_loses_and_doubles_nothing(tmp_path: Path, seed: int) -> None:
    with memory_sizes(seed), eager_evacuation():
        run_and_reopen(seed, tmp_path / "data")


def test_a_reopened_ring_is_in_the_order_of_the_first_places_of_its_lanes() -> None:
    data = DictionaryData()
    engine = Engine(DictionaryStore(data), clock=ManualClock())
    engine.do(CreateQueue("q"))
    for key in ("c", "a", "b", "a", "c"):
        engine.do(Enqueue("q", key.encode(), fairness_key=key))
    again = Engine(DictionaryStore(data), clock=ManualClock())
    assert [one.payload for one in again.do(Claim("q", 5))] == [b"c", b"a", b"b", b"c", b"a"]


def test_lanes_and_streams_whose_names_begin_alike_stay_apart_on_disk() -> None:
    data, names = DictionaryData(), ("a", "ab", "a:b", "b", "\u00e4", "\u00e4b")
    with patch.object(cold, "HOT_MESSAGES", 0):
        engine = reopened(data, ManualClock())
        engine.do(CreateQueue("lanes", {"ordering": "none"}))
        engine.do(CreateQueue("streams"))
        for at in range(2):
            for name in names:
                payload = f"{name} {at}".encode()
                engine.do(Enqueue("lanes", payload, fairness_key=name))
                engine.do(Enqueue("lanes", payload + b" t", fairness_key=name, throttle_keys=["b"]))
                engine.do(Enqueue("streams", payload, stream=name))
        engine.close()
        engine = reopened(data, ManualClock())
        for name in names:
            found = [info.payload for info in engine.do(Peek("lanes", 99, "ready", name))]
            expected = [f"{name} {at}{end}".encode() for end in ("", " t") for at in range(2)]
            assert sorted(found) == sorted(expected)
        assert [one.payload for one in engine.do(Claim("streams", 99))] == [
            f"{one} 0".encode() for one in names
        ]
        assert broken_laws(engine) == []


def reopened(data: DictionaryData, clock: ManualClock) -> Engine:
    return Engine(DictionaryStore(data), clock=clock)


def test_messages_that_failed_keep_their_places_and_the_order_of_the_ring_over_a_reopening() -> None:
    data, clock = DictionaryData(), ManualClock()
    engine = reopened(data, clock)
    engine.do(CreateQueue("q"))
    for key in ("c", "a", "b"):
        engine.do(Enqueue("q", key.encode(), fairness_key=key))
    held = {one.payload: one for one in engine.do(Claim("q", 3))}
    for payload in (b"b", b"c", b"a"):
        engine.do(Settle([Fail(held[payload])]))
    engine.close()
    assert [one.payload for one in reopened(data, clock).do(Claim("q", 3))] == [b"b", b"c", b"a"]


def closed_with_a_key(clock: ManualClock, data: DictionaryData, dedup: str) -> str:
    """A queue with one message that has a dedup key and two seconds to live; the engine is closed."""
    engine = reopened(data, clock)
    engine.do(CreateQueue("q", {"dedup": dedup}))
    first = engine.do(Enqueue("q", b"first", dedup_key="d", ttl="2s"))
    engine.close()
    return first


@pytest.mark.parametrize(("passed_ms", "holds"), [(1999, True), (2000, False), (2001, False)])
def test_a_window_that_ended_while_the_engine_was_closed_holds_nobody_up(passed_ms: int, holds: bool) -> None:
    data, clock = DictionaryData(), ManualClock()
    first = closed_with_a_key(clock, data, "2s")
    clock.advance(ms=passed_ms)
    engine = reopened(data, clock)
    again = engine.do(Enqueue("q", b"second", dedup_key="d"))
    assert (again == first) == holds
    # The end of the old window does not end the new one.
    engine.run_due()
    assert engine.do(Twin("q", "d")) == again
    assert broken_laws(engine) == []


def test_a_message_whose_life_ended_while_the_engine_was_closed_is_not_delivered() -> None:
    data, clock = DictionaryData(), ManualClock()
    closed_with_a_key(clock, data, "5m")
    clock.advance(ms=2000)
    engine = reopened(data, clock)
    assert engine.do(Claim("q")) == []
    assert broken_laws(engine) == []


def test_two_enqueues_of_one_transaction_with_the_same_dedup_key_are_one_message() -> None:
    engine = reopened(DictionaryData(), ManualClock())
    engine.do(CreateQueue("q"))
    with engine.transaction():
        ids = [engine.do(Enqueue("q", b"body", dedup_key="d")) for _ in range(3)]
    assert len(set(ids)) == 1
    assert engine.do(Stats("q")).ready == 1


def test_the_end_of_a_dead_letter_leaves_its_former_dedup_key_to_the_message_that_has_it_now() -> None:
    engine = reopened(DictionaryData(), ManualClock())
    engine.do(CreateQueue("q", {"dedup": "live"}))
    engine.do(Enqueue("q", b"first", dedup_key="d"))
    (held,) = engine.do(Claim("q"))
    engine.do(Settle([Fail(held, dead=True)]))
    second = engine.do(Enqueue("q", b"second", dedup_key="d"))
    (dead,) = engine.do(Claim("q.dlq"))
    engine.do(Settle([Complete(dead)]))
    assert engine.do(Twin("q", "d")) == second
    assert broken_laws(engine) == []


def test_a_restart_refills_no_bucket() -> None:
    data, clock = DictionaryData(), ManualClock()
    engine = reopened(data, clock)
    engine.do(CreateQueue("q"))
    engine.do(ConfigSet("throttle.t", "1,2"))
    engine.do(EnqueueMany("q", [NewMessage(b"%d" % n, throttle_keys=["t"]) for n in range(9)]))
    assert len(engine.do(Claim("q", 9))) == 2
    for passed_ms, tokens in ((0, 0), (999, 0), (1, 1), (10_000, 2)):
        engine.close()
        clock.advance(ms=passed_ms)
        engine = reopened(data, clock)
        assert len(engine.do(Claim("q", 9))) == tokens
        assert broken_laws(engine) == []


def test_a_throttle_that_is_configured_again_has_gained_at_its_former_rate_only() -> None:
    clock = ManualClock()
    engine = reopened(DictionaryData(), clock)
    engine.do(CreateQueue("q"))
    engine.do(ConfigSet("throttle.t", "1,1"))
    engine.do(EnqueueMany("q", [NewMessage(b"%d" % n, throttle_keys=["t"]) for n in range(9)]))
    assert len(engine.do(Claim("q", 1))) == 1
    engine.do(ConfigDelete("throttle.t"))
    clock.advance(ms=500)
    engine.do(ConfigSet("throttle.t", "1000,5"))
    assert engine.do(Claim("q", 9)) == []
    assert broken_laws(engine) == []


def test_a_claim_that_a_power_cut_undid_shares_its_token_with_no_later_claim() -> None:
    storage, clock = Storage(forgets=True), ManualClock()
    broker = storage.open_broker(clock=clock)
    broker.create_queue("q")
    broker.enqueue("q", b"x")
    (undone,) = broker.claim("q")
    storage.lose_unsynced()
    again = storage.reopen().open_broker(clock=clock)
    (delivery,) = again.claim("q")
    assert (delivery.id, delivery.lease != undone.lease) == (undone.id, True)
    assert again.settle([Complete(undone)])[0].outcome == "lost_lease"
    assert again.settle([Complete(delivery)])[0].outcome == "completed"
