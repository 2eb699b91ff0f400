"""Runbooks: files that declare queues, pipelines and workers. Read, check, compare and apply them.

Guarantees: TOML, HCL and JSON mean the same; all mistakes are reported at once, with file, line and path; the
schema for editors and the reference page derive from the table that the checker uses; a plan is a value, and
applying a runbook twice changes nothing the second time. This folder must not import a broker, a client or
the command line; `apply.py` uses the verbs that it receives. Start with `check.py` (files -> `Runbook`), then
`keys.py` (every key) and `plan.py` (what would change). `model.py` has the types.
"""
