"""What a retry policy implies, in words and numbers, before an outage shows it."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.decide.retry import delay_ms
from fairlead.errors import InvalidRequest
from fairlead.model.durations import show_ms
from fairlead.model.policy import RetryPolicy, read_policy

_HOUR_MS = 3_600_000
#: Retries whose delays are added one by one. Nearly every policy reaches its cap long before.
_MAX_RETRIES_COUNTED = 10_000


@dataclass(frozen=True, slots=True)
class PolicyLint:
    """`longest_ms` and `stream_blocked_ms` are None when a message may be retried without an end.

    `tries_per_hour` is the worst case for one message whose tries fail at once; None means as fast as it is
    delivered.
    """

    longest_ms: int | None
    tries_per_hour: int | None
    stream_blocked_ms: int | None
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        longest = (
            "never dies by itself"
            if self.longest_ms is None
            else f"dead after at most {show_ms(self.longest_ms)} of waiting"
        )
        tries = (
            "as many tries an hour as workers can make"
            if self.tries_per_hour is None
            else f"at most {self.tries_per_hour} tries an hour"
        )
        blocked = "for ever" if self.stream_blocked_ms is None else f"for {show_ms(self.stream_blocked_ms)}"
        lines = [
            f"{longest}; {tries}; one bad message can block its stream {blocked}",
            *(f"warning: {text}" for text in self.warnings),
        ]
        return "\n".join(lines)


def lint_policy(policy: RetryPolicy | dict[str, object] | str, *, max_attempts: int = 0) -> PolicyLint:
    """Check a policy. `max_attempts` is the queue's hard ceiling; 0 means none."""
    read = read_policy(policy)
    if isinstance(max_attempts, bool) or not isinstance(max_attempts, int) or max_attempts < 0:
        raise InvalidRequest("max_attempts", "a whole number from 0", max_attempts)
    limits = [limit for limit in (read.attempts, max_attempts or None) if limit is not None]
    failures = max(1, min(limits)) if limits else None
    if read.kind == "none":
        failures = 1
    longest = None if failures is None else _waited_ms(read, failures - 1)
    return PolicyLint(longest, _tries_per_hour(read, failures), longest, tuple(_warnings(read, failures)))


def _waited_ms(policy: RetryPolicy, retries: int) -> int:
    """The total wait without jitter, which is the worst case because jitter only shortens a wait.

    If a delay still grows after the counted retries, the longest one stands for the others.
    """
    counted = min(retries, _MAX_RETRIES_COUNTED)
    waited = sum(delay_ms(policy, attempt) for attempt in range(1, counted + 1))
    return waited + (retries - counted) * delay_ms(policy, max(retries, 1))


def _tries_per_hour(policy: RetryPolicy, failures: int | None) -> int | None:
    """Tries in the first hour, counted from the first one. Full jitter may draw 0 every time."""
    if failures is not None and (policy.jitter == "full" or delay_ms(policy, 1) == 0):
        return failures
    if policy.jitter == "full" or delay_ms(policy, 1) == 0:
        return None
    tries, at_ms = 1, 0
    while failures is None or tries < failures:
        wait_ms = delay_ms(policy, tries)
        if wait_ms == delay_ms(policy, _MAX_RETRIES_COUNTED):
            # The delay no longer grows, so the rest of the hour is one division.
            tries += max(0, _HOUR_MS - 1 - at_ms) // wait_ms
            return tries if failures is None else min(tries, failures)
        at_ms += wait_ms
        if at_ms >= _HOUR_MS:
            break
        tries += 1
    return tries


def _warnings(policy: RetryPolicy, failures: int | None) -> list[str]:
    found = []
    if failures is None:
        found.append(
            "no limit on attempts: a message that can never succeed is tried for ever; set attempts or max_attempts"
        )
        if delay_ms(policy, 1) == 0:
            found.append(
                "retries at once and without limit: a broken dependency is hammered as fast as workers can"
            )
    if (
        policy.kind in ("fixed", "exponential")
        and policy.jitter == "none"
        and (failures is None or failures > 2)
    ):
        found.append('no jitter: messages that failed together come back together; consider jitter = "full"')
    if policy.kind == "exponential" and policy.cap_ms < policy.base_ms * policy.factor:
        found.append("the cap is below the first delay: every wait is the cap")
    return found
