"""The worker loop of a task on slices of numbered claims, with a broker in this process and without Spark."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from fairlead import Broker, Delivery
from fairlead.errors import (
    ClaimClosed,
    ClaimReleased,
    ServerUnreachable,
    StaleConsumer,
    StaleSlice,
    StepNotLoaded,
)
from fairlead.model.settle import Complete, Extend, Fail, Release, Settlement, SettleResult, Start
from fairlead.runbook.model import Runbook, StepSpec
from fairlead.spark.worker import slice_handler, slice_worker
from fairlead.spark.worker.slice_handler import SliceHandler
from fairlead.spark.worker.slice_queue import ClaimSlice
from fairlead.spark.worker.slice_worker import SliceResult, SliceWorker, work_in_process
from fairlead.testing import open_in_memory
from fairlead.verbs.claim import Claim
from fairlead.verbs.settle import Settle
from fairlead.worker.job import Job
from tests.docs.pages import ROOT
from tests.worker.scene import QUEUE, push, runbook, step, until
from tests.worker.steps import read_journal

NAME = "worker:worker"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with open_in_memory(durability="os") as broker:
        again = {"policy": "immediate", "attempts": 3}
        broker.create_queue(QUEUE, retry=again, retry_in_stream=again)
        yield broker


@pytest.fixture
def journal(tmp_path: Path) -> str:
    return str(tmp_path / "journal.jsonl")


@pytest.fixture(autouse=True)
def nobody_stays() -> Iterator[None]:
    yield
    slice_worker.stop_worker()


class Run:
    """A consumer that works on its claims one after the other, slice by slice."""

    def __init__(self, broker: Broker, book: Runbook, slices: int = 2) -> None:
        self.broker = broker
        self.slices = slices
        self.job = Job.of(book, "worker", str(ROOT), engine=None)
        self.info = broker.consumers.register(NAME, QUEUE, default_outcome="release")
        self.number = self.info.open or self.info.last_closed + 1

    def claim(self, limit: int = 10_000) -> int:
        return self.broker.consumers.claim(NAME, QUEUE, self.info.generation, self.number, limit=limit).count

    def part(self, at: int) -> ClaimSlice:
        return ClaimSlice(NAME, QUEUE, self.info.generation, self.number, at, self.slices)

    def work(self, consumers: Any = None) -> list[SliceResult]:
        with living(self.job, consumers or self.broker.consumers) as crew:
            return [crew.work(self.part(at)) for at in range(self.slices)]

    def close(self) -> dict[str, int]:
        closed = self.broker.consumers.close(NAME, QUEUE, self.info.generation, self.number)
        self.number = closed.last_closed + 1
        return closed.settled

    def work_off(self) -> list[dict[str, int]]:
        """Work on claims until nothing is ready. Returns the counts of each claim's close."""
        found = []
        while self.claim():
            self.work()
            found.append(self.close())
        return found


def claim(target: SliceHandler, limit: int, max_per_stream: int = 1) -> list[Delivery]:
    return target.do(Claim(QUEUE, limit, max_per_stream=max_per_stream, started=False))


def settle(target: SliceHandler, items: list[Settlement]) -> list[SettleResult]:
    return target.do(Settle(items))


@contextmanager
def living(job: Job, consumers: Any) -> Iterator[SliceWorker]:
    crew = SliceWorker("key", job, consumers)
    try:
        yield crew
    finally:
        crew.stop()


def test_every_message_of_a_claim_is_worked_once_and_done_when_it_is_closed(
    broker: Broker, journal: str
) -> None:
    push(broker, *({"n": n, "journal": journal} for n in range(300)))
    run = Run(broker, runbook(step("first", "noted"), step("second", "noted"), concurrency=2), slices=3)
    run.claim()
    done = run.work()
    assert [sum(one.recorded.completed for one in done), sum(one.worked.steps for one in done)] == [300, 600]
    assert broker.stats(QUEUE).leased == 300
    assert run.close() == {"completed": 300}
    lines = [line for line in read_journal(journal) if line["word"] == "begin"]
    assert sorted((line["n"], line["step"]) for line in lines) == sorted(
        (n, name) for n in range(300) for name in ("first", "second")
    )


def test_one_that_fails_is_told_with_its_reason_and_comes_again_with_what_it_had_done(
    broker: Broker, journal: str
) -> None:
    push(broker, *({"n": n, "journal": journal, "failures": 1 if n % 3 == 0 else 0} for n in range(30)))
    run = Run(broker, runbook(step("first", "noted"), step("second", "fails"), step("third", "noted")))
    run.claim()
    done = run.work()
    assert sum(one.recorded.failed for one in done) == 10
    assert sum((one.recorded.reasons for one in done), start=type(done[0].recorded.reasons)()) == {
        "dependency_failure": 10
    }
    assert run.close() == {"completed": 20, "retry": 10}
    assert run.work_off() == [{"completed": 10}]
    begun = [(line["n"], line["step"]) for line in read_journal(journal) if line["word"] == "begin"]
    assert begun.count((0, "first")) == 1
    assert begun.count((0, "second")) == 2
    assert len(begun) == 30 + 40 + 30


def test_a_message_that_never_goes_well_ends_as_a_dead_letter(broker: Broker) -> None:
    push(broker, {"n": 0, "how": "value"}, {"n": 1, "how": "dead"})
    run = Run(broker, runbook(step("raises")))
    assert run.work_off() == [{"retry": 1, "dead": 1}, {"retry": 1}, {"dead": 1}]
    assert broker.stats(QUEUE).dead == 2


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_stream_is_worked_in_order_and_what_is_behind_a_failure_waits_for_it(
    broker: Broker, journal: str, concurrency: int
) -> None:
    items = [
        {"n": n, "stream": f"s{s}", "journal": journal, "failures": (n + s) % 5 == 0}
        for n in range(8)
        for s in range(40)
    ]
    push(broker, *items)
    run = Run(
        broker,
        runbook(step("first", "noted"), step("second", "fails"), concurrency=concurrency, isolate="thread"),
    )
    closed = run.work_off()
    assert sum(one.get("completed", 0) for one in closed) == len(items)
    assert sum(one.get("released", 0) for one in closed) > 0
    streams: dict[str, list[dict[str, Any]]] = {}
    for line in read_journal(journal):
        streams.setdefault(line["stream"], []).append(line)
    for name, lines in streams.items():
        assert [n for n, _ in groupby(line["n"] for line in lines)] == list(range(8)), (
            f"stream {name}: {lines}"
        )


def test_with_continue_those_behind_a_failure_have_leave_to_pass_it(broker: Broker, journal: str) -> None:
    push(broker, *({"n": n, "stream": "s", "journal": journal, "failures": n == 1} for n in range(100)))
    broker.update_queue(QUEUE, retry_in_stream={"policy": "fixed", "cooldown": "1h"})
    run = Run(broker, runbook(step("fails"), on_stream_failure="continue"), slices=1)
    run.claim()
    (done,) = run.work()
    assert done.recorded.streams_to_release == {"s"}
    # All messages behind the failed one, also those that the worker loop had not claimed.
    assert (done.recorded.completed, done.recorded.failed, done.recorded.released) == (1, 1, 98)
    run.close()
    broker.release_stream(QUEUE, "s")
    assert run.work_off() == [{"completed": 98}]


def test_what_is_settled_is_left_out_when_the_claim_is_worked_again(broker: Broker, journal: str) -> None:
    push(broker, *({"n": n, "journal": journal, "failures": n % 10 == 0} for n in range(100)))
    run = Run(broker, runbook(step("fails")))
    run.claim()
    run.work()
    again = Run(broker, runbook(step("fails")))  # another driver: it finds the claim open
    assert again.number == run.number
    again.claim()
    done = again.work()
    assert [one.recorded.completed + one.recorded.failed for one in done] == [0, 0]
    assert again.close() == {"completed": 90, "retry": 10}
    assert len([line for line in read_journal(journal) if line["word"] == "begin"]) == 100


class Wire:
    """A connection between a worker loop and its broker that can be cut, and keeps the recorded items."""

    def __init__(self, broker: Broker) -> None:
        self._consumers = broker.consumers
        self.is_cut = threading.Event()
        self.tried = threading.Event()
        self.recorded: list[list[Any]] = []

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._consumers, verb)

        def carried(*arguments: Any, **options: Any) -> Any:
            if self.is_cut.is_set():
                self.tried.set()
                raise ServerUnreachable("127.0.0.1:1", 0)
            if verb == "record":
                self.recorded.append(list(arguments[4]))
            return call(*arguments, **options)

        return carried


def held(journal: str, gate: Path, count: int, held_at: int) -> list[dict[str, Any]]:
    """Items of which one waits for the gate in the middle of its step."""
    hold = {"step": "first", "gate": str(gate)}
    return [{"n": n, "journal": journal, **({"hold": hold} if n == held_at else {})} for n in range(count)]


def begins(journal: str, n: int) -> int:
    return sum(line["n"] == n and line["word"] == "begin" for line in read_journal(journal))


def test_while_the_broker_is_away_a_slice_waits_for_it(broker: Broker, journal: str, tmp_path: Path) -> None:
    gate, wire = tmp_path / "gate", Wire(broker)
    push(broker, *held(journal, gate, 5, held_at=0))
    run = Run(broker, runbook(step("first", "noted")), slices=1)
    run.claim()
    done: list[SliceResult] = []
    working = threading.Thread(target=lambda: done.extend(run.work(wire)))
    working.start()
    until(lambda: begins(journal, 0))
    wire.is_cut.set()
    gate.touch()
    assert wire.tried.wait(60)
    wire.is_cut.clear()
    working.join(60)
    assert done[0].recorded.completed == 5
    assert run.close() == {"completed": 5}


def test_whoever_is_taken_over_ends_and_records_nothing_more(
    broker: Broker, journal: str, tmp_path: Path
) -> None:
    gate, wire = tmp_path / "gate", Wire(broker)
    push(broker, *held(journal, gate, 3, held_at=0))
    run = Run(broker, runbook(step("first", "noted")), slices=1)
    run.claim()
    with living(run.job, wire) as crew:
        raised: list[BaseException] = []

        def work() -> None:
            try:
                crew.work(run.part(0))
            except StaleConsumer as error:
                raised.append(error)

        working = threading.Thread(target=work)
        working.start()
        until(lambda: begins(journal, 0))
        again = Run(broker, runbook(step("first", "noted")), slices=1)
        working.join(
            60
        )  # it has no outcome to record, but checks every second that the slice is still its own
        assert raised
        crew.stop()
        assert begins(journal, 0) == 1
    gate.touch()
    again.claim()
    (done,) = again.work()
    # The message that the first worker had begun counts as a failed try.
    assert (done.recorded.completed, done.recorded.failed, dict(done.recorded.reasons)) == (
        2,
        1,
        {"timeout_exceeded": 1},
    )
    assert again.close() == {"completed": 2, "retry": 1}


@pytest.mark.parametrize(("ending", "error"), [("release", ClaimReleased), ("close", ClaimClosed)])
def test_a_claim_that_ends_without_it_ends_the_slice(
    broker: Broker, journal: str, tmp_path: Path, ending: str, error: type[Exception]
) -> None:
    gate = tmp_path / "gate"
    push(broker, *held(journal, gate, 3, held_at=0))
    run = Run(broker, runbook(step("first", "noted")), slices=1)
    run.claim()
    raised: list[BaseException] = []

    def work() -> None:
        try:
            run.work()
        except Exception as error:
            raised.append(error)

    working = threading.Thread(target=work)
    working.start()
    until(lambda: begins(journal, 0))
    if ending == "release":
        broker.consumers.release(NAME, QUEUE)
    else:
        run.close()
    gate.touch()
    working.join(60)
    assert [type(one) for one in raised] == [error]


def test_a_task_whose_slice_another_task_began_stops_by_itself_and_records_nothing_more(
    broker: Broker, journal: str, tmp_path: Path
) -> None:
    """Spark gave an executor up and ran its task again elsewhere, but the executor still reaches the broker."""
    gate = tmp_path / "gate"
    push(broker, *held(journal, gate, 3, held_at=0))
    run = Run(broker, runbook(step("first", "noted")), slices=1)
    run.claim()
    with living(run.job, broker.consumers) as cut_off:
        raised: list[BaseException] = []

        def work() -> None:
            try:
                cut_off.work(run.part(0))
            except StaleSlice as error:
                raised.append(error)

        working = threading.Thread(target=work)
        working.start()
        until(lambda: begins(journal, 0))
        successor = SliceHandler(broker.consumers)
        successor.begin(run.part(0))
        working.join(60)  # it checks every second whether the slice still belongs to it
        assert [type(error) for error in raised] == [StaleSlice]
        cut_off.stop()
    gate.touch()
    left = claim(successor, 10, max_per_stream=10)
    assert len(left) == 2, "the message that the first task had begun has failed"
    assert {result.outcome for result in settle(successor, [Complete(one) for one in left])} == {"completed"}
    assert run.close() == {"completed": 2, "retry": 1}


def test_a_settle_of_a_task_whose_slice_another_task_began_is_refused(broker: Broker) -> None:
    push(broker, {"n": 1})
    run = Run(broker, runbook(step("first", "noted")), slices=1)
    run.claim()
    first, second = SliceHandler(broker.consumers), SliceHandler(broker.consumers)
    first.begin(run.part(0))
    (delivery,) = claim(first, 1)
    second.begin(run.part(0))
    (again,) = claim(second, 1)
    assert [one.outcome for one in settle(first, [Complete(delivery)])] == ["lost_lease"]
    with pytest.raises(StaleSlice):
        first.wait(0)
    assert [one.outcome for one in settle(second, [Fail(again, error="no")])] == ["retry"]
    assert run.close() == {"retry": 1}


def test_after_a_crash_each_message_is_started_before_it_begins(broker: Broker, journal: str) -> None:
    push(broker, *({"n": n, "journal": journal} for n in range(20)))
    run = Run(broker, runbook(step("first", "noted"), isolate="thread"), slices=1)
    run.claim()
    broker.consumers.begin_slice(
        NAME, QUEUE, run.info.generation, run.number
    )  # by a task that died before it worked on a message
    wire = Wire(broker)
    run.work(wire)
    said = [item for items in wire.recorded for item in items]
    assert [sum(isinstance(item, kind) for item in said) for kind in (Start, Complete)] == [20, 20]


def test_quick_outcomes_are_recorded_many_at_a_time(broker: Broker) -> None:
    push(broker, *({"n": n} for n in range(5000)))
    wire = Wire(broker)
    run = Run(broker, runbook(step("nothing"), isolate="thread"), slices=1)
    run.claim()
    run.work(wire)
    assert sum(isinstance(item, Complete) for items in wire.recorded for item in items) == 5000
    assert len(wire.recorded) < 500


def test_a_crew_stays_for_the_same_work_and_is_replaced_for_another(broker: Broker, journal: str) -> None:
    book = runbook(step("first", "noted"))
    pids = []
    for turn, key in enumerate(("one", "one", "two")):
        push(broker, {"n": turn, "journal": journal})
        run = Run(broker, book, slices=1)
        run.claim()
        work_in_process(run.part(0), key, run.job, lambda: broker.consumers)
        run.close()
        pids.append(read_journal(journal)[-1]["pid"])
    assert pids[0] == pids[1] != pids[2]
    until(lambda: not Path(f"/proc/{pids[0]}").exists(), "the end of the step process of the work before")


@pytest.mark.parametrize("isolate", ["thread", "process"])
def test_steps_of_the_same_name_in_another_folder_are_others(
    broker: Broker, tmp_path: Path, isolate: str
) -> None:
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "desk_of_slices.py").write_text(
            f"import pathlib\ndef work(item): pathlib.Path({str(folder / 'done')!r}).touch()\n"
        )
        push(broker, {"n": 0})
        run = Run(broker, runbook(StepSpec("work", run="desk_of_slices:work"), isolate=isolate), slices=1)
        run.claim()
        job = replace(run.job, base=str(folder))
        work_in_process(run.part(0), job, job, lambda: broker.consumers)
        assert run.close() == {"completed": 1}
        assert (folder / "done").exists()


def test_a_step_that_cannot_be_loaded_ends_the_slice_with_its_name(broker: Broker) -> None:
    push(broker, {"n": 0})
    run = Run(broker, runbook(StepSpec("lost", run="tests.worker.nowhere:nothing")), slices=1)
    run.claim()
    with pytest.raises(StepNotLoaded, match=r"tests\.worker\.nowhere"):
        work_in_process(run.part(0), "key", run.job, lambda: broker.consumers)
    assert run.close() == {"released": 1}
    assert slice_worker._current is None


def test_what_is_refused_is_lost_and_not_counted(broker: Broker) -> None:
    push(broker, {"n": 0}, {"n": 1})
    run = Run(broker, runbook(step("nothing")), slices=1)
    run.claim()
    target = SliceHandler(broker.consumers)
    target.begin(run.part(0))
    first, second = claim(target, 2)
    Run(broker, runbook(step("nothing")))  # takes over
    assert [result.outcome for result in settle(target, [Complete(first), Start(second)])] == [
        "lost_lease"
    ] * 2
    with pytest.raises(StaleConsumer):
        target.wait(0)
    assert target.end().completed == 0
    assert [result.outcome for result in settle(target, [Complete(first)])] == ["lost_lease"]


def test_errors_are_cut_before_a_claim_could_not_hold_them(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slice_handler, "_ERROR_BYTES", 5_000)
    push(broker, *({"n": n} for n in range(4)))
    run = Run(broker, runbook(step("nothing")), slices=1)
    run.claim()
    wire = Wire(broker)
    target = SliceHandler(wire)
    target.begin(run.part(0))
    out = claim(target, 10)
    settle(target, [Fail(one, "x" * 2_000) for one in out])
    assert [len(item.error) for item in wire.recorded[0]] == [2_000, 2_000, 200, 200]


def test_errors_of_a_repeated_settle_are_counted_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slice_handler, "_ERROR_BYTES", 3_000)
    push(broker, {"n": 0})
    run = Run(broker, runbook(step("nothing")), slices=1)
    run.claim()
    wire = Wire(broker)
    target = SliceHandler(wire)
    target.begin(run.part(0))
    failed = [Fail(one, "x" * 2_000) for one in claim(target, 1)]
    wire.is_cut.set()
    with pytest.raises(ServerUnreachable):
        settle(target, failed)
    wire.is_cut.clear()
    settle(target, failed)
    assert [len(item.error) for item in wire.recorded[-1]] == [2_000]


def test_a_throttled_member_of_a_claim_fails_and_waits_because_its_neighbours_are_in_hand_already(
    broker: Broker,
) -> None:
    push(broker, {"n": 0}, throttle_keys=["api"])
    run = Run(broker, runbook(step("nothing")), slices=1)
    run.claim()
    wire = Wire(broker)
    target = SliceHandler(wire)
    target.begin(run.part(0))
    (one,) = claim(target, 1)
    (result,) = settle(target, [Fail(one, "429", retry_after="60s", close="api")])
    assert result.outcome == "retry"
    (said,) = wire.recorded[0]
    assert (said.retry_in, said.close, said.retry_after) == ("60s", None, None)


def test_after_its_time_a_slice_hands_out_nothing_more(broker: Broker) -> None:
    push(broker, {"n": 0}, {"n": 1}, *({"n": n, "stream": "s"} for n in range(5)))
    run = Run(broker, runbook(step("nothing")), slices=1)
    run.claim()
    target = SliceHandler(broker.consumers)
    target.begin(run.part(0), max_s=60)
    (first,) = claim(target, 1)
    assert target._open is not None
    target._open.deliver_until = 0
    assert claim(target, 10) == []
    assert not target.wait(0)
    settle(target, [Complete(first)])
    assert target.wait(0)
    assert run.close() == {"completed": 1, "released": 6}


@pytest.mark.parametrize(("crashes", "deliveries"), [(0, 3), (1, 2), (2, 3)])
def test_what_came_back_without_a_word_looks_so_to_the_crew(
    broker: Broker, crashes: int, deliveries: int
) -> None:
    push(broker, {"n": 0})
    run = Run(broker, runbook(step("nothing")), slices=1)
    run.claim()
    target = SliceHandler(broker.consumers)
    for expected in (1, deliveries):
        target.begin(run.part(0)._replace(crashes=crashes))
        (one,) = claim(target, 1)
        assert one.deliveries == expected


def test_a_target_hands_out_one_run_of_a_stream_at_a_time(broker: Broker) -> None:
    push(broker, *({"n": n, "stream": "s"} for n in range(5)), {"n": 9})
    run = Run(broker, runbook(step("nothing")), slices=1)
    run.claim()
    target = SliceHandler(broker.consumers)
    target.begin(run.part(0))

    def next_run() -> list[Any]:
        return claim(target, 10, 2)

    def numbers(deliveries: list[Any]) -> list[int]:
        return [json.loads(one.payload)["n"] for one in deliveries]

    first = next_run()
    assert sorted(numbers(first)) == [0, 1, 9]
    assert next_run() == []
    out = {json.loads(one.payload)["n"]: one for one in first}
    settle(target, [Complete(out[0]), Extend(out[1])])
    assert next_run() == []
    assert [
        result.outcome for result in settle(target, [Extend(out[1]), Start(out[1]), Complete(out[1])])
    ] == ["extended", "started", "completed"]
    second = next_run()
    assert numbers(second) == [2, 3]
    results = settle(target, [Fail(second[0], "odd"), Release(second[1])])
    assert [result.outcome for result in results] == ["retry", "released"]
    assert next_run() == []
    assert not target.wait(0)
    settle(target, [Complete(out[9])])
    assert target.wait(0)
    assert [result.outcome for result in settle(target, [Complete(out[9])])] == ["lost_lease"]
    assert run.close() == {"completed": 3, "retry": 1, "released": 2}
