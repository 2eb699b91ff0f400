"""A worker with batch steps: one bad row never fails its neighbours, whatever it does to its call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fairlead import Broker, FailureReason
from fairlead.runbook.model import StepSpec
from fairlead.worker.plan import read_carry
from tests.worker.scene import QUEUE, burst, push, runbook, step
from tests.worker.steps import read_journal

MODES = pytest.mark.parametrize("isolate", ["process", "thread"])


def batch(name: str, function: str = "rows", **options: Any) -> StepSpec:
    module = "column_steps" if function in ("arrow", "table", "frame") else "batch_steps"
    return StepSpec(name, run=f"tests.worker.{module}:{function}", batch=True, **options)


def dead_letters(broker: Broker) -> dict[str, list[str]]:
    """The failure reasons of each dead letter, first to last."""
    return {
        dead.id: [FailureReason(failure.reason).word for failure in dead.failures]
        for dead in broker.peek(f"{QUEUE}.dlq", limit=1000)
    }


def error_of(broker: Broker) -> str:
    (dead,) = broker.peek(f"{QUEUE}.dlq")
    return dead.failures[-1].error


@MODES
@pytest.mark.parametrize("function", ["rows", "one_by_one", "arrow", "table", "frame"])
def test_each_row_ends_with_its_own_outcome(broker: Broker, isolate: str, function: str) -> None:
    bad = {3: "invalid", 10: "connection", 77: "nan", 99: "dead"}
    ids = push(broker, *({"n": n, **({"says": bad[n]} if n in bad else {})} for n in range(100)))
    workers = burst(broker, runbook(batch("only", function), isolate=isolate))
    assert workers.counts.completed == workers.counts.steps == 96
    assert dead_letters(broker) == {
        ids[3]: ["validation_failure"],
        ids[10]: ["transport_unavailable"],
        ids[77]: ["serialization_error"],
        ids[99]: ["validation_failure"],
    }


@MODES
def test_a_batch_has_at_most_batch_size_rows(broker: Broker, journal: str, isolate: str) -> None:
    push(broker, *({"n": n, "journal": journal} for n in range(1000)))
    assert burst(broker, runbook(batch("only", batch_size=300), isolate=isolate)).counts.completed == 1000
    calls = [line["rows"] for line in read_journal(journal)]
    assert [row for rows in calls for row in rows] == list(range(1000))
    assert [len(rows) for rows in calls] == [300, 300, 300, 100]


@MODES
def test_single_steps_and_batch_steps_pass_values_to_each_other(
    broker: Broker, journal: str, isolate: str
) -> None:
    push(broker, *({"n": n, "journal": journal} for n in range(200)))
    book = runbook(
        batch("first"),
        step("second", "check_double"),
        batch("third"),
        batch("fourth", "frame"),
        isolate=isolate,
        concurrency=2,
    )
    workers = burst(broker, book)
    assert (workers.counts.completed, workers.counts.steps) == (200, 800)
    lines = read_journal(journal)
    assert sorted(line["n"] for line in lines if line.get("word") == "checked") == list(range(200))
    third = [line for line in lines if line["step"] == "third"]
    assert sorted(row for line in third for row in line["rows"]) == list(range(200))
    assert {value for line in third for value in line["values"]} == {"checked"}


def test_the_value_of_a_row_is_stored_with_its_message(broker: Broker) -> None:
    broker.update_queue(QUEUE, retry={"policy": "fixed", "cooldown": "1h", "attempts": 5})
    good, bad = push(broker, {"n": 1}, {"n": 2, "how": "connection"})
    burst(broker, runbook(batch("first", "values"), step("second", "raises"), isolate="thread"))
    for message, n in ((good, 1), (bad, 2)):
        assert read_carry("pipeline", broker.find(message).carry) == {
            "first": json.dumps({"n": n}, separators=(",", ":")).encode()
        }


@pytest.mark.parametrize(
    ("how", "reason", "text"),
    [
        ("raise", "handler_exception", "ValueError: odd"),
        ("mine", "dependency_failure", "tray 2"),
        ("exit", "handler_exception", "SystemExit: 3"),
        ("die", "poison_message", "its process ended with exit code 7"),
        ("segfault", "poison_message", "batch_steps.py"),
        ("memory", "poison_message", "MemoryError"),
        ("sleep", "timeout_exceeded", "it took longer than 300 ms"),
    ],
)
def test_a_row_that_ends_its_whole_batch_badly_is_found_and_its_neighbours_do_not_fail(
    broker: Broker, journal: str, how: str, reason: str, text: str
) -> None:
    broker.update_queue(QUEUE, retry={"policy": "immediate", "attempts": 2})
    ids = push(
        broker, *({"n": n, "journal": journal, **({"how": how} if n == 333 else {})} for n in range(1000))
    )
    book = runbook(
        batch("only", timeout_ms=300 if how == "sleep" else 60_000),
        concurrency=2,
        memory_limit_bytes=500_000_000,
        reasons={"OutOfPaper": "dependency_failure"},
    )
    workers = burst(broker, book)
    assert (workers.counts.completed, workers.counts.failed, workers.counts.dead) == (999, 1, 1)
    assert dead_letters(broker) == {ids[333]: [reason, reason]}
    assert text in error_of(broker)
    calls = [line["rows"] for line in read_journal(journal)]
    guilty = [len(rows) for rows in calls if 333 in rows]
    # An eighth each time until the row is alone. A row that cost a process comes alone the next time.
    costly = reason in ("poison_message", "timeout_exceeded")
    assert guilty[:5] == [1000, 125, 16, 2, 1]
    assert guilty[5:] == [1] if costly else len(guilty) == 6
    assert workers.counts.restarts == (6 if how in ("die", "segfault", "sleep") else 0)
    assert all(
        line["attempts"] == [0] * len(line["rows"])
        for line in read_journal(journal)
        if 333 not in line["rows"]
    )
    assert len(calls) < 50


def test_if_every_row_is_bad_each_fails_once(broker: Broker) -> None:
    ids = push(broker, *({"n": n, "how": "raise"} for n in range(200)))
    assert burst(broker, runbook(batch("only"), isolate="thread")).counts.dead == 200
    assert dead_letters(broker) == {message: ["handler_exception"] for message in ids}


@MODES
def test_a_failed_row_comes_again_in_a_batch_with_others(broker: Broker, journal: str, isolate: str) -> None:
    broker.update_queue(QUEUE, retry={"policy": "immediate", "attempts": 3})
    push(
        broker, *({"n": n, "journal": journal, **({"says": "invalid"} if n < 10 else {})} for n in range(20))
    )
    workers = burst(broker, runbook(batch("only"), isolate=isolate))
    assert (workers.counts.completed, workers.counts.failed, workers.counts.dead) == (10, 20, 10)
    lines = read_journal(journal)
    assert [line["rows"] for line in lines] == [list(range(20)), list(range(10)), list(range(10))]
    assert [line["attempts"] for line in lines] == [[0] * 20, [1] * 10, [2] * 10]


def test_a_payload_that_is_not_json_fails_alone(broker: Broker, journal: str) -> None:
    push(broker, *({"n": n, "journal": journal} for n in range(5)))
    bad = broker.enqueue(QUEUE, b"\xff")
    assert burst(broker, runbook(batch("only"), isolate="thread")).counts.completed == 5
    assert dead_letters(broker) == {bad: ["serialization_error"]}
    assert [line["rows"] for line in read_journal(journal)] == [list(range(5))]


def test_a_value_that_is_too_large_for_the_carry_fails_its_own_row(broker: Broker) -> None:
    ids = push(broker, {"n": 1}, {"n": 2, "says": "large"}, {"n": 3})
    assert (
        burst(broker, runbook(batch("first"), batch("second", "nothing"), isolate="thread")).counts.completed
        == 2
    )
    assert dead_letters(broker) == {ids[1]: ["serialization_error"]}
