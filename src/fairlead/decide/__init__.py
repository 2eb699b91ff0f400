"""The rules: state and time in, decision out.

What lives here: the lifecycle table (`lifecycle.py`), which message of a stream may be delivered (`fronts.py`), what
follows a release (`release.py`) or a failure (`retry.py`, `failure_breaker.py`), what a policy implies
(`policy_lint.py`), what follows when a message closes its throttle key (`closing.py`), which dead letters a filter
selects (`dead_filter.py`, `error_pattern.py`), arguments of requests (`arguments.py`), parts of an exchange
(`exchange.py`), sessions (`sessions.py`), numbered claims (`numbered_claims.py`, `claim_outcomes.py`, `slices.py`),
staged writes (`staging.py`), how much one hold of the lock may change (`holds.py`), rights (`access.py`), what the audit
keeps (`audit.py`) and people may see (`redact.py`), and how a store's time goes on when it is opened again
(`time_over_restarts.py`). Promises: same arguments, same answer; no clock reads, no I/O, no threads, no logging.
Must not: import anything but `model`, `records` and `errors`. Start at `lifecycle.py`.
"""
