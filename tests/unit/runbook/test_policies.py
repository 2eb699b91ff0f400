"""Every kind of retry policy is known wherever policies are read, computed and shown."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.decide.policy_lint import lint_policy
from fairlead.decide.retry import delay_ms
from fairlead.model.policy import POLICY_FIELDS, read_policy
from fairlead.runbook.policies import POLICY_KEYS, policy_option

#: A value of each field that is not its default.
VALUES: dict[str, Any] = {
    "attempts": 7,
    "cooldown": "45s",
    "base": "2s",
    "factor": 1.5,
    "cap": "3m",
    "jitter": "full",
}


@pytest.mark.parametrize("kind", POLICY_FIELDS)
def test_a_policy_is_read_computed_and_shown_with_all_of_its_fields(kind: str) -> None:
    fields = ("attempts", *POLICY_FIELDS[kind])
    assert set(fields) <= POLICY_KEYS.keys()
    policy = read_policy({"policy": kind, **{field: VALUES[field] for field in fields}})
    assert policy != read_policy(kind)
    assert read_policy(policy_option(policy)) == policy
    waits = [delay_ms(policy, attempts) for attempts in range(1, 20)]
    assert (waits[0] > 0) == bool(POLICY_FIELDS[kind])
    assert lint_policy(policy).longest_ms == sum(waits[: 0 if kind == "none" else policy.attempts - 1])
