"""The rules: state and time in, decision out.

What lives here: deficit round robin (`drr.py`) over keys and lanes (`lanes.py`), lanes that wait for tokens
(`parking.py`, `throttle.py`), order within a stream (`ordering.py`), what follows a failure (`retry.py`,
`failure_breaker.py`), what a policy implies (`policy_lint.py`), the lifecycle table (`lifecycle.py`), which
dead letters a filter selects (`dead_filter.py`), arguments of requests (`arguments.py`), numbered claims
(`numbered_claims.py`, `claim_outcomes.py`, `slices.py`), staged writes (`staging.py`). Promises: same arguments, same answer; no clock reads, no
I/O, no threads, no logging. Must not: import anything but `model` and `errors`. Start at `lifecycle.py`.
"""
