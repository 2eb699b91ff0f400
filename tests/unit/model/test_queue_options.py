from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from fairlead.errors import InvalidRequest
from fairlead.model.policy import FailureBreaker, RetryPolicy
from fairlead.model.queue import QUEUE_OPTIONS, QueueConfig, read_queue_options

GOOD: list[tuple[str, Any, str, Any]] = [
    ("visibility_timeout", "45s", "visibility_timeout_ms", 45_000),
    ("visibility_timeout", timedelta(days=7), "visibility_timeout_ms", 604_800_000),
    ("visibility_timeout", "100ms", "visibility_timeout_ms", 100),
    ("ttl", "1h", "ttl_ms", 3_600_000),
    ("ttl", None, "ttl_ms", 0),
    ("dead_retention", "30d", "dead_retention_ms", 2_592_000_000),
    ("retain_completed", "12h", "retain_completed_ms", 43_200_000),
    ("retain_completed", None, "retain_completed_ms", 0),
    ("retry", "none", "retry", RetryPolicy("none")),
    ("retry", {"policy": "immediate", "attempts": 3}, "retry", RetryPolicy("immediate", 3)),
    ("max_attempts", 5, "max_attempts", 5),
    ("max_attempts", None, "max_attempts", 0),
    ("max_deliveries", 9, "max_deliveries", 9),
    ("max_messages", 10, "max_messages", 10),
    ("max_bytes", 1 << 40, "max_bytes", 1 << 40),
    ("max_unsettled_per_consumer", 100, "max_unsettled_per_consumer", 100),
    ("max_unsettled_per_key", 2, "max_unsettled_per_key", 2),
    ("quantum", 8, "quantum", 8),
    ("dedup", "5m", "dedup_window_ms", 300_000),
    ("dedup", "live", "dedup_window_ms", 0),
    ("expired_to_dead", True, "expired_to_dead", True),
    ("ordering", "strict", "ordering", "strict"),
    ("retry", {"cooldown": "10s", "attempts": 3}, "retry", RetryPolicy("fixed", 3, 10_000)),
    (
        "retry",
        {"policy": "exponential", "base": "1s", "cap": "1m"},
        "retry",
        RetryPolicy("exponential", base_ms=1000, cap_ms=60_000),
    ),
    (
        "retry",
        {"policy": "fixed", "jitter": "full"},
        "retry",
        RetryPolicy("fixed", base_ms=30_000, jitter="full"),
    ),
    ("retry_in_stream", None, "retry_in_stream", None),
    ("retry_in_stream", "none", "retry_in_stream", RetryPolicy("none")),
    ("retry_on", {"serialization_error": "none"}, "retry_on", {"serialization_error": RetryPolicy("none")}),
    (
        "failure_breaker",
        {"failures": 5, "within": "1m", "pause": "10s"},
        "failure_breaker",
        FailureBreaker(5, 60_000, 10_000),
    ),
    ("failure_breaker", None, "failure_breaker", FailureBreaker()),
    ("poison_after", 3, "poison_after", 3),
    ("on_enqueue", "function on_enqueue(msg) end", "on_enqueue", "function on_enqueue(msg) end"),
    ("on_failure", None, "on_failure", ""),
]

BAD: list[tuple[str, Any]] = [
    ("visibility_timeout", 30),
    ("visibility_timeout", None),
    ("visibility_timeout", "99ms"),
    ("visibility_timeout", "8d"),
    ("ttl", 60),
    ("ttl", "-1s"),
    ("dead_retention", "soon"),
    ("retain_completed", 12),
    ("max_attempts", -1),
    ("max_attempts", True),
    ("max_attempts", "3"),
    ("max_deliveries", 1.5),
    ("max_messages", 1 << 60),
    ("max_bytes", "1GB"),
    ("max_unsettled_per_consumer", -5),
    ("max_unsettled_per_key", []),
    ("quantum", 0),
    ("quantum", None),
    ("quantum", 100_001),
    ("dedup", "0s"),
    ("dedup", None),
    ("dedup", 5),
    ("expired_to_dead", "yes"),
    ("expired_to_dead", 1),
    ("ordering", "fifo"),
    ("ordering", []),
    ("on_failure", 3),
]


@pytest.mark.parametrize(("option", "value", "field", "stored"), GOOD)
def test_a_good_option_changes_its_field_and_no_other(
    option: str, value: Any, field: str, stored: Any
) -> None:
    changed = read_queue_options({option: value}, QueueConfig())
    assert getattr(changed, field) == stored
    differing = {
        name
        for name in QueueConfig.__struct_fields__
        if getattr(changed, name) != getattr(QueueConfig(), name)
    }
    assert differing <= {field}


@pytest.mark.parametrize(("option", "value"), BAD)
def test_a_bad_option_is_refused_by_name_with_what_was_expected(option: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_queue_options({option: value}, QueueConfig())
    assert refused.value.field == option
    assert option in str(refused.value)
    assert refused.value.expected


def test_every_option_has_a_good_example_above() -> None:
    assert {option for option, *_ in GOOD} == set(QUEUE_OPTIONS)


def test_an_option_that_does_not_exist_is_refused_with_the_list_of_those_that_do() -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_queue_options({"visibility": "30s"}, QueueConfig())
    assert refused.value.got == "visibility"
    assert "visibility_timeout" in refused.value.expected


def test_options_not_given_keep_what_the_queue_had() -> None:
    base = QueueConfig(max_attempts=7, ttl_ms=1000, retry=RetryPolicy("none"))
    assert read_queue_options({}, base) == base
    changed = read_queue_options({"max_attempts": 8}, base)
    assert (changed.max_attempts, changed.ttl_ms, changed.retry) == (8, 1000, RetryPolicy("none"))


def test_a_key_that_is_kept_is_live_first_and_another_kind_of_dedup_takes_its_place() -> None:
    kept = read_queue_options({"dedup": "kept"}, QueueConfig())
    assert (kept.dedup_window_ms, kept.dedup_kept) == (0, True)
    assert read_queue_options({"dedup": "5m"}, kept) == QueueConfig()
    assert read_queue_options({"dedup": "live"}, kept) == QueueConfig(dedup_window_ms=0)
