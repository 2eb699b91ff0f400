"""A worker that is told to stop while nobody answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead import Broker
from fairlead.worker import crew as crew_module
from fairlead.worker.workers import Workers
from tests.docs.pages import ROOT
from tests.worker.scene import PATIENCE_S, runbook, step, until


class Silent:
    """A broker that can be made to answer nothing any longer."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.silent = threading.Event()
        self.unheard: list[str] = []
        self.over = threading.Event()

    def __getattr__(self, verb: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if self.silent.is_set():
                self.unheard.append(verb)
                self.over.wait()
            return getattr(self._broker, verb)(*arguments, **options)

        return call


@pytest.fixture
def silent(broker: Broker) -> Iterator[Silent]:
    found = Silent(broker)
    yield found
    found.over.set()


@pytest.mark.parametrize("hurry", [False, True])
def test_a_worker_with_nothing_in_hand_leaves_without_an_answer(silent: Silent, monkeypatch: pytest.MonkeyPatch, hurry: bool) -> None:
    monkeypatch.setattr(crew_module, "_LEAVING_S", 0.2)
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
