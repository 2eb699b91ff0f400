"""What follows a failure: another delivery, or the dead-letter queue. Same arguments, same answer, for ever."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.model.policy import RetryPolicy


@dataclass(frozen=True, slots=True)
class Failure:
    """`attempts` counts this failure. `retry_in_ms` and `dead` are the explicit instruction of the settle call, if any."""

    attempts: int
    retry_in_ms: int | None = None
    dead: bool = False


@dataclass(frozen=True, slots=True)
class RetryAt:
    """Again at `due_ms`; 0 is at once."""

    due_ms: int
    rule: str


@dataclass(frozen=True, slots=True)
class Bury:
    why: str
    rule: str


def after_failure(failure: Failure, policy: RetryPolicy, *, max_attempts: int, now_ms: int) -> RetryAt | Bury:
    """The road from a failure to a decision: the first rule that applies, by name."""
    if max_attempts and failure.attempts >= max_attempts:
        return Bury(f"failed {failure.attempts} times, the ceiling is {max_attempts}", "max_attempts")
    if failure.dead:
        return Bury("the consumer said so", "instruction")
    if failure.retry_in_ms is not None:
        return RetryAt(now_ms + failure.retry_in_ms if failure.retry_in_ms else 0, "instruction")
    if policy.kind == "none":
        return Bury("the policy is to never retry", "retry.none")
    if policy.attempts is not None and failure.attempts >= policy.attempts:
        return Bury(f"failed {failure.attempts} of {policy.attempts} attempts", f"retry.{policy.kind}")
    return RetryAt(0, f"retry.{policy.kind}")
