"""Runbooks: queues, pipelines and workers as text. Reading, checking and comparing them.

Promises: TOML, HCL and JSON mean the same; every mistake is told at once, with file, line and path; what the
schema for editors and the reference page say comes from the table the checker reads by; a plan is a value,
and applying it twice changes nothing the second time. Must not: import a broker, a client or the command
line; `apply.py` acts through the verbs it is given. Start at `check.py` (files -> `Runbook`), then
`keys.py` (every key), `plan.py` (what would change). `model.py` has the types.
"""
