"""A worker at a broker in this process: what each way through a pipeline leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead import Broker, FailureReason
from fairlead.errors import EngineNotInstalled, QueueNotFound, StepNotLoaded, WorkerNotFound
from fairlead.runbook.model import Runbook
from fairlead.surface import Surface
from fairlead.testing import ManualClock, open_in_memory
from fairlead.verbs.claim import Claim
from fairlead.worker.plan import read_carry
from fairlead.worker.workers import Workers
from tests.worker.scene import QUEUE, burst, command, push, runbook, step, until, working
from tests.worker.steps import read_journal

MODES = pytest.mark.parametrize("isolate", ["process", "thread"])


def dead_letters(broker: Broker) -> list[Any]:
    return broker.peek(f"{QUEUE}.dlq", limit=1000)


@MODES
def test_steps_run_in_order_and_each_gets_the_value_of_the_one_before(
    broker: Broker, journal: str, isolate: str
) -> None:
    push(broker, *({"n": n, "journal": journal} for n in range(20)))
    workers = burst(
        broker,
        runbook(
            step("first", "double"),
            step("second", "check_double"),
            step("third", "noted"),
            isolate=isolate,
            concurrency=3,
        ),
    )
    assert workers.counts.completed == 20
    assert workers.counts.steps == 60
    words = [(line["n"], line["step"], line["word"]) for line in read_journal(journal)]
    for n in range(20):
        assert [word for word in words if word[0] == n] == [
            (n, "second", "checked"),
            (n, "third", "begin"),
            (n, "third", "end"),
        ]
    assert broker.stats(QUEUE).ready == broker.stats(QUEUE).leased == 0


@MODES
def test_each_item_fails_alone_with_its_reason_in_the_record(broker: Broker, isolate: str) -> None:
    ids = push(broker, {"how": "connection"}, {"how": "value"}, {"how": "dead"}, {"how": "object"})
    book = runbook(step("raises"), isolate=isolate, reasons={"ValueError": "dependency_failure"})
    assert burst(broker, book).counts.dead == 4
    found = {dead.id: FailureReason(dead.failures[-1].reason).word for dead in dead_letters(broker)}
    assert found == dict(
        zip(
            ids,
            ["transport_unavailable", "dependency_failure", "validation_failure", "serialization_error"],
            strict=True,
        )
    )
    assert "Traceback" in dead_letters(broker)[0].failures[-1].error


@MODES
def test_a_value_that_is_too_large_for_the_carry_is_a_failure_and_not_a_crash(
    broker: Broker, isolate: str
) -> None:
    push(broker, {"how": "large"})
    burst(broker, runbook(step("raises"), step("nothing"), isolate=isolate))
    (dead,) = dead_letters(broker)
    assert FailureReason(dead.failures[-1].reason) is FailureReason.SERIALIZATION_ERROR
    assert "at most 65536 bytes" in dead.failures[-1].error


def test_a_confirmed_step_is_not_run_again_after_a_later_one_failed(journal: str) -> None:
    clock = ManualClock()
    with open_in_memory(clock=clock) as broker:
        broker.create_queue(QUEUE, retry={"policy": "fixed", "cooldown": "30s", "attempts": 3})
        (message_id,) = push(broker, {"n": 1, "journal": journal, "failures": 1})
        book = runbook(step("first", "noted"), step("second", "fails"), isolate="thread")
        assert burst(broker, book).counts.failed == 1
        waiting = broker.find(message_id)
        assert read_carry("pipeline", waiting.carry) == {"first": b'"first of 1"'}
        assert burst(broker, book).counts.completed == 0
        clock.advance(ms=30_000)
        assert burst(broker, book).counts.completed == 1
    ran = [(line["step"], line["word"]) for line in read_journal(journal)]
    assert ran == [
        ("first", "begin"),
        ("first", "end"),
        ("second", "begin"),
        ("second", "failed"),
        ("second", "begin"),
        ("second", "end"),
    ]


def test_retries_and_dead_letters_follow_the_policy_of_the_queue(journal: str) -> None:
    """With 3 attempts and a cooldown of 30 s a message dies on the third failure; an operator's retry starts
    from 0.
    """
    clock = ManualClock()
    with open_in_memory(clock=clock) as broker:
        broker.create_queue(QUEUE, retry={"policy": "fixed", "cooldown": "30s", "attempts": 3})
        (message_id,) = push(broker, {"n": 1, "journal": journal, "failures": 99})
        book = runbook(step("fails"), isolate="thread")
        for failed in (1, 2):
            assert burst(broker, book).counts.failed == 1
            assert broker.find(message_id).attempts == failed
            assert broker.stats(QUEUE).waiting == 1
            clock.advance(ms=29_999)
            assert burst(broker, book).counts.steps == 0
            clock.advance(ms=1)
        assert burst(broker, book).counts.dead == 1
        assert len(dead_letters(broker)) == 1
        broker.retry(QUEUE, [message_id])
        assert broker.find(message_id).attempts == 0
        assert burst(broker, book).counts.failed == 1
    assert len(read_journal(journal)) == 8


def test_a_step_added_before_a_confirmed_one_runs_and_the_confirmed_one_does_not(journal: str) -> None:
    clock = ManualClock()
    with open_in_memory(clock=clock) as broker:
        broker.create_queue(QUEUE, retry={"policy": "fixed", "cooldown": "1s", "attempts": 5})
        push(broker, {"n": 1, "journal": journal, "failures": 1})
        burst(broker, runbook(step("b", "noted"), step("c", "fails"), isolate="thread"))
        clock.advance(ms=1000)
        burst(broker, runbook(step("a", "noted"), step("b", "noted"), step("c", "fails"), isolate="thread"))
    assert [line["step"] for line in read_journal(journal) if line["word"] == "begin"] == ["b", "c", "a", "c"]


def test_a_carry_that_another_program_stored_is_a_failure(broker: Broker) -> None:
    from fairlead import Extend, Release

    push(broker, {"n": 1})
    (delivery,) = broker.claim(QUEUE)
    broker.settle([Extend(delivery, carry=b"\x00 mine"), Release(delivery)])
    assert burst(broker, runbook(step("nothing"), isolate="thread")).counts.dead == 1
    assert "carry" in dead_letters(broker)[0].failures[-1].error


def test_commands_and_functions_share_a_pipeline(broker: Broker, journal: str) -> None:
    push(broker, {"n": 21, "journal": journal})
    add = command(
        "add", "python3", "-c", "import sys, json; print(json.dumps({'twice': 2 * int(sys.argv[1])}))", "{n}"
    )
    book = runbook(msgspec.structs.replace(add, name="first"), step("second", "check_double"))
    assert burst(broker, book).counts.completed == 1


@MODES
def test_a_step_that_cannot_be_loaded_ends_the_worker_and_changes_no_message(
    broker: Broker, isolate: str
) -> None:
    push(broker, {"n": 1})
    workers = Workers(broker, runbook(step("missing"), isolate=isolate))
    workers.start()
    assert workers.wait(60)
    with pytest.raises(StepNotLoaded, match="missing"):
        workers.check()
    assert broker.peek(QUEUE)[0].attempts == 0
    assert broker.stats(QUEUE).ready == 1


def test_workers_that_cannot_run_here_are_refused_before_anything_is_claimed(broker: Broker) -> None:
    with pytest.raises(EngineNotInstalled, match=r"fairlead\[spark\]"):
        Workers(broker, runbook(step("nothing"), engine="spark"))
    with pytest.raises(WorkerNotFound, match="it has worker"):
        Workers(broker, runbook(step("nothing")), ["wroker"])
    with pytest.raises(WorkerNotFound):
        Workers(broker, Runbook())


def test_a_missing_queue_ends_the_worker_with_its_error(broker: Broker) -> None:
    broker.delete_queue(QUEUE)
    workers = Workers(broker, runbook(step("nothing"), isolate="thread"))
    workers.start()
    assert workers.wait(60)
    with pytest.raises(QueueNotFound):
        workers.check()


@MODES
def test_a_stop_finishes_running_steps_and_releases_the_rest(
    broker: Broker, journal: str, tmp_path: Path, isolate: str
) -> None:
    gate = tmp_path / "gate"
    hold = {"step": "first", "gate": str(gate)}
    ids = push(broker, *({"n": n, "journal": journal, "hold": hold} for n in range(6)))
    book = runbook(
        step("first", "noted"), step("second", "noted"), isolate=isolate, concurrency=2, prefetch=4
    )
    with working(broker, book) as workers:
        until(lambda: len(read_journal(journal)) == 2, "two steps under way")
        until(lambda: broker.stats(QUEUE).leased == 6, "the others fetched ahead")
        workers.stop()
        until(lambda: broker.stats(QUEUE).ready == 4, "those not begun to be given back")
        assert not workers.wait(0)
        gate.touch()
        assert workers.wait(60)
        workers.check()
    assert workers.counts.completed == 2
    assert [found.attempts for found in broker.peek(QUEUE)] == [0] * 4
    assert [found.id for found in broker.peek(QUEUE)] == ids[2:]


@MODES
def test_a_second_signal_releases_everything_at_once(
    broker: Broker, journal: str, tmp_path: Path, isolate: str
) -> None:
    hold = {"step": "second", "gate": str(tmp_path / "never")}
    push(broker, *({"n": n, "journal": journal, "hold": hold} for n in range(3)))
    book = runbook(step("first", "noted"), step("second", "noted"), isolate=isolate, concurrency=1)
    with working(broker, book) as workers:
        until(lambda: [line for line in read_journal(journal) if line["step"] == "second"], "the second step")
        workers.stop()
        assert not workers.wait(0.1)
        workers.stop(hurry=True)
        assert workers.wait(60)
        workers.check()
        found = broker.peek(QUEUE)
        assert [one.attempts for one in found] == [0, 0, 0]
        assert read_carry("pipeline", found[0].carry) == {"first": b'"first of 0"'}
        (tmp_path / "never").touch()  # a thread cannot be ended


def test_a_worker_is_resized_while_it_works(broker: Broker, journal: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    hold = {"step": "noted", "gate": str(gate)}
    push(broker, *({"n": n, "journal": journal, "hold": hold} for n in range(8)))
    with working(broker, runbook(step("noted"), concurrency=1)) as workers:
        until(lambda: len(read_journal(journal)) == 1, "the first step")
        workers.loops["worker"].resize(3)
        until(lambda: len(read_journal(journal)) == 3, "two more at the same time")
        workers.loops["worker"].resize(1)
        gate.touch()
        until(lambda: broker.stats(QUEUE).ready + broker.stats(QUEUE).leased == 0, "the end")
    lines = read_journal(journal)
    under_way = most_after = 0
    for at, line in enumerate(lines):
        under_way += 1 if line["word"] == "begin" else -1
        assert under_way <= 3
        if at > 6:
            most_after = max(most_after, under_way)
    assert most_after == 1
    assert sorted(line["n"] for line in lines if line["word"] == "end") == list(range(8))


def test_a_changed_pipeline_is_used_and_drops_nothing(broker: Broker, journal: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    push(broker, *({"n": n, "journal": journal, "hold": {"step": "a", "gate": str(gate)}} for n in range(4)))
    with working(broker, runbook(step("a", "noted"), step("b", "noted"), concurrency=1)) as workers:
        until(lambda: len(read_journal(journal)) == 1, "the first step")
        workers.change(runbook(step("a", "noted"), step("c", "noted"), concurrency=2))
        gate.touch()
        until(lambda: broker.stats(QUEUE).ready + broker.stats(QUEUE).leased == 0, "the end")
    ended = [(line["n"], line["step"]) for line in read_journal(journal) if line["word"] == "end"]
    assert sorted(ended) == [(n, name) for n in range(4) for name in ("a", "c")]


def test_a_changed_pipeline_that_cannot_be_loaded_is_not_used(broker: Broker, journal: str) -> None:
    with working(broker, runbook(step("a", "noted"))) as workers:
        workers.change(runbook(step("missing")))
        push(broker, *({"n": n, "journal": journal} for n in range(3)))
        until(lambda: workers.counts.completed == 3, "work with the old pipeline")
        workers.check()


@MODES
def test_a_changed_pipeline_that_fails_to_load_after_it_worked_does_not_bring_the_old_one_back(
    broker: Broker, journal: str, isolate: str
) -> None:
    with working(broker, runbook(step("a", "noted"), isolate=isolate)) as workers:
        workers.change(runbook(step("b", "noted"), isolate=isolate))
        push(broker, {"n": 1, "journal": journal})
        until(lambda: workers.counts.completed == 1, "the new pipeline")
        loop = workers.loops["worker"]
        until(lambda: loop._before is None, "the old one to be forgotten")
    assert [line["step"] for line in read_journal(journal)] == ["b", "b"]


def test_a_burst_pauses_between_claims_while_a_step_is_running(
    broker: Broker, journal: str, tmp_path: Path
) -> None:
    gate, asked = tmp_path / "gate", []

    class Counting(Surface):
        def do(self, request: Any) -> Any:
            if isinstance(request, Claim):
                asked.append(1)
            return broker.do(request)

    push(broker, {"n": 1, "journal": journal, "hold": {"step": "noted", "gate": str(gate)}})
    workers = Workers(Counting(), runbook(step("noted")), base=Path(), burst=True)
    workers.start()
    until(lambda: read_journal(journal), "the step")
    before = len(asked)
    until(lambda: len(asked) >= before + 3, "it to look for more")
    before, _ = len(asked), workers.wait(0.5)
    assert len(asked) - before < 50
    gate.touch()
    assert workers.wait(60)
    assert workers.counts.completed == 1


def test_with_ordering_none_messages_of_a_stream_run_in_parallel(journal: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with open_in_memory() as broker:
        broker.create_queue(QUEUE, ordering="none")
        push(
            broker,
            *(
                {"n": n, "stream": "s", "journal": journal, "hold": {"step": "noted", "gate": str(gate)}}
                for n in range(2)
            ),
        )
        with working(broker, runbook(step("noted"), isolate="thread", concurrency=2)) as workers:
            until(lambda: len(read_journal(journal)) == 2, "both at once")
            gate.touch()
            until(lambda: workers.counts.completed == 2, "both")


def test_a_lost_lease_ends_the_step_and_its_outcome_is_ignored(journal: str, tmp_path: Path) -> None:
    with open_in_memory() as broker:
        broker.create_queue(QUEUE, visibility_timeout="2s")
        (message_id,) = push(
            broker, {"n": 1, "journal": journal, "hold": {"step": "noted", "gate": str(tmp_path / "never")}}
        )
        with working(broker, runbook(step("noted"))) as workers:
            (begun,) = until(lambda: read_journal(journal), "the step")
            broker.drop(QUEUE, [message_id])
            until(lambda: workers.counts.lost == 1, "the worker to notice")
            until(lambda: not Path(f"/proc/{begun['pid']}").exists(), "the end of the step's process")
            push(broker, {"n": 2, "journal": journal})
            until(lambda: workers.counts.completed == 1, "work to go on")
            workers.check()


def test_leases_of_long_work_are_extended(journal: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with open_in_memory() as broker:
        broker.create_queue(QUEUE, visibility_timeout="2s", retry={"policy": "none"})
        push(
            broker,
            *({"n": n, "journal": journal, "hold": {"step": "noted", "gate": str(gate)}} for n in range(3)),
        )
        with working(broker, runbook(step("noted"), concurrency=1, prefetch=2)) as workers:
            until(lambda: read_journal(journal), "the step")
            first = broker.find(_id(broker, "leased")).lease_until
            until(
                lambda: broker.find(_id(broker, "leased")).lease_until > first + 4000, "three times the lease"
            )
            gate.touch()
            until(lambda: workers.counts.completed == 3, "all of them")
    assert len(read_journal(journal)) == 6


def _id(broker: Broker, where: str) -> str:
    return str(broker.peek(QUEUE, where=where)[0].id)


def test_a_payload_of_many_megabytes_is_processed(broker: Broker) -> None:
    broker.enqueue(QUEUE, json.dumps({"n": "x" * 8_000_000}).encode())
    assert burst(broker, runbook(step("nothing"))).counts.completed == 1
