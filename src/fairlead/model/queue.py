"""A queue's configuration, record and counters."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.errors import InvalidRequest
from fairlead.model.durations import to_ms
from fairlead.model.limits import MAX_LEASE_MS, MIN_LEASE_MS
from fairlead.model.policy import (
    EXPONENTIAL,
    IMMEDIATE,
    FailureBreaker,
    RetryPolicy,
    read_breaker,
    read_policies_by_reason,
    read_policy,
)

#: Options of a dead-letter queue that may be changed; the others follow from its source.
DEAD_LETTER_OPTIONS = frozenset({"visibility_timeout", "max_unsettled_per_consumer"})


class QueueConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """Durations are in milliseconds; 0 switches a bound or a retention off.

    `dedup_window_ms` 0 means live: a dedup key is remembered while its message is live, and with `dedup_kept`
    also while the completed message is retained. `expired_to_dead` moves messages past their time to live to
    the `.dlq` instead of dropping them.
    """

    visibility_timeout_ms: int = 30_000
    retry: RetryPolicy = IMMEDIATE
    retry_in_stream: RetryPolicy | None = None
    retry_on: dict[str, RetryPolicy] = {}
    on_enqueue: str = ""
    on_failure: str = ""
    max_attempts: int = 0
    poison_after: int = 10
    failure_breaker: FailureBreaker = FailureBreaker()
    max_deliveries: int = 0
    quantum: int = 1
    max_messages: int = 0
    max_bytes: int = 0
    max_unsettled_per_consumer: int = 0
    max_unsettled_per_key: int = 0
    ttl_ms: int = 0
    expired_to_dead: bool = False
    dead_retention_ms: int = 0
    dedup_window_ms: int = 300_000
    ordering: str = "release"
    retain_completed_ms: int = 0
    dedup_kept: bool = False


class QueueRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """`queue_id` is never reused. `source_id` is set in a `.dlq`, `dlq_id` in a queue that has one."""

    queue_id: int
    name: str
    config: QueueConfig
    created_ms: int
    dlq_id: int = 0
    source_id: int = 0
    paused: bool = False


#: How the options of create_queue and update_queue are read: option -> (field, reader).
_DURATIONS = {
    "visibility_timeout": "visibility_timeout_ms",
    "ttl": "ttl_ms",
    "dead_retention": "dead_retention_ms",
    "retain_completed": "retain_completed_ms",
}
_COUNTS = (
    "max_attempts",
    "max_deliveries",
    "max_messages",
    "max_bytes",
    "max_unsettled_per_consumer",
    "max_unsettled_per_key",
    "poison_after",
)
_MAX_COUNT = 1 << 50
_MAX_QUANTUM = 100_000
_SCRIPTS = ("on_enqueue", "on_failure")
QUEUE_OPTIONS = (
    *_DURATIONS,
    "retry",
    "retry_in_stream",
    "retry_on",
    "failure_breaker",
    *_SCRIPTS,
    *_COUNTS,
    "quantum",
    "dedup",
    "expired_to_dead",
    "ordering",
)


def with_defaults(options: dict[str, Any]) -> dict[str, Any]:
    """The defaults of a queue created through the API or the command, written out so that nothing stays
    implicit.

    With an `on_failure` hook and no `retry`, an open breaker must mean a retry with no delay. So there is no
    `retry_in_stream`.
    """
    if "retry" in options or "retry_in_stream" in options or options.get("on_failure"):
        return options
    return {**options, "retry_in_stream": EXPONENTIAL}


def read_queue_options(options: dict[str, Any], base: QueueConfig) -> QueueConfig:
    """`base` with the given options applied. The first invalid option is refused by name."""
    changes: dict[str, Any] = {}
    for option, value in options.items():
        if option in _DURATIONS:
            changes[_DURATIONS[option]] = 0 if value is None else to_ms(value, option)
        elif option in _COUNTS:
            changes[option] = _count(option, value, 0, _MAX_COUNT)
        elif option == "quantum":
            changes[option] = _count(option, value, 1, _MAX_QUANTUM)
        elif option == "retry":
            changes[option] = read_policy(value)
        elif option == "retry_in_stream":
            changes[option] = None if value is None else read_policy(value, option)
        elif option == "retry_on":
            changes[option] = read_policies_by_reason(value)
        elif option == "failure_breaker":
            changes[option] = read_breaker(value)
        elif option in _SCRIPTS:
            if value is not None and not isinstance(value, str):
                raise InvalidRequest(option, "the text of a Lua script, or None", value)
            changes[option] = value or ""
        elif option == "dedup":
            changes["dedup_window_ms"] = 0 if value in ("live", "kept") else _positive_window(value)
            changes["dedup_kept"] = value == "kept"
        elif option == "expired_to_dead":
            if not isinstance(value, bool):
                raise InvalidRequest(option, "True or False", value)
            changes[option] = value
        elif option == "ordering":
            if value not in ("release", "strict", "none"):
                raise InvalidRequest(option, '"release", "strict" or "none"', value)
            changes[option] = value
        else:
            raise InvalidRequest("queue option", "one of " + ", ".join(QUEUE_OPTIONS), option)
    config = msgspec.structs.replace(base, **changes)
    if not MIN_LEASE_MS <= config.visibility_timeout_ms <= MAX_LEASE_MS:
        raise InvalidRequest("visibility_timeout", "between 100ms and 7d", options["visibility_timeout"])
    return config


def _count(option: str, value: object, low: int, high: int) -> int:
    if value is None and low == 0:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequest(option, f"a whole number from {low} to {high}", value)
    return value


def _positive_window(value: object) -> int:
    ms = to_ms(value, "dedup")
    if ms == 0:
        raise InvalidRequest("dedup", '"live", "kept" or a window such as "5m"', value)
    return ms
