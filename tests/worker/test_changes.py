"""A pipeline that changes while messages are between its steps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead import Broker, Extend
from fairlead.runbook.model import StepSpec
from fairlead.surface import Surface
from fairlead.verbs.claim import Claim
from fairlead.verbs.settle import Settle
from fairlead.worker.job import Job
from fairlead.worker.slots import StepsNotLoaded
from fairlead.worker.workers import Workers
from tests.docs.pages import ROOT
from tests.worker.scene import QUEUE, push, runbook, step, until, working
from tests.worker.steps import read_journal


class Slow(Surface):
    """A broker whose answers to confirmed steps wait for the test."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.confirmed = threading.Event()
        self.answer = threading.Event()

    def do(self, request: Any) -> Any:
        answer = self._broker.do(request)
        if isinstance(request, Settle) and any(
            isinstance(item, Extend) and item.carry for item in request.items
        ):
            self.confirmed.set()
            self.answer.wait()
        return answer


@pytest.fixture
def slow(broker: Broker) -> Iterator[Slow]:
    found = Slow(broker)
    yield found
    found.answer.set()


def ended(journal: str) -> list[str]:
    return [line["step"] for line in read_journal(journal) if line["word"] == "end"]


@pytest.mark.parametrize(
    ("steps", "then"),
    [(("a",), []), (("z", "a", "b"), ["z", "b"]), (("b",), ["b"])],
    ids=["nothing is left to do", "a step before it", "fewer steps"],
)
def test_a_message_continues_in_the_new_pipeline_with_its_unconfirmed_steps(
    slow: Slow, journal: str, steps: tuple[str, ...], then: list[str]
) -> None:
    push(slow, {"n": 1, "journal": journal})
    with working(slow, runbook(step("a", "noted"), step("b", "noted"))) as workers:
        assert slow.confirmed.wait(60)
        book = runbook(*(step(name, "noted") for name in steps))
        workers.change(book)
        until(lambda: len(workers.loops["worker"].job.plan.steps) == len(steps), "the new pipeline")
        slow.answer.set()
        until(lambda: workers.counts.completed == 1 or workers.error, "the message")
        workers.check()
    assert ended(journal) == ["a", *then]


def test_a_removed_step_does_not_complete_the_message(broker: Broker, journal: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    push(broker, {"n": 1, "journal": journal, "hold": {"step": "a", "gate": str(gate)}})
    with working(broker, runbook(step("a", "noted"), step("b", "noted"))) as workers:
        until(lambda: read_journal(journal), "the first step")
        workers.change(runbook(step("c", "noted")))
        until(lambda: len(workers.loops["worker"].job.plan.steps) == 1, "the new pipeline")
        gate.touch()
        until(lambda: workers.counts.completed == 1, "the message")
    assert ended(journal) == ["a", "c"]


def test_a_change_that_several_processes_cannot_load_is_undone_once(broker: Broker, journal: str) -> None:
    with working(broker, runbook(step("a", "noted"))) as workers:
        loop = workers.loops["worker"]
        workers.change(runbook(step("missing")))
        until(lambda: loop.job.plan.steps[0].name == "missing", "the new pipeline")
        until(lambda: loop.job.plan.steps[0].name == "a", "the old one")
        # Two processes that were started together fail together, and the second failure is reported after the
        # first.
        loop._post(StepsNotLoaded(None, "missing", "it cannot be imported"))  # type: ignore[arg-type]
        push(broker, {"n": 1, "journal": journal})
        until(lambda: workers.counts.completed == 1 or workers.error, "the message")
        workers.check()
    assert broker.stats(QUEUE).leased == 0


def test_a_change_whose_processes_die_while_loading_is_undone(
    broker: Broker, journal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dies_when_imported.py").write_text("import os\nos._exit(7)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with working(broker, runbook(step("a", "noted"))) as workers:
        workers.change(runbook(StepSpec("b", run="dies_when_imported:function")))
        until(lambda: workers.loops["worker"].job.plan.steps[0].name == "b", "the new pipeline")
        push(broker, {"n": 1, "journal": journal})
        until(lambda: workers.counts.completed == 1 or workers.error, "the message")
        workers.check()
    assert ended(journal) == ["a"]


def test_a_change_to_an_engine_that_is_not_installed_changes_no_worker(
    broker: Broker, journal: str, caplog: pytest.LogCaptureFixture
) -> None:
    with working(broker, runbook(step("a", "noted"))) as workers:
        workers.change(runbook(step("b", "noted"), engine="spark"))
        push(broker, {"n": 1, "journal": journal})
        until(lambda: workers.counts.completed == 1, "the message")
    assert ended(journal) == ["a"]
    assert "cannot be run here" in caplog.text


def test_a_leaving_worker_whose_queue_is_deleted_stops_no_other_worker(
    broker: Broker, journal: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_queue("old")
    asked = threading.Event()

    class DeletedMeanwhile(Surface):
        def do(self, request: Any) -> Any:
            if isinstance(request, Claim) and request.queue == "old":
                asked.set()
                until(lambda: not broker.queues("old"), "the queue to be gone")
            return broker.do(request)

    book = runbook(step("noted"))
    queues = {**book.queues, "old": msgspec.structs.replace(book.queues[QUEUE], name="old")}
    at_old = msgspec.structs.replace(book.workers["worker"], queue="old")
    with_old = msgspec.structs.replace(book, queues=queues, workers={"worker": at_old})
    with working(DeletedMeanwhile(), with_old) as workers:
        assert asked.wait(60)
        workers.change(book)
        broker.delete_queue("old")
        until(lambda: workers.wait(0) or "ended early" in caplog.text, "the old worker to end")
        push(broker, {"n": 1, "journal": journal})
        until(lambda: workers.counts.completed == 1 or workers.wait(0), "the message")
        workers.check()
        assert workers.counts.completed == 1


def test_a_worker_that_joins_during_a_stop_stops_too(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(broker, runbook(step("nothing")), base=ROOT)
    workers.start()
    add = workers._add

    def signalled(job: Job) -> None:
        workers.stop()  # like a signal handler between two lines of the change
        add(job)

    monkeypatch.setattr(workers, "_add", signalled)
    before = runbook(step("nothing"))
    others = {
        name: msgspec.structs.replace(before.workers["worker"], name=name)
        for name in ("worker", "second", "third")
    }
    workers.change(msgspec.structs.replace(before, workers=others))
    assert len(workers.loops) > 1
    assert workers.wait(60)
    workers.check()
