"""An enqueue that is too large for one hold of the lock ends like one that is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from fairlead import NewMessage
from fairlead.engine import short_ways
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.engine.work import large_enqueue, publish_steps, staging
from fairlead.errors import InvalidRequest, QueueFull, QueueNotFound, StoreFull, Unavailable
from fairlead.model.failure import FailureReason
from fairlead.records.facts import ChunkEnqueued
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.testing import ManualClock
from fairlead.testing.faulty import FaultyStore, Killed
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany, Quarantine
from fairlead.verbs.inspect import Stats
from fairlead.verbs.queues import CreateQueue, DeleteQueue
from fairlead.verbs.staging import StagingList, StagingStage
from tests.conformance.engines.running import Run
from tests.conformance.engines.test_memory_sizes import repeat_run, run_with_all_in_memory

COUNT = 10


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """An enqueue of two messages is large, and a part has two. No short way is open to it."""
    monkeypatch.setattr(short_ways, "MAX_MESSAGES", 1)
    monkeypatch.setattr(large_enqueue, "LARGE_MESSAGES", 1)
    monkeypatch.setattr(staging, "PART_MESSAGES", 2)
    monkeypatch.setattr(publish_steps, "STEP_MESSAGES", 2)


def open_engine(store: Any = None, clock: ManualClock | None = None, **options: Any) -> Engine:
    engine = Engine(store or DictionaryStore(), clock=clock or ManualClock())
    if not engine.memory.by_id:
        engine.do(CreateQueue("q", options))
    return engine


def messages(count: int = COUNT, **fields: Any) -> list[NewMessage]:
    return [NewMessage(b"%d" % n, **fields) for n in range(count)]


def payloads(engine: Engine) -> list[bytes]:
    assert broken_laws(engine) == []
    return [one.payload for one in engine.do(Claim("q", 1000))]


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", range(12), ids=lambda seed: f"seed{seed}-")
def test_runs_with_large_enqueues_end_like_those_without(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    steps, answers = run_with_all_in_memory(Run(seed, has_scripts=True, forgets=True, keeps=True))
    make_small(monkeypatch)
    repeat_run(seed, steps, answers, DictionaryStore(), laws_every=5)


def test_a_large_enqueue_takes_several_short_transactions() -> None:
    engine = open_engine()
    before = engine.store.last_commit
    ids = engine.do(EnqueueMany("q", messages()))
    assert engine.store.last_commit - before > COUNT // 2
    found = engine.do(Claim("q", 1000))
    assert ([one.id for one in found], [one.payload for one in found]) == (
        ids,
        [b"%d" % n for n in range(COUNT)],
    )


def test_bytes_make_an_enqueue_large_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_enqueue, "LARGE_MESSAGES", 1000)
    monkeypatch.setattr(large_enqueue, "LARGE_BYTES", 100)
    monkeypatch.setattr(staging, "PART_MESSAGES", 1000)
    monkeypatch.setattr(staging, "PART_BYTES", 40)
    engine = open_engine()
    before = engine.store.last_commit
    engine.do(EnqueueMany("q", [NewMessage(bytes(20))] * 10))
    assert [chunk.count for chunk in engine.memory.chunks.values()] == [2] * 5
    assert engine.store.last_commit - before > 5
    assert len(payloads(engine)) == 10


def test_many_keys_make_an_enqueue_large_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_enqueue, "LARGE_MESSAGES", 1000)
    monkeypatch.setattr(large_enqueue, "LARGE_KEYS", COUNT - 1)
    engine = open_engine()
    before = engine.store.last_commit
    engine.do(EnqueueMany("q", messages()))
    assert engine.store.last_commit == before + 1
    engine.do(EnqueueMany("q", [NewMessage(b"x", fairness_key=f"k{n}") for n in range(COUNT)]))
    assert engine.store.last_commit > before + COUNT // 2
    assert len(payloads(engine)) == 2 * COUNT


def test_duplicates_get_the_ids_of_their_first_messages() -> None:
    engine = open_engine(dedup="1m")
    (known,) = engine.do(EnqueueMany("q", [NewMessage(b"known", dedup_key="a")]))
    keys = ["a", "b", None, "b", "a", "a", "c", "b"]
    ids = engine.do(EnqueueMany("q", [NewMessage(b"%d" % n, dedup_key=key) for n, key in enumerate(keys)]))
    assert [ids[at] for at in (0, 4, 5)] == [known] * 3
    assert ids[1] == ids[3] == ids[7]
    assert len({known, *ids}) == 4
    assert payloads(engine) == [b"known", b"1", b"2", b"6"]


def test_a_queue_that_has_no_room_refuses_all_of_it() -> None:
    engine = open_engine(max_messages=COUNT - 1)
    before = engine.store.last_commit
    with pytest.raises(QueueFull):
        engine.do(EnqueueMany("q", messages()))
    assert engine.store.last_commit == before
    assert payloads(engine) == []
    assert not engine.memory.staged.writes
    assert len(engine.do(EnqueueMany("q", messages(COUNT - 1)))) == COUNT - 1


def test_a_queue_that_fills_up_meanwhile_refuses_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine(max_messages=COUNT)
    stage = large_enqueue.stage_part

    def stage_and_enqueue(*arguments: Any) -> None:
        if not engine.memory.chunks:
            engine.do(Enqueue("q", b"other"))
        stage(*arguments)

    monkeypatch.setattr(large_enqueue, "stage_part", stage_and_enqueue)
    with pytest.raises(QueueFull):
        engine.do(EnqueueMany("q", messages()))
    assert not engine.memory.staged.writes
    assert payloads(engine) == [b"other"]


def test_duplicates_need_no_room_in_a_bounded_queue() -> None:
    engine = open_engine(max_messages=1, dedup="1m")
    (first,) = engine.do(EnqueueMany("q", [NewMessage(b"x", dedup_key="a")]))
    assert engine.do(EnqueueMany("q", [NewMessage(b"x", dedup_key="a")] * 5)) == [first] * 5


def test_nobody_sees_or_uses_the_staged_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine()
    seen: list[tuple[int, list[Any]]] = []
    stage = large_enqueue.stage_part

    def look(*arguments: Any) -> None:
        stage(*arguments)
        seen.append((engine.do(Stats("q")).ready, engine.do(StagingList())))

    monkeypatch.setattr(large_enqueue, "stage_part", look)
    engine.do(EnqueueMany("q", messages()))
    assert seen == [(0, [])] * (COUNT // 2)
    assert engine.do(StagingList()) == []
    with pytest.raises(InvalidRequest, match="zero byte"):
        engine.do(StagingStage("\0mine", "a", "q", messages()))


def test_the_timer_leaves_the_steps_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    engine = open_engine(clock=clock)
    steps: list[int] = []
    take_step = publish_steps.take_step

    def slow_step(*arguments: Any) -> None:
        take_step(*arguments)
        steps.append(len(steps))

    def with_timer(*arguments: Any) -> None:
        slow_step(*arguments)

    monkeypatch.setattr(large_enqueue, "take_step", with_timer)
    transaction = Engine.transaction

    def timed(self: Engine, *arguments: Any) -> Any:
        if steps and self.memory.staged.publishing and not self.lock.is_owned:
            engine.memory.staged.look_by(0)
            monkeypatch.setattr(Engine, "transaction", transaction)
            engine.run_due()
            monkeypatch.setattr(Engine, "transaction", timed)
        return transaction(self, *arguments)

    monkeypatch.setattr(Engine, "transaction", timed)
    assert len(engine.do(EnqueueMany("q", messages()))) == COUNT
    assert len(steps) == COUNT // 2


def test_a_queue_that_is_deleted_meanwhile_takes_its_messages_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    engine = open_engine(clock=clock)
    take_step = publish_steps.take_step

    def delete_after(tx: Any, *arguments: Any) -> None:
        take_step(tx, *arguments)
        engine.do(DeleteQueue("q"))

    monkeypatch.setattr(large_enqueue, "take_step", delete_after)
    with pytest.raises(QueueNotFound):
        engine.do(EnqueueMany("q", messages()))
    clock.advance(ms=1000)
    assert not engine.memory.staged.writes
    assert broken_laws(engine) == []


def crashes() -> Iterator[tuple[str, int]]:
    for fault in ("fail", "die_before", "die_after", "power_cut"):
        for step in range(1, 100):
            yield fault, step


def test_a_fault_at_every_step_leaves_all_of_it_or_nothing() -> None:
    over: set[str] = set()
    outcomes: set[tuple[str, int]] = set()
    for fault, step in crashes():
        if fault in over:
            continue
        clock = ManualClock()
        store = FaultyStore(DictionaryStore(), forgets=True)
        engine = open_engine(store, clock)
        engine.confirm()
        store.arm(step, fault, only=("batch", "write", "sync") if fault == "fail" else ())
        confirmed = False
        with suppress(StoreFull, Killed, Unavailable):
            confirmed = len(engine.do(EnqueueMany("q", messages()))) == COUNT
        if not store.struck:
            assert step > COUNT
            over.add(fault)
            continue
        engine.stop_working()
        again = open_engine(store.inner, clock)
        clock.advance(ms=601_000)
        found = again.do(Stats("q")).ready
        assert not again.memory.staged.writes, f"{fault} at step {step}"
        assert broken_laws(again) == [], f"{fault} at step {step}"
        assert found in (0, COUNT), f"{fault} at step {step}"
        assert not confirmed or found == COUNT, f"{fault} at step {step}"
        outcomes.add((fault, found))
    assert len(outcomes) == 8


def test_a_joined_enqueue_stays_one_write() -> None:
    engine = open_engine()
    before = engine.store.last_commit
    with engine.transaction():
        engine.do(EnqueueMany("q", messages()))
        engine.do(Enqueue("q", b"last"))
    assert engine.store.last_commit == before + 1
    assert payloads(engine) == [*[b"%d" % n for n in range(COUNT)], b"last"]


def messages_per_commit(engine: Engine, request: Any) -> tuple[list[str], list[int]]:
    """The answer, and how many messages each commit added."""
    counts: list[int] = []

    def committed(facts: Any, memory: Any) -> None:
        counts.append(sum(fact.chunk.count for fact in facts if isinstance(fact, ChunkEnqueued)))

    engine.observe(committed)
    return engine.do(request), [count for count in counts if count]


@pytest.mark.parametrize("fields", [{"delay": "1h"}, {"dedup_key": "one"}])
def test_messages_that_write_rows_of_their_own_make_an_enqueue_large_sooner(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    monkeypatch.setattr(large_enqueue, "LARGE_MESSAGES", 1000)
    monkeypatch.setattr(large_enqueue, "LARGE_ROWS", 3)
    given = [*messages(COUNT - 1), NewMessage(b"last", **fields)]
    for some, most in ((given[-3:], 3), (given, 2)):
        engine = open_engine(dedup="1h")
        ids, counts = messages_per_commit(engine, EnqueueMany("q", some))
        assert len(set(ids)) == sum(counts) == len(some)
        assert max(counts) == most
        assert broken_laws(engine) == []


def test_a_large_quarantine_takes_several_short_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_enqueue, "LARGE_DEAD", 2)
    given = messages(headers={"a": "b"}, ttl="1s", delay="1h", dedup_key="one", fairness_key="k", stream="s")
    found = []
    for some, most in ((given[:2], 2), (given[2:], 1)):
        engine = open_engine()
        ids, counts = messages_per_commit(engine, Quarantine("q", some, FailureReason.POISON_MESSAGE, "bad"))
        assert max(counts) == most
        assert sum(counts) == len(ids) == len(some)
        assert broken_laws(engine) == []
        dead = engine.do(Claim("q.dlq", 1000))
        assert [one.id for one in dead] == ids
        assert [one.payload for one in dead] == [one.payload for one in some]
        failures = [one.failures[-1] for one in dead]
        assert {(one.error, one.rule) for one in failures} == {("bad", "quarantine")}
        found += [(one.headers, one.fairness_key, one.stream, one.source, one.attempts) for one in dead]
        assert engine.do(StagingList()) == []
    # One quarantine was large, and the other was not.
    assert len(set(map(repr, found))) == 1


def test_a_large_quarantine_is_refused_as_a_small_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_enqueue, "LARGE_DEAD", 2)
    engine = open_engine()
    for some in (messages(2), messages()):
        with pytest.raises(QueueNotFound):
            engine.do(Quarantine("missing", some))
        with pytest.raises(InvalidRequest):
            engine.do(Quarantine("q.dlq", some))
        with pytest.raises(InvalidRequest):
            engine.do(Quarantine("q", [*some, NewMessage(b"x", weight="heavy")]))  # type: ignore[arg-type]
    assert engine.do(StagingList()) == []
    assert engine.do(Stats("q")).dead == 0
