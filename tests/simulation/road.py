"""The road from a failure to a decision, said once more and apart from the engine: what must come of one
failed try.
"""

from __future__ import annotations

from typing import NamedTuple

from fairlead.hooks import FailureDecision
from fairlead.model.queue import QueueConfig


class Try(NamedTuple):
    """`attempts` counts this failure. `hook` is what `on_failure` answered, if it was asked and ran."""

    attempts: int
    reason: str
    in_stream: bool
    retry_in_ms: int | None = None
    dead: bool = False
    hook: FailureDecision | None = None


class Due(NamedTuple):
    """Dead (`dies`), or again after some wait between the two."""

    rule: str
    dies: bool
    low_ms: int = 0
    high_ms: int = 0


def road(failed: Try, config: QueueConfig) -> Due:
    if config.max_attempts and failed.attempts >= config.max_attempts:
        return Due("max_attempts", True)
    if failed.dead or failed.retry_in_ms is not None:
        said_ms = failed.retry_in_ms or 0
        return Due("instruction", failed.dead, said_ms, said_ms)
    if failed.hook is not None:
        rule = "on_failure" + (f" ({'; '.join(failed.hook.notes)})" if failed.hook.notes else "")
        return Due(rule, failed.hook.action == "dlq", failed.hook.delay_ms, failed.hook.delay_ms)
    named = "retry"
    policy = config.retry
    if failed.in_stream and config.retry_in_stream is not None:
        named, policy = "retry_in_stream", config.retry_in_stream
    if failed.reason in config.retry_on:
        named, policy = f"retry_on.{failed.reason}", config.retry_on[failed.reason]
    rule = f"{named}.{policy.kind}"
    if policy.kind == "none" or (policy.attempts is not None and failed.attempts >= max(1, policy.attempts)):
        return Due(rule, True)
    wait_ms = 0.0
    if policy.kind == "fixed":
        wait_ms = policy.base_ms
    elif policy.kind == "exponential":
        wait_ms = policy.base_ms
        for _ in range(failed.attempts):
            wait_ms = min(wait_ms * policy.factor, policy.cap_ms)
        wait_ms = min(wait_ms, policy.cap_ms)
    return Due(rule, False, 0 if policy.jitter == "full" else int(wait_ms), int(wait_ms))
