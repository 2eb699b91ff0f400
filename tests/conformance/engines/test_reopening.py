"""Random runs that are closed and opened again between steps: the laws hold, nothing is lost or doubled."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fairlead import Complete, NewMessage
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.request import Request
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.testing import ManualClock
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.queues import CreateQueue, Resume
from fairlead.verbs.settle import Goodbye, Settle
from tests.conformance.engines.running import CONSUMERS, QUEUES, Run, Side, for_side

STEPS = 100


class Ledger:
    """What is known outside the engine: which messages were confirmed, which of them may end by themselves, and
    how often each was completed.
    """

    def __init__(self) -> None:
        self.confirmed: set[int] = set()
        self.mortal: set[int] = set()
        self.completed: Counter[int] = Counter()
        self._queues_with_ttl: set[str] = set()

    def note(self, request: Request[Any], answer: Any) -> None:
        if isinstance(answer, tuple):
            return  # refused
        match request:
            case CreateQueue():
                if request.options["ttl"] is not None:
                    self._queues_with_ttl.add(request.name)
            case Enqueue():
                self._note_message(request.queue, request.message(), answer)
            case EnqueueMany():
                for message, name in zip(request.messages, answer, strict=True):
                    self._note_message(request.queue, message, name)
            case Settle():
                self.completed.update(name for name, outcome, *_ in answer if outcome == "completed")

    def _note_message(self, queue: str, message: NewMessage, name: int) -> None:
        if name in self.confirmed:
            return  # a duplicate
        self.confirmed.add(name)
        if message.ttl not in (None, "0s") or (message.ttl is None and queue in self._queues_with_ttl):
            self.mortal.add(name)


def run_and_reopen(seed: int, data: DictionaryData | Path) -> None:
    def open_again() -> Engine:
        store = DictionaryStore(data) if isinstance(data, DictionaryData) else RocksKeyValueStore.open(data)
        return Engine(store, clock=clock)

    run, random, clock, ledger = Run(seed), Random(seed), ManualClock(), Ledger()
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
            ledger.note(request, side.carry_out(request))
        if random.random() < 0.2:
            engine.close()
            engine = open_again()
            side.do = engine.do
        assert broken_laws(engine) == [], f"step {at} of seed {seed}"
    drain(engine, side, ledger)
    assert ledger.confirmed - ledger.mortal <= set(ledger.completed) <= ledger.confirmed, f"seed {seed}"
    assert set(ledger.completed.values()) <= {1}, f"seed {seed}"
    assert all(queue.counts.messages == 0 for queue in engine.memory.by_id.values()), f"seed {seed}"
    engine.close()


def drain(engine: Engine, side: Side, ledger: Ledger) -> None:
    """Complete everything that is left, dead letters included."""
    for consumer in CONSUMERS:
        engine.do(Goodbye(consumer))
    side.clock.advance(ms=10_000_000)
    for queue in QUEUES:
        engine.do(Resume(queue))
        for name in (queue, f"{queue}.dlq"):
            # The limits of a consumer may allow only a few at a time.
            while found := engine.do(Claim(name, 1000)):
                request = Settle([Complete(delivery) for delivery in found])
                ledger.note(request, side.carry_out(request))


@pytest.mark.parametrize("seed", range(20))
def test_a_run_with_reopenings_loses_and_doubles_nothing(seed: int) -> None:
    run_and_reopen(seed, DictionaryData())


@pytest.mark.parametrize("seed", range(100, 103))
def test_a_run_with_reopenings_on_rocksdb_loses_and_doubles_nothing(tmp_path: Path, seed: int) -> None:
    run_and_reopen(seed, tmp_path / "data")


def test_a_reopened_ring_is_in_the_order_of_the_first_places_of_its_lanes() -> None:
    data = DictionaryData()
    engine = Engine(DictionaryStore(data), clock=ManualClock())
    engine.do(CreateQueue("q"))
    for key in ("c", "a", "b", "a", "c"):
        engine.do(Enqueue("q", key.encode(), fairness_key=key))
    again = Engine(DictionaryStore(data), clock=ManualClock())
    assert [one.payload for one in again.do(Claim("q", 5))] == [b"c", b"a", b"b", b"c", b"a"]
