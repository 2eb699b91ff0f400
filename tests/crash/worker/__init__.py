"""Workers, their step processes and their broker are killed while a pipeline of three steps runs, and held to
their promises by the ledger that the steps themselves write. The worker on Spark is judged by the same
ledger: see `tests/spark/worker_trials`.

What lives here: `ledger_steps.py` (the steps: each writes a line before it does anything and one after),
`fates.py` (what is to become of each message, drawn beforehand), `audit.py` (the rules that a ledger must
keep), `trial.py` (the parent: a server, a runbook, one life of a worker after the other), `rounds.py` (kills
at random moments, by a seed). Promises: every message is completed, or dead with its record; none is lost; no
step is called again once it was confirmed; streams keep their order at every call. A failing round prints its
seed and what replays it. Must not: judge by what a worker says about itself; only what steps were called for
and what is in the queues counts. Start at `audit.py`, then `rounds.py`.
"""
