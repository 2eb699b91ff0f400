"""Step processes that die or cannot be started at a bad moment."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead import Broker
from fairlead.worker.items import group_streams
from fairlead.worker.plan import PipelinePlan
from fairlead.worker.process_slot import ProcessSlot
from fairlead.worker.protocol import PipelineSetup
from fairlead.worker.slots import SlotDied
from tests.docs.pages import ROOT
from tests.worker.scene import QUEUE, runbook, step, until

PLAN = PipelinePlan.of(runbook(step("nothing")).pipelines["pipeline"])
SETUP = PipelineSetup(PLAN.name, PLAN.steps, {}, str(ROOT))


@pytest.fixture
def selector() -> Iterator[selectors.BaseSelector]:
    with selectors.DefaultSelector() as found:
        yield found


def test_a_death_while_much_is_being_written_is_reported_once(
    broker: Broker, selector: selectors.BaseSelector
) -> None:
    broker.enqueue(QUEUE, b'"' + b"x" * 8_000_000 + b'"')
    items = group_streams(broker.claim(QUEUE, limit=1))
    event: list[Any] = []
    slot = ProcessSlot(PLAN, SETUP, event.append, selector)
    os.kill(slot.pid, signal.SIGSTOP)
    slot.give(items)
    os.kill(slot.pid, signal.SIGKILL)
    # Both of its pipes are ready then and are handled one after the other.
    ready = until(lambda: (found := selector.select(0)) and len(found) == 2 and found, "both pipes")
    for key, _ in ready:
        key.data()
    (died,) = event
    assert isinstance(died, SlotDied)
    assert died.others == items
    assert not selector.get_map()


def test_a_process_that_cannot_start_leaves_no_descriptor_open(
    selector: selectors.BaseSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(OSError):
            ProcessSlot(PLAN, SETUP, print, selector)
    assert len(os.listdir("/proc/self/fd")) == before
