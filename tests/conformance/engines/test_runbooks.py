"""Runbooks in the engine: text and external queues are one write, and are there after a reopening."""

from __future__ import annotations

import pytest

from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.errors import ExternalQueue, InvalidRequest, QueueNotFound, RunbookNotFound, StoreFull
from fairlead.runbook.model import QueueSpec, Runbook, dump_runbook
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.testing import ManualClock
from fairlead.testing.faulty import FaultyStore
from fairlead.verbs.inspect import Stats
from fairlead.verbs.queues import CreateQueue
from fairlead.verbs.runbooks import RunbooksGet, RunbooksList, RunbooksSave

SHOP = dump_runbook(Runbook("shop", {"issues": QueueSpec("issues", "external", list=("a",), take=("b",))}))


def test_a_runbook_and_its_external_queues_are_one_write_and_survive_a_reopening() -> None:
    data = DictionaryData()
    engine = Engine(DictionaryStore(data), clock=ManualClock())
    before = engine.store.last_commit
    engine.do(RunbooksSave("shop", SHOP))
    assert engine.store.last_commit == before + 1
    assert broken_laws(engine) == []
    again = Engine(DictionaryStore(data), clock=ManualClock())
    assert again.do(RunbooksGet("shop")) == SHOP
    with pytest.raises(ExternalQueue) as refused:
        again.do(Stats("shop/issues"))
    assert refused.value.fields == {"queue": "shop/issues", "taken": "shop/issues.taken"}


def test_a_queue_that_is_no_longer_external_is_only_unknown() -> None:
    engine = Engine(DictionaryStore(), clock=ManualClock())
    engine.do(RunbooksSave("shop", SHOP))
    engine.do(RunbooksSave("shop", dump_runbook(Runbook("shop"))))
    with pytest.raises(QueueNotFound):
        engine.do(Stats("shop/issues"))
    assert broken_laws(engine) == []


def test_a_queue_that_exists_is_found_whatever_a_runbook_says() -> None:
    engine = Engine(DictionaryStore(), clock=ManualClock())
    engine.do(CreateQueue("shop/issues"))
    engine.do(RunbooksSave("shop", SHOP))
    assert engine.do(Stats("shop/issues")).queue == "shop/issues"


def test_a_runbook_that_could_not_be_written_is_not_in_force() -> None:
    store = FaultyStore(DictionaryStore())
    engine = Engine(store, clock=ManualClock())
    store.arm(1, "fail", only=["write"])
    with pytest.raises(StoreFull):
        engine.do(RunbooksSave("shop", SHOP))
    with pytest.raises(RunbookNotFound):
        engine.do(RunbooksGet("shop"))
    with pytest.raises(QueueNotFound):
        engine.do(Stats("shop/issues"))
    assert broken_laws(engine) == []


def test_more_runbooks_than_one_read_takes_are_listed_in_the_order_of_their_projects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairlead.engine.work.runbooks._PAGE", 2)
    engine = Engine(DictionaryStore(), clock=ManualClock())
    projects = ["", "a", "a-b", "b", "c"]
    for project in reversed(projects):
        engine.do(RunbooksSave(project, dump_runbook(Runbook(project or None))))
    assert list(engine.do(RunbooksList())) == projects


def test_a_text_of_another_project_is_refused() -> None:
    engine = Engine(DictionaryStore(), clock=ManualClock())
    with pytest.raises(InvalidRequest):
        engine.do(RunbooksSave("mail", SHOP))
    assert engine.do(RunbooksList()) == {}
