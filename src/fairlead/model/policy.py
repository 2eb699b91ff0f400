"""Retry policies as data. What they decide is in `decide/retry.py`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fairlead.errors import InvalidRequest

_KINDS = ("none", "immediate")
_FIELDS = ("policy", "attempts")
_MAX_ATTEMPTS = 1_000_000


class RetryPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """`attempts = N` dies on the N-th failure (0 and 1 alike); None is no limit."""

    kind: str = "immediate"
    attempts: int | None = None


IMMEDIATE = RetryPolicy("immediate")


def read_policy(value: object, field: str = "retry") -> RetryPolicy:
    """Read {"policy": "immediate", "attempts": 3}, or just "none"."""
    if isinstance(value, RetryPolicy):
        return value
    if isinstance(value, str):
        value = {"policy": value}
    if not isinstance(value, Mapping):
        raise InvalidRequest(field, 'a mapping such as {"policy": "immediate", "attempts": 3}', value)
    unknown = sorted(set(value) - set(_FIELDS), key=str)
    if unknown:
        raise InvalidRequest(f"{field}.{unknown[0]}", "one of " + ", ".join(_FIELDS), unknown[0])
    kind = value.get("policy", "immediate")
    if kind not in _KINDS:
        raise InvalidRequest(f"{field}.policy", "one of " + ", ".join(_KINDS), kind)
    attempts = value.get("attempts")
    if attempts is not None and (isinstance(attempts, bool) or not isinstance(attempts, int) or not 0 <= attempts <= _MAX_ATTEMPTS):
        raise InvalidRequest(f"{field}.attempts", f"a whole number from 0 to {_MAX_ATTEMPTS}, or None", attempts)
    return RetryPolicy(kind, attempts)
