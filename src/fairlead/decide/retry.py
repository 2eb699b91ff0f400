"""What a failure leads to: another delivery, or the dead-letter queue."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log
from typing import Literal

import msgspec

from fairlead.model.failure import FailureReason, show_times
from fairlead.model.policy import RetryPolicy
from fairlead.model.queue import QueueConfig


@dataclass(frozen=True, slots=True)
class HookAnswer:
    """What `on_failure` returned. A hook that is missing, broken or switched off gives no answer."""

    action: Literal["retry", "dlq"]
    delay_ms: int = 0
    note: str = ""


class Failure(msgspec.Struct, frozen=True):
    """`attempts` includes this failure. `retry_in_ms` and `dead` are the explicit instruction of the settle
    call, if there is one.
    """

    attempts: int
    reason: FailureReason = FailureReason.UNKNOWN
    in_stream: bool = False
    retry_in_ms: int | None = None
    dead: bool = False
    hook: HookAnswer | None = None


class RetryAt(msgspec.Struct, frozen=True):
    """Deliver again at `due_ms`; 0 means at once."""

    due_ms: int
    rule: str


class DeadLetter(msgspec.Struct, frozen=True):
    """`reason` is the reason of death, where it differs from the reason of the last failure."""

    why: str
    rule: str
    reason: FailureReason | None = None


def after_failure(
    failure: Failure, config: QueueConfig, *, now_ms: int, jitter: float
) -> RetryAt | DeadLetter:
    """Choose between another delivery and the dead-letter queue. The first of five rules that applies
    decides, and the decision names it.

    The caller draws `jitter` from [0, 1), so that a decision can be replayed.
    """
    # 1: the ceiling.
    if config.max_attempts and failure.attempts >= config.max_attempts:
        why = f"failed {show_times(failure.attempts)}, the ceiling is {config.max_attempts}"
        return DeadLetter(why, "max_attempts", FailureReason.POISON_MESSAGE)
    # 2: an instruction of the settle call.
    if failure.dead:
        return DeadLetter("the consumer said so", "instruction")
    if failure.retry_in_ms is not None:
        return _again_in(failure.retry_in_ms, "instruction", now_ms)
    # 3: the hook.
    if failure.hook is not None:
        note = f" ({failure.hook.note})" if failure.hook.note else ""
        if failure.hook.action == "dlq":
            return DeadLetter("the on_failure hook said so", "on_failure" + note)
        return _again_in(failure.hook.delay_ms, "on_failure" + note, now_ms)
    # 4 and 5: a policy for the reason, else the queue's.
    policy, name = policy_for(failure, config)
    return _by_policy(policy, f"{name}.{policy.kind}", failure.attempts, now_ms, jitter)


def policy_for(failure: Failure, config: QueueConfig) -> tuple[RetryPolicy, str]:
    """Rules 4 and 5: the policy for the failure reason, else the queue's policy, which may differ for
    messages with a stream.
    """
    by_reason = config.retry_on.get(failure.reason.word) if config.retry_on else None
    if by_reason is not None:
        return by_reason, f"retry_on.{failure.reason.word}"
    if failure.in_stream and config.retry_in_stream is not None:
        return config.retry_in_stream, "retry_in_stream"
    return config.retry, "retry"


def has_jitter(config: QueueConfig) -> bool:
    """Whether the drawn number can matter. Without jitter, equal failures have equal outcomes."""
    policies = [config.retry, *config.retry_on.values(), config.retry_in_stream]
    return any(policy is not None and policy.jitter == "full" for policy in policies)


def _by_policy(
    policy: RetryPolicy, rule: str, attempts: int, now_ms: int, jitter: float
) -> RetryAt | DeadLetter:
    if policy.kind == "none":
        return DeadLetter("the policy is to never retry", rule)
    if policy.attempts is not None and attempts >= policy.attempts:
        return DeadLetter(f"failed {attempts} of {policy.attempts} attempts", rule)
    longest_ms = delay_ms(policy, attempts)
    return _again_in(round(longest_ms * jitter) if policy.jitter == "full" else longest_ms, rule, now_ms)


def delay_ms(policy: RetryPolicy, attempts: int) -> int:
    """The delay after the `attempts`-th failure, before jitter."""
    match policy.kind:
        case "none" | "immediate":
            return 0
        case "fixed":
            return policy.base_ms
        case "exponential":
            grown = policy.base_ms * policy.factor ** min(attempts, _failures_to_cap(policy))
            return int(min(grown, policy.cap_ms))
    raise ValueError(f"no rule for the delays of a policy {policy.kind!r}")


def _failures_to_cap(policy: RetryPolicy) -> int:
    """A number of failures after which the delay has reached its cap. A larger power could overflow."""
    if policy.factor <= 1 or not 0 < policy.base_ms < policy.cap_ms:
        return 1
    return ceil(log(policy.cap_ms / policy.base_ms) / log(policy.factor)) + 1


def _again_in(wait_ms: int, rule: str, now_ms: int) -> RetryAt:
    return RetryAt(now_ms + wait_ms if wait_ms else 0, rule)
