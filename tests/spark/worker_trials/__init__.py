"""The worker on Spark, held to what the local worker promises by the ledger of `tests/crash/worker`, which
its steps write.

What lives here: `driver.py` (the worker, in a process that is killed), `rounds.py` (kills of it, of parts of
it and of the broker). Promises: every message is completed, or dead with its record; none is lost; no step is
called again once it was confirmed; streams keep their order at every call; both workers leave the same
behind. A failing round prints its seed and what replays it. Must not: judge by what the worker says about
itself. Start at `test_random_kills.py`.
"""
