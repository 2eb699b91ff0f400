"""The road from a failure to a decision, as a table."""

from __future__ import annotations

import pytest

from fairlead.decide.retry import DeadLetter, Failure, RetryAt, after_failure
from fairlead.model.failure import FailureReason
from fairlead.model.policy import RetryPolicy
from fairlead.model.queue import QueueConfig

NOW = 1_700_000_000_000
NONE, FOREVER = RetryPolicy("none"), RetryPolicy("immediate")


def up_to(attempts: int) -> RetryPolicy:
    return RetryPolicy("immediate", attempts)


TABLE = [
    # attempts, retry_in, dead, policy, ceiling -> dies?, due, rule
    (1, None, False, FOREVER, 0, False, 0, "retry.immediate"),
    (10**6, None, False, FOREVER, 0, False, 0, "retry.immediate"),
    (1, None, False, NONE, 0, True, 0, "retry.none"),
    (1, None, False, RetryPolicy("none", 5), 0, True, 0, "retry.none"),
    (1, None, False, up_to(0), 0, True, 0, "retry.immediate"),
    (1, None, False, up_to(1), 0, True, 0, "retry.immediate"),
    (1, None, False, up_to(2), 0, False, 0, "retry.immediate"),
    (2, None, False, up_to(2), 0, True, 0, "retry.immediate"),
    (3, None, False, up_to(2), 0, True, 0, "retry.immediate"),
    (1, None, True, FOREVER, 0, True, 0, "instruction"),
    (1, 0, False, NONE, 0, False, 0, "instruction"),
    (1, 1, False, NONE, 0, False, NOW + 1, "instruction"),
    (9, 5000, False, up_to(2), 0, False, NOW + 5000, "instruction"),
    (1, None, False, FOREVER, 1, True, 0, "max_attempts"),
    (2, None, False, FOREVER, 3, False, 0, "retry.immediate"),
    (3, None, False, FOREVER, 3, True, 0, "max_attempts"),
    (4, None, False, FOREVER, 3, True, 0, "max_attempts"),
    (3, 5000, False, FOREVER, 3, True, 0, "max_attempts"),
    (3, None, True, FOREVER, 3, True, 0, "max_attempts"),
    (3, None, False, up_to(3), 3, True, 0, "max_attempts"),
    (2, None, False, up_to(2), 3, True, 0, "retry.immediate"),
]


@pytest.mark.parametrize(
    ("attempts", "retry_in_ms", "dead", "policy", "ceiling", "dies", "due_ms", "rule"), TABLE
)
def test_the_first_rule_that_applies_decides(
    attempts: int,
    retry_in_ms: int | None,
    dead: bool,
    policy: RetryPolicy,
    ceiling: int,
    dies: bool,
    due_ms: int,
    rule: str,
) -> None:
    failure = Failure(attempts, retry_in_ms=retry_in_ms, dead=dead)
    decision = after_failure(failure, QueueConfig(retry=policy, max_attempts=ceiling), now_ms=NOW, jitter=0.5)
    if dies:
        assert isinstance(decision, DeadLetter)
        assert decision.rule == rule
        assert decision.why
        assert decision.reason == (FailureReason.POISON_MESSAGE if rule == "max_attempts" else None), (
            "only the ceiling makes poison"
        )
    else:
        assert decision == RetryAt(due_ms, rule)
