"""Retry policies as data. `decide/retry.py` applies them; `decide/policy_lint.py` shows their consequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fairlead.errors import InvalidRequest
from fairlead.model.durations import to_ms
from fairlead.model.failure import read_reason

#: The fields of each kind of policy, beside `policy` and `attempts`.
POLICY_FIELDS: dict[str, tuple[str, ...]] = {
    "none": (),
    "immediate": (),
    "fixed": ("cooldown", "jitter"),
    "exponential": ("base", "factor", "cap", "jitter"),
}
_MAX_ATTEMPTS = 1_000_000
_MAX_FACTOR = 100


class RetryPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """`attempts = N` means that the message dies on the N-th failure (0 and 1 alike); None means no limit.

    `base_ms` is the cooldown of `fixed`. `exponential` waits base x factor^1 after the first failure, base x
    factor^2 after the second, and never more than `cap_ms`. Jitter `full` draws uniformly between 0 and that
    delay.
    """

    kind: str = "immediate"
    attempts: int | None = None
    base_ms: int = 0
    factor: float = 2.0
    cap_ms: int = 0
    jitter: str = "none"


IMMEDIATE = RetryPolicy("immediate")
EXPONENTIAL = RetryPolicy("exponential", base_ms=30_000, cap_ms=3_600_000)


def read_policy(value: object, field: str = "retry") -> RetryPolicy:
    """Read {"policy": "exponential", "base": "30s", "attempts": 10}, or just "none"."""
    if isinstance(value, RetryPolicy):
        return value
    if isinstance(value, str):
        value = {"policy": value}
    if not isinstance(value, Mapping):
        raise InvalidRequest(field, 'a mapping such as {"policy": "immediate", "attempts": 3}', value)
    kind = value.get("policy", "fixed" if "cooldown" in value else "immediate")
    if not isinstance(kind, str) or kind not in POLICY_FIELDS:
        raise InvalidRequest(f"{field}.policy", "one of " + ", ".join(POLICY_FIELDS), kind)
    allowed = ("policy", "attempts", *POLICY_FIELDS[kind])
    unknown = sorted(str(name) for name in value if name not in allowed)
    if unknown:
        raise InvalidRequest(
            f"{field}.{unknown[0]}", f"one of {', '.join(allowed)} for a policy {kind!r}", unknown[0]
        )
    return RetryPolicy(kind, _attempts(value.get("attempts"), field), **_timing(kind, value, field))


def _attempts(value: object, field: str) -> int | None:
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_ATTEMPTS
    ):
        raise InvalidRequest(f"{field}.attempts", f"a whole number from 0 to {_MAX_ATTEMPTS}, or None", value)
    return value


def _timing(kind: str, value: Mapping[str, object], field: str) -> dict[str, Any]:
    if kind not in ("fixed", "exponential"):
        return {}
    jitter = value.get("jitter", "none")
    if jitter not in ("none", "full"):
        raise InvalidRequest(f"{field}.jitter", '"none" or "full"', jitter)
    if kind == "fixed":
        return {"base_ms": to_ms(value.get("cooldown", "30s"), f"{field}.cooldown"), "jitter": str(jitter)}
    factor = value.get("factor", 2)
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 1 <= factor <= _MAX_FACTOR:
        raise InvalidRequest(f"{field}.factor", f"a number from 1 to {_MAX_FACTOR}", factor)
    return {
        "base_ms": to_ms(value.get("base", "30s"), f"{field}.base"),
        "factor": float(factor),
        "cap_ms": to_ms(value.get("cap", "1h"), f"{field}.cap"),
        "jitter": str(jitter),
    }


def read_policies_by_reason(value: object, field: str = "retry_on") -> dict[str, RetryPolicy]:
    """Read {"serialization_error": {"policy": "none"}}. An unknown reason is refused."""
    if not isinstance(value, Mapping):
        raise InvalidRequest(
            field, 'a mapping of failure reason to policy, such as {"serialization_error": "none"}', value
        )
    return {
        read_reason(reason, f"{field} reason").word: read_policy(policy, f"{field}.{reason}")
        for reason, policy in value.items()
    }


class FailureBreaker(msgspec.Struct, frozen=True, omit_defaults=True):
    """After `failures` of one reason within `window_ms`, further ones wait until at least `pause_ms` later.
    `failures` 0 means off.
    """

    failures: int = 0
    window_ms: int = 0
    pause_ms: int = 0


def read_breaker(value: object, field: str = "failure_breaker") -> FailureBreaker:
    """Read {"failures": 50, "within": "1m", "pause": "5m"}; None switches the breaker off."""
    if value is None:
        return FailureBreaker()
    if not isinstance(value, Mapping) or set(value) != {"failures", "within", "pause"}:
        raise InvalidRequest(
            field, 'a mapping such as {"failures": 50, "within": "1m", "pause": "5m"}, or None', value
        )
    failures = value["failures"]
    if isinstance(failures, bool) or not isinstance(failures, int) or not 1 <= failures <= 10_000:
        raise InvalidRequest(f"{field}.failures", "a whole number from 1 to 10000", failures)
    return FailureBreaker(
        failures, _some_time(value["within"], f"{field}.within"), _some_time(value["pause"], f"{field}.pause")
    )


def _some_time(value: object, field: str) -> int:
    """A duration greater than 0: a breaker with an empty window or pause would never open."""
    ms = to_ms(value, field)
    if not ms:
        raise InvalidRequest(field, "longer than nothing; None as a whole switches the breaker off", value)
    return ms
