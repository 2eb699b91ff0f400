"""The Spark worker under the promises of the local worker, checked by the ledger of `tests/crash/worker`,
which its steps write.

What lives here: `driver.py` (the worker, in a process that is killed), `rounds.py` (kills of it, of parts of
it and of the broker). Promises: every message is completed, or dead with its record; none is lost; no
confirmed step is called again; streams keep their order at every call; both workers leave the same state. A
failing round prints its seed and the command that replays it. Must not: judge by the worker's own counts.
Start at `test_random_kills.py`.
"""
