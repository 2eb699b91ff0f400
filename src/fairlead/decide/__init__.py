"""The rules of the queue as pure functions: state and time in, decision out.

The rules of messages are the lifecycle table (`lifecycle.py`), which message of a stream may be delivered
next (`fronts.py`), the outcome of a release (`release.py`) and of a failure (`retry.py`,
`failure_breaker.py`), the closing of a throttle key (`closing.py`), and filters of dead letters
(`dead_filter.py`, `error_pattern.py`). `policy_lint.py` computes the consequences of a retry policy.

The rules of calls are arguments (`arguments.py`), exchanges (`exchange.py`), sessions (`sessions.py`),
numbered claims (`numbered_claims.py`, `claim_outcomes.py`, `slices.py`), staged writes (`staging.py`), rights
(`rights.py`), audit entries (`audit.py`) and redaction (`redact.py`). `holds.py` bounds the work of one hold
of the lock, and `time_over_restarts.py` continues a store's time after a restart.

Guarantees: the same arguments give the same answer; no clock, no I/O, no threads, no logging. Imports only
`model`, `records` and `errors`. Start at `lifecycle.py`.
"""
