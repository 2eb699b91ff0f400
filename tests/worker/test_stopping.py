"""A worker that is told to stop while the broker does not answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead import Broker
from fairlead.errors import Forbidden
from fairlead.surface import Surface
from fairlead.verbs.claim import Claim
from fairlead.worker import loop as loop_module
from fairlead.worker import outbox as outbox_module
from fairlead.worker.pool import SlotPool
from fairlead.worker.workers import Workers
from tests.docs.pages import ROOT
from tests.worker.scene import PATIENCE_S, QUEUE, push, runbook, step, until


class Silent(Surface):
    """A broker that stops answering when the test says so."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.silent = threading.Event()
        self.unheard: list[str] = []
        self.over = threading.Event()

    def do(self, request: Any) -> Any:
        if self.silent.is_set():
            self.unheard.append(request.verb_name)
            self.over.wait()
        return self._broker.do(request)


@pytest.fixture
def silent(broker: Broker) -> Iterator[Silent]:
    found = Silent(broker)
    yield found
    found.over.set()


@pytest.mark.parametrize("hurry", [False, True])
def test_a_worker_that_holds_nothing_stops_without_an_answer(
    silent: Silent, monkeypatch: pytest.MonkeyPatch, hurry: bool
) -> None:
    monkeypatch.setattr(loop_module, "_LEAVING_S", 0.2)
    workers = Workers(silent, runbook(step("nothing")), base=ROOT, grace_s=10 * PATIENCE_S)
    workers.start()
    silent.silent.set()
    until(lambda: "claim" in silent.unheard, "a claim that nobody answers")
    workers.stop()
    if hurry:
        workers.stop(hurry=True)
    assert workers.wait(PATIENCE_S)
    workers.check()
    assert "goodbye" in silent.unheard


class Refusing(Surface):
    """A broker that refuses claims when the test says so."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.refuses = threading.Event()

    def do(self, request: Any) -> Any:
        if isinstance(request, Claim) and self.refuses.is_set():
            raise Forbidden("consume", QUEUE)
        return self._broker.do(request)


def test_a_failing_worker_still_settles_completed_work(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "_HOLD_S", 10 * PATIENCE_S)
    monkeypatch.setattr(SlotPool, "is_busy", lambda pool: True)
    refusing = Refusing(broker)
    push(broker, {"n": 1})
    workers = Workers(refusing, runbook(step("nothing")), base=ROOT)
    workers.start()
    until(lambda: workers.counts.steps == 1, "the step, whose outcome waits for others to go with")
    refusing.refuses.set()
    assert workers.wait(PATIENCE_S)
    with pytest.raises(Forbidden):
        workers.check()
    stats = broker.stats(QUEUE)
    assert (stats.ready, stats.leased) == (0, 0)
