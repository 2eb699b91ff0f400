"""Purges, deletions and redrives of the engine: what a fault, a crash and a reopening leave at every step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from fairlead import Complete, Delivery, NewMessage
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.engine.moves import STEP_MESSAGES
from fairlead.errors import InvalidRequest, QueueNotFound, ServerStopping, StoreFull
from fairlead.model.limits import HOLD_MESSAGES
from fairlead.request import Request
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.store.kv.port import KeyValueStore, Table
from fairlead.store.rows import TABLES_OF_A_QUEUE
from fairlead.testing import ManualClock
from fairlead.testing.faulty import FaultyStore, Killed
from fairlead.verbs.claim import Claim
from fairlead.verbs.dead_letters import CancelIntent, Intents, Redrive
from fairlead.verbs.enqueue import Enqueue, EnqueueMany, Quarantine, Twin
from fairlead.verbs.inspect import Stats
from fairlead.verbs.operate import Drain
from fairlead.verbs.queues import CreateQueue, DeleteQueue, Purge
from fairlead.verbs.settle import Settle

#: More than two steps have room for.
MANY = 2 * STEP_MESSAGES + 50
LEASED = 7


def scene(engine: Engine) -> list[Delivery]:
    """A queue with messages in every place, beside another one."""
    engine.do(CreateQueue("other"))
    engine.do(Enqueue("other", b"stays"))
    engine.do(CreateQueue("q"))
    messages = [
        NewMessage(b"%d" % n, fairness_key=f"k{n % 5}", delay="1h" if n % 10 == 0 else None)
        for n in range(MANY)
    ]
    engine.do(EnqueueMany("q", messages))
    engine.do(Quarantine("q", [NewMessage(b"dead %d" % n) for n in range(MANY)], "unknown", "bad row"))
    engine.do(Enqueue("q", b"deduplicated", dedup_key="d", ttl="1h"))
    return engine.do(Claim("q", LEASED))


def counts(engine: Engine) -> tuple[int, int, int, int]:
    stats = engine.do(Stats("q"))
    return stats.ready, stats.waiting, stats.leased, stats.dead


BEFORE = (MANY + 1 - MANY // 10 - LEASED, MANY // 10, LEASED, MANY)
OPERATIONS: dict[str, tuple[Request[Any], tuple[int, int, int, int]]] = {
    "purge": (Purge("q"), (0, 0, LEASED, MANY)),
    "purge dead": (Purge("q.dlq"), (*BEFORE[:3], 0)),
    "redrive": (Redrive("q"), (BEFORE[0] + MANY, *BEFORE[1:3], 0)),
}


@pytest.mark.parametrize("fault", ["fail", "die_before", "die_after", "power_cut"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_fault_at_every_step_leaves_whole_steps_and_the_timer_goes_on(name: str, fault: Any) -> None:
    operation, after = OPERATIONS[name]
    for step in range(1, 100):
        store, clock = FaultyStore(DictionaryStore(), forgets=True), ManualClock()
        engine = Engine(store, clock=clock)
        scene(engine)
        engine.confirm()
        assert counts(engine) == BEFORE
        store.arm(step, fault, only=("write", "sync"))
        with suppress(StoreFull, Killed):
            engine.do(operation)
        if not store.struck:
            break
        if fault != "fail":
            # A clock of its own: the engine that is gone still listens to the other one.
            clock = ManualClock()
            engine = Engine(store.inner, clock=clock)
        assert broken_laws(engine) == [], f"{fault} at step {step}"
        begun = engine.do(Intents())
        if not begun:
            assert counts(engine) in (BEFORE, after), f"{fault} at step {step}"
            continue
        if name == "purge":
            assert engine.do(Claim("q", 5)) == [], "nothing is delivered while a purge goes on"
        clock.advance(ms=1)
        assert counts(engine) == after, f"{fault} at step {step}"
        assert engine.do(Intents()) == []
        assert broken_laws(engine) == [], f"{fault} at step {step}"
    assert step > 3, f"expected several steps to meet {fault}"


def test_a_purge_leaves_messages_that_come_while_it_goes_on() -> None:
    store = FaultyStore(DictionaryStore())
    clock = ManualClock()
    engine = Engine(store, clock=clock)
    scene(engine)
    store.arm(2, "fail", only=("write",))
    with pytest.raises(StoreFull):
        engine.do(Purge("q"))
    engine.do(Enqueue("q", b"later"))
    clock.advance(ms=1)
    assert counts(engine) == (1, 0, LEASED, MANY)
    assert [delivery.payload for delivery in engine.do(Claim("q"))] == [b"later"]
    assert broken_laws(engine) == []


def test_a_purge_takes_the_second_of_two_messages_of_a_stream_in_every_lane() -> None:
    """It becomes the first one, and stands in a lane, when the purge may have left that lane."""
    engine = Engine(DictionaryStore(), clock=ManualClock())
    engine.do(CreateQueue("q"))
    count = 1000
    for keys in ("ba", "ab"):
        messages = [NewMessage(b"", fairness_key=keys[n % 2], stream=f"s{n}") for n in range(count)]
        engine.do(EnqueueMany("q", messages))
    assert engine.do(Purge("q")) == 2 * count
    assert counts(engine) == (0, 0, 0, 0)
    assert broken_laws(engine) == []


def test_the_count_of_a_purge_is_exact_and_its_leases_stay() -> None:
    engine = Engine(DictionaryStore(), clock=ManualClock())
    held = scene(engine)
    assert engine.do(Purge("q")) == BEFORE[0] + BEFORE[1]
    assert {result.outcome for result in engine.do(Settle([Complete(one) for one in held]))} == {"completed"}
    assert counts(engine) == (0, 0, 0, MANY)
    assert engine.do(Twin("q", "d")) is not None, "a window outlives its message"
    assert broken_laws(engine) == []


# Redrives at a rate


def test_a_redrive_at_a_rate_goes_on_after_a_reopening_without_a_burst() -> None:
    data, clock = DictionaryData(), ManualClock()
    engine = Engine(DictionaryStore(data), clock=clock)
    scene(engine)
    begun = engine.do(Redrive("q", rate=10))
    assert (begun.matched, begun.moved) == (MANY, 0)
    clock.advance(ms=1000)
    assert counts(engine)[3] == MANY - 11
    engine.close()
    clock.advance(ms=3_600_000)
    again = Engine(DictionaryStore(data), clock=clock)
    assert [operation.done for operation in again.do(Intents())] == [11]
    again.run_due()
    assert counts(again)[3] == MANY - 12
    clock.advance(ms=1000)
    assert counts(again)[3] == MANY - 22
    assert again.do(CancelIntent(begun.intent_id or 0))
    assert not again.do(CancelIntent(begun.intent_id or 0))
    clock.advance(ms=10_000)
    assert counts(again)[3] == MANY - 22
    assert broken_laws(again) == []


def test_a_redrive_keeps_its_rate_also_when_two_threads_run_due_work() -> None:
    engine = Engine(DictionaryStore(), clock=ManualClock())
    engine.do(CreateQueue("q", {}))
    engine.do(Quarantine("q", [NewMessage(b"")] * 3, "unknown", ""))
    ask = engine.hooking.ask_about_dead

    def ask_while_another_thread_works(raw_ids: Any) -> Any:
        # Hooks are asked without the lock: this is where another thread comes in.
        engine.hooking.ask_about_dead = ask  # type: ignore[method-assign]
        engine.run_due()
        return ask(raw_ids)

    engine.hooking.ask_about_dead = ask_while_another_thread_works  # type: ignore[method-assign]
    engine.do(Redrive("q", rate=0.001))
    engine.run_due()
    assert engine.do(Stats("q")).dead == 2
    assert [operation.done for operation in engine.do(Intents())] == [1]


def test_a_redrive_that_a_stopping_server_ends_says_so_and_goes_on_at_the_next_open() -> None:
    data, clock = DictionaryData(), ManualClock()

    class StoppingStore(DictionaryStore):
        """Its server stops at the second step."""

        writes_left = 1 << 30

        def write(self, *arguments: Any) -> bool:
            self.writes_left -= 1
            if not self.writes_left:
                engine.interrupt_waits()
            return super().write(*arguments)

    store = StoppingStore(data)
    engine = Engine(store, clock=clock)
    scene(engine)
    store.writes_left = 1
    result = engine.do(Redrive("q"))
    assert (result.moved, result.intent_id is not None) == (STEP_MESSAGES, True)
    with pytest.raises(ServerStopping):
        engine.do(Redrive("q"))
    clock.advance(ms=1)
    assert engine.memory.by_name["q.dlq"].counts.ready == MANY - STEP_MESSAGES
    engine.close()
    again = Engine(DictionaryStore(data), clock=clock)
    again.run_due()
    assert counts(again)[3] == 0
    assert broken_laws(again) == []


# Deletion


def rows_of(store: KeyValueStore, queue_id: int) -> list[str]:
    start, end = queue_id.to_bytes(8, "big"), (queue_id + 1).to_bytes(8, "big")
    tables = (*TABLES_OF_A_QUEUE, Table.QUEUES, Table.COUNTERS)
    return [table.name for table in tables if store.scan(table, start, end, limit=1)]


def test_a_deletion_takes_all_rows_of_the_queue_and_none_of_another() -> None:
    engine = Engine(DictionaryStore(), clock=ManualClock())
    held = scene(engine)
    record = engine.memory.by_name["q"].record
    other_id = engine.memory.by_name["other"].record.queue_id
    before = rows_of(engine.store, other_id)
    commit = engine.store.last_commit
    engine.do(DeleteQueue("q"))
    assert engine.store.last_commit == commit + 1
    assert rows_of(engine.store, record.queue_id) == rows_of(engine.store, record.dlq_id) == []
    assert rows_of(engine.store, other_id) == before
    assert {result.outcome for result in engine.do(Settle([Complete(one) for one in held]))} == {"not_found"}
    for name in ("q", "q.dlq"):
        with pytest.raises(QueueNotFound):
            engine.do(Claim(name))
    assert engine.do(Stats("other")).ready == 1
    assert broken_laws(engine) == []


def test_the_ids_of_a_deleted_queue_are_not_given_again_after_a_reopening() -> None:
    data = DictionaryData()
    engine = Engine(DictionaryStore(data), clock=ManualClock())
    scene(engine)
    record = engine.memory.by_name["q"].record
    engine.do(DeleteQueue("q"))
    engine.close()
    again = Engine(DictionaryStore(data), clock=ManualClock())
    again.do(CreateQueue("q"))
    assert again.memory.by_name["q"].record.queue_id > record.dlq_id
    assert counts(again) == (0, 0, 0, 0)
    assert again.do(Twin("q", "d")) is None
    assert broken_laws(again) == []


def test_a_deletion_that_is_not_written_leaves_everything() -> None:
    store = FaultyStore(DictionaryStore())
    engine = Engine(store, clock=ManualClock())
    held = scene(engine)
    store.arm(1, "fail", only=("write",))
    with pytest.raises(StoreFull):
        engine.do(DeleteQueue("q"))
    assert counts(engine) == BEFORE
    assert broken_laws(engine) == []
    assert {result.outcome for result in engine.do(Settle([Complete(one) for one in held]))} == {"completed"}


def test_a_queue_is_changed_deleted_and_made_again_in_one_transaction() -> None:
    engine = Engine(DictionaryStore(), clock=ManualClock())
    held = scene(engine)
    with engine.transaction():
        engine.do(Settle([Complete(one) for one in held]))
        engine.do(Enqueue("q", b"new", dedup_key="e"))
        engine.do(Claim("q", 3))
        engine.do(DeleteQueue("q"))
        engine.do(CreateQueue("q"))
        engine.do(Enqueue("q", b"first of the new queue", dedup_key="e"))
    assert counts(engine) == (1, 0, 0, 0)
    assert broken_laws(engine) == []


def test_a_dead_letter_queue_is_not_deleted_by_itself() -> None:
    engine = Engine(DictionaryStore(), clock=ManualClock())
    scene(engine)
    with pytest.raises(InvalidRequest, match="goes with its source"):
        engine.do(DeleteQueue("q.dlq"))


def test_a_redrive_of_a_queue_that_is_deleted_meanwhile_ends() -> None:
    clock = ManualClock()
    engine = Engine(DictionaryStore(), clock=clock)
    scene(engine)
    engine.do(Redrive("q", rate=1))
    engine.do(DeleteQueue("q"))
    clock.advance(ms=5000)
    assert engine.do(Intents()) == []
    assert broken_laws(engine) == []


# Draining


def drained(requests: Callable[[Engine], Any], store: FaultyStore) -> list[bytes]:
    engine = Engine(store, clock=ManualClock())
    engine.do(CreateQueue("q"))
    engine.do(EnqueueMany("q", [NewMessage(b"%d" % n) for n in range(250)]))
    requests(engine)
    found = [info.payload for info in engine.do(Drain("q", 1000))]
    assert engine.do(Stats("q")).ready == 250 - len(found)
    assert broken_laws(engine) == []
    return found


def test_a_drain_returns_what_it_removed_also_when_a_later_step_fails() -> None:
    store = FaultyStore(DictionaryStore())
    everything = [b"%d" % n for n in range(250)]
    assert drained(lambda engine: None, FaultyStore(DictionaryStore())) == everything
    found = drained(lambda engine: store.arm(2, "fail", only=("write",)), store)
    assert found == everything[:HOLD_MESSAGES]
