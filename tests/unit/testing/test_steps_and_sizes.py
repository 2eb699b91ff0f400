from __future__ import annotations

import inspect
from pathlib import Path
from typing import get_args

import pytest

from fairlead import Complete, Fail
from fairlead.errors import StoreFailed, StoreFull
from fairlead.records.facts import StateFact
from fairlead.store.kv.port import Batch, Table
from fairlead.store.rows import RECORDS_IN_MEMORY
from fairlead.testing import (
    CommitStep,
    ManualClock,
    Storage,
    changes,
    laws,
    open_in_memory,
    run_due,
    stop_before,
)
from fairlead.testing.changes import _RECORDS
from fairlead.testing.sizes import _PLACES, read_size, set_sizes, sized
from fairlead.testing.storage import ProcessEnded, fail_syncs

FULL = StoreFull("here", 0, 1)


def test_every_fact_has_a_word() -> None:
    source = inspect.getsource(changes)
    assert [fact.__name__ for fact in get_args(StateFact) if f"f.{fact.__name__}" not in source] == []


def test_every_table_of_records_has_words() -> None:
    assert {*RECORDS_IN_MEMORY, Table.META, Table.AUDIT, Table.OUTCOMES, Table.ANSWERS} <= set(_RECORDS)


def test_a_step_that_is_stopped_is_not_written_and_others_are() -> None:
    with open_in_memory() as broker:
        broker.create_queue("q")
        broker.enqueue("q", b"x")
        (delivery,) = broker.claim("q")
        with stop_before(broker, lambda step: "complete" in step, FULL) as stopped:
            with pytest.raises(StoreFull):
                broker.settle([Complete(delivery)])
            assert broker.settle([Fail(delivery)])[0].outcome == "retry"
        assert [step.words for step in stopped] == [stopped[0].words]
        assert stopped[0].count("complete") == 1
        assert broker.stats("q").totals.completed == 0
        assert laws(broker) == []


def test_a_call_before_a_step_sees_the_state_without_it() -> None:
    storage, seen = Storage(), list[tuple[int, int]]()
    with storage.open_broker() as broker:
        broker.create_queue("q")

        def look(step: CommitStep) -> None:
            seen.append((step.count("enqueue"), storage.last_commit))

        before = storage.last_commit
        storage.on_step = look
        broker.enqueue("q", b"x")
        assert (seen, storage.last_commit) == ([(1, before)], before + 1)


@pytest.mark.parametrize(("trouble", "ready"), [("before", 1), ("after", 2), ("full", 1)])
def test_the_commit_that_is_armed_fails_in_the_way_that_was_asked_for(trouble: str, ready: int) -> None:
    storage = Storage()
    broker = storage.open_broker(clock=ManualClock())
    broker.create_queue("q")
    broker.enqueue("q", b"1")
    storage.arm(1, trouble)  # type: ignore[arg-type]
    with pytest.raises(StoreFull if trouble == "full" else ProcessEnded):
        broker.enqueue("q", b"2")
    assert storage.struck
    assert storage.reopen().open_broker(clock=ManualClock()).stats("q").ready == ready


def test_a_power_cut_takes_back_what_was_not_synced() -> None:
    storage, clock = Storage(forgets=True), ManualClock()
    broker = storage.open_broker(clock=clock)
    broker.create_queue("q")
    broker.enqueue("q", b"synced")
    assert broker.claim("q"), "a claim is not synced"
    storage.lose_unsynced()
    after = storage.reopen().open_broker(clock=clock)
    assert (after.stats("q").ready, after.stats("q").leased) == (1, 0)


def test_syncs_that_fail_stop_the_broker() -> None:
    with open_in_memory() as broker:
        broker.create_queue("q")
        fail_syncs(broker, StoreFailed("broken"))
        with pytest.raises(StoreFailed):
            broker.enqueue("q", b"x")


def test_the_laws_are_those_of_a_broker_a_storage_or_a_directory(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "data")
    with storage.open_broker(clock=ManualClock()) as broker:
        broker.create_queue("q")
        broker.enqueue("q", b"x", ttl="1h")
        run_due(broker)
        assert laws(broker) == laws(storage) == []
        ((key, _),) = storage.scan(Table.LIVES, limit=1)
        batch = Batch()
        batch.delete(Table.LIVES, key)
        storage.write(batch, storage.acquire(), storage.last_commit + 1)
        assert laws(broker) == laws(storage) != []
    assert laws(tmp_path / "data") != []


@pytest.mark.parametrize("name", _PLACES)
def test_every_size_is_a_number_of_the_engine(name: str) -> None:
    before = read_size(name)
    assert isinstance(before, int)
    with sized(**{name: 7}):
        assert read_size(name) == 7
    assert read_size(name) == before
    set_sizes(**{name: before})
    assert read_size(name) == before
