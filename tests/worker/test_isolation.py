"""One poisonous item among good ones becomes a dead letter with its reason, and the good ones complete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead import Broker, Fail, FailureReason, Start
from fairlead.surface import Surface
from fairlead.testing import open_in_memory
from fairlead.verbs.settle import Settle
from tests.worker.scene import QUEUE, burst, command, push, runbook, step, until

GOOD = 40


@pytest.fixture
def broker(broker: Broker) -> Broker:
    broker.update_queue(QUEUE, retry={"policy": "immediate", "attempts": 2})
    return broker


@pytest.mark.parametrize(
    ("how", "reason", "text"),
    [
        ("segfault", "poison_message", "its process was killed by SIGSEGV"),
        ("exit", "poison_message", "its process ended with exit code 7"),
        ("memory", "poison_message", "MemoryError"),
        ("sleep", "timeout_exceeded", "it took longer than 400 ms"),
    ],
)
def test_a_poisonous_item_ends_as_a_dead_letter_with_that_reason(
    broker: Broker, how: str, reason: str, text: str
) -> None:
    half = [{"n": n} for n in range(GOOD // 2)]
    (poison,) = (*push(broker, *half), *push(broker, {"how": how}), *push(broker, *half))[
        GOOD // 2 : GOOD // 2 + 1
    ]
    timeout_ms = 400 if how == "sleep" else 60_000
    book = runbook(step("misbehaves", timeout_ms=timeout_ms), concurrency=2, memory_limit_bytes=300_000_000)
    workers = burst(broker, book)
    assert workers.counts.completed == GOOD
    (dead,) = broker.peek(f"{QUEUE}.dlq")
    assert dead.id == poison
    assert [FailureReason(failure.reason).word for failure in dead.failures] == [reason, reason]
    assert all(text in failure.error for failure in dead.failures)
    assert workers.counts.restarts == (0 if how == "memory" else 2)


def test_the_failure_record_shows_where_a_process_crashed(broker: Broker) -> None:
    push(broker, {"how": "segfault"})
    burst(broker, runbook(step("misbehaves")))
    assert "steps.py" in broker.peek(f"{QUEUE}.dlq")[0].failures[0].error


def test_a_step_that_takes_too_long_is_killed_with_its_children(broker: Broker, tmp_path: Path) -> None:
    push(broker, {"how": "spawn and sleep", "pids": str(tmp_path / "pids")})
    burst(broker, runbook(step("misbehaves", timeout_ms=700)))
    for pid in (tmp_path / "pids").read_text().split():
        until(lambda pid=pid: not _is_running(int(pid)), "the end of what the step had started")


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_hanging_command_fails_with_its_output_and_its_slot_continues(broker: Broker) -> None:
    push(broker, *({"n": n} for n in range(3)))
    hang = command(
        "hang",
        "sh",
        "-c",
        'if [ "$1" = 1 ]; then echo so far so good; sleep 3600; fi',
        "x",
        "{n}",
        timeout_ms=400,
    )
    workers = burst(broker, runbook(hang))
    assert workers.counts.completed == 2
    assert workers.counts.restarts == 0
    (dead,) = broker.peek(f"{QUEUE}.dlq")
    assert FailureReason(dead.failures[-1].reason) is FailureReason.TIMEOUT_EXCEEDED
    assert "so far so good" in dead.failures[-1].error


def test_in_threads_a_hanging_step_is_abandoned_and_the_others_continue(broker: Broker) -> None:
    push(broker, {"n": 1}, {"how": "sleep"}, {"n": 2})
    workers = burst(broker, runbook(step("misbehaves", timeout_ms=200), isolate="thread"))
    assert workers.counts.completed == 2
    assert workers.counts.dead == 1


def test_a_message_that_kills_its_whole_worker_is_counted_from_its_second_delivery_on() -> None:
    """Quick steps begin without a start, but a message on a later delivery is started before it begins."""
    from fairlead.worker.job import Job
    from fairlead.worker.loop import WorkerLoop
    from tests.docs.pages import ROOT

    with open_in_memory() as broker:
        broker.create_queue(QUEUE)
        ids = push(broker, *({"n": n} for n in range(400)))
        # The message is at the tail, so the worker reaches it when it knows that the step is quick.
        assert broker.settle([Fail(broker.claim(QUEUE)[0])])[0].id == ids[0]
        started: list[str] = []

        class Watched(Surface):
            def do(self, request: Any) -> Any:
                if isinstance(request, Settle):
                    started.extend(item.delivery.id for item in request.items if isinstance(item, Start))
                return broker.do(request)

        loop = WorkerLoop(
            Watched(),
            Job.of(runbook(step("nothing"), isolate="thread"), "worker", str(ROOT)),
            consumer="me",
            burst=True,
        )
        loop.start()
        assert loop.join(60)
        assert loop.counts.completed == 400
        assert ids[0] in started
        assert len(started) < 200
