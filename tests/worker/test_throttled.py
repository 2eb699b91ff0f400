"""A step that is throttled closes its throttle key, and its message comes back without an attempt."""

from __future__ import annotations

import pytest

from fairlead import Broker
from fairlead.runbook.model import StepSpec
from tests.worker.scene import QUEUE, burst, push, runbook, step

MODES = pytest.mark.parametrize("isolate", ["process", "thread"])


@MODES
def test_a_throttled_step_closes_the_key_and_uses_no_attempt(broker: Broker, isolate: str) -> None:
    ids = push(broker, {"how": "throttled"}, throttle_keys=["api"])
    workers = burst(broker, runbook(step("only", "raises"), isolate=isolate))
    (closed,) = broker.throttles()
    assert (closed.key, closed.error, closed.returns) == ("api", "step 'only': 429", 1)
    assert closed.until - closed.since == 60_000
    info = broker.find(ids[0])
    assert (info.where, info.attempts) == ("ready", 0)
    assert (workers.counts.released, workers.counts.failed, workers.counts.dead) == (1, 0, 0)


@MODES
def test_a_throttled_batch_returns_all_of_its_rows_after_one_call(broker: Broker, isolate: str) -> None:
    push(broker, *({"how": "throttled"} for _ in range(20)), throttle_keys=["api"])
    spec = StepSpec("only", run="tests.worker.batch_steps:rows", batch=True)
    workers = burst(broker, runbook(spec, isolate=isolate))
    assert broker.throttles()[0].returns == 20
    assert (workers.counts.released, workers.counts.failed) == (20, 0)
    assert broker.failure_metrics(QUEUE).by_attempts == {}


def test_a_throttle_key_that_the_message_does_not_have_is_a_failure(broker: Broker) -> None:
    broker.update_queue(QUEUE, retry="none") if broker.queues() else broker.create_queue(QUEUE, retry="none")
    push(broker, {"how": "throttled"}, throttle_keys=["other"])
    burst(broker, runbook(step("only", "raises")))
    (dead,) = broker.peek(f"{QUEUE}.dlq")
    assert "no throttle key 'api', only other" in dead.failures[-1].error
    assert broker.throttles() == []
