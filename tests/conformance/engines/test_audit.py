"""The audit in the engine, with the layers around it: no act and no refusal without an entry that lasts."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from fairlead.engine.broker import Broker
from fairlead.engine.laws import broken_laws
from fairlead.engine.transaction import Transaction
from fairlead.engine.work import WORK
from fairlead.errors import FairleadError, QueueNotFound, StoreFull, Unavailable
from fairlead.middleware.stack import Layers
from fairlead.model.access import AuditRecord
from fairlead.request import VERBS, Caller, Request
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.testing import ManualClock
from fairlead.testing.faulty import FaultyStore, Killed
from fairlead.verbs.audit import AuditRead
from fairlead.verbs.inspect import Stats
from fairlead.verbs.keys import KeysCreate
from fairlead.verbs.queues import CreateQueue, Pause
from tests.conformance.engines.running import Run, Side, for_side

ANN = Caller(None, "ann", "test")


def open_broker(store: Any = None) -> tuple[Broker, Layers]:
    broker = Broker(store or DictionaryStore(), clock=ManualClock())
    return broker, Layers(broker)


def entries(broker: Broker, **wanted: Any) -> list[AuditRecord]:
    return broker.do(AuditRead(**wanted))


def outcomes(broker: Broker) -> list[tuple[str, str]]:
    """Oldest first."""
    return [(entry.verb, entry.outcome) for entry in reversed(entries(broker))]


def try_to(layers: Layers, request: Request[Any]) -> str:
    try:
        layers.handle(request, ANN)
    except FairleadError as refused:
        return refused.code
    return ""


def test_an_act_leaves_an_entry_that_says_who_and_from_where() -> None:
    broker, layers = open_broker()
    layers.handle(CreateQueue("q"), ANN)
    (entry,) = entries(broker)
    assert (entry.number, entry.who, entry.source, entry.verb, entry.outcome) == (
        1,
        "ann",
        "test",
        "create_queue",
        "done",
    )
    assert broken_laws(broker.engine) == []


def test_a_refusal_is_in_the_audit_before_its_caller_hears_of_it() -> None:
    """Also after a power cut: the entry does not wait for the sync of a later act."""
    data = DictionaryData()
    store = FaultyStore(DictionaryStore(data), forgets=True)
    _, layers = open_broker(store)
    assert try_to(layers, Pause("nowhere")) == "queue_not_found"
    store.cut_power()
    again, _ = open_broker(DictionaryStore(data))
    assert outcomes(again) == [("pause", "queue_not_found")]


def test_an_act_that_a_power_cut_interrupts_stays_asked_or_did_not_happen() -> None:
    for step in range(1, 12):
        data = DictionaryData()
        store = FaultyStore(DictionaryStore(data), forgets=True)
        _, layers = open_broker(store)
        store.arm(step, "power_cut")
        with suppress(Killed):
            layers.handle(CreateQueue("q"), ANN)
        again, _ = open_broker(DictionaryStore(data))
        is_done = "q" in again.engine.memory.by_name
        assert not is_done or outcomes(again)[0] in [("create_queue", "asked"), ("create_queue", "done")]


def test_a_refused_act_loses_nothing_of_its_neighbours_in_a_transaction() -> None:
    broker, layers = open_broker()
    with broker.engine.transaction():
        layers.handle(CreateQueue("q"), ANN)
        with pytest.raises(QueueNotFound):
            layers.handle(Pause("nowhere"), ANN)
        layers.handle(Pause("q"), ANN)
    assert broker.do(Stats("q")).paused
    assert outcomes(broker) == [("create_queue", "done"), ("pause", "queue_not_found"), ("pause", "done")]
    assert [entry.number for entry in entries(broker)] == [3, 2, 1]
    assert broken_laws(broker.engine) == []


def test_an_act_whose_entry_cannot_be_written_does_not_happen() -> None:
    store = FaultyStore(DictionaryStore())
    broker, layers = open_broker(store)
    store.arm(1, "fail", only=["write"])
    with pytest.raises(StoreFull):
        layers.handle(CreateQueue("q"), ANN)
    assert broker.engine.memory.by_name == {}
    assert entries(broker) == []


def test_an_act_whose_end_cannot_be_recorded_is_answered() -> None:
    store = FaultyStore(DictionaryStore())
    broker, layers = open_broker(store)
    store.arm(3, "fail", only=["write"])
    made = layers.handle(KeysCreate("a"), ANN)
    assert broker.key_ring.authenticate(made.secret).name == "a"
    assert outcomes(broker) == [("keys.create", "asked")]
    assert broken_laws(broker.engine) == []


def test_an_entry_is_not_added_to_a_transaction_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(tx: Transaction, request: Pause) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(WORK, Pause, breaks)
    broker, layers = open_broker()

    def turn() -> None:
        with broker.engine.transaction():
            layers.handle(CreateQueue("q"), ANN)
            for request in (Pause("q"), CreateQueue("r")):
                with pytest.raises(Unavailable):
                    layers.handle(request, ANN)

    with pytest.raises(Unavailable):
        turn()
    assert entries(broker) == []
    assert broken_laws(broker.engine) == []


def test_pages_filters_and_times() -> None:
    broker, layers = open_broker()
    began_ms = broker.clock.now_ms()
    for name in ("a", "b", "c"):
        layers.handle(CreateQueue(name), ANN)
        broker.clock.advance(ms=10)  # type: ignore[attr-defined]
    layers.handle(Pause("b"), ANN._replace(name="bob"))
    assert [entry.number for entry in entries(broker, limit=2)] == [4, 3]
    assert [entry.number for entry in entries(broker, before=3)] == [2, 1]
    assert [entry.number for entry in entries(broker, who="bob")] == [4]
    assert [entry.number for entry in entries(broker, verb="create_queue")] == [3, 2, 1]
    assert [entry.number for entry in entries(broker, queue="b")] == [4, 2]
    assert [entry.number for entry in entries(broker, since=began_ms + 15)] == [4, 3]


def test_the_oldest_entries_go_and_numbers_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.engine.audit_trail.MAX_AUDIT_RECORDS", 6)
    monkeypatch.setattr("fairlead.engine.audit_trail._FORGET_EVERY", 2)
    monkeypatch.setattr("fairlead.engine.work.audit._PAGE", 3)
    data = DictionaryData()
    broker, layers = open_broker(DictionaryStore(data))
    for _ in range(13):
        try_to(layers, Pause("nowhere"))
    assert [entry.number for entry in entries(broker)] == [13, 12, 11, 10, 9, 8, 7, 6]
    monkeypatch.setattr("fairlead.engine.audit_trail.MAX_AUDIT_RECORDS", 2)
    again, layers = open_broker(DictionaryStore(data))
    for _ in range(7):
        try_to(layers, Pause("nowhere"))
    assert [entry.number for entry in entries(again)] == [20, 19, 18], "a lowered bound is reached"


@pytest.mark.parametrize("seed", range(2000, 2006))
def test_each_audited_act_of_a_random_run_has_one_entry_with_its_outcome(seed: int) -> None:
    run, clock = Run(seed), ManualClock()
    expected: list[tuple[str, str]] = []

    def handle(request: Request[Any], caller: Caller = ANN) -> Any:
        outcome = "done"
        try:
            return layers.handle(request, caller)
        except FairleadError as refused:
            outcome = refused.code
            raise
        finally:
            # Whether the caller may change a key is asked before the act: an unknown key ends there.
            if request.is_audited() and outcome != "key_not_found":
                expected.append((request.verb_name, outcome))

    with Broker(DictionaryStore(), clock=clock) as broker:
        layers, side = Layers(broker), Side(handle, clock)
        for request in run.first_steps():
            side.carry_out(request)
        for _ in range(60):
            step = run.next_step(len(side.deliveries))
            if isinstance(step, int):
                clock.advance(ms=step)
            else:
                side.carry_out(for_side(step, side))
        readings = {name for name, verb in VERBS.items() if verb.request.shows_messages}
        found = [
            (entry.verb, entry.outcome)
            for entry in reversed(broker.do(AuditRead(limit=1000)))
            if entry.verb not in readings
        ]
    assert found == expected
    assert len(found) > 5
