"""A streaming query from one queue to another is killed with SIGKILL, at every window and at random, and held
to its promise by the ledger of `tests/crash/pipeline`, which is outside of it.

What lives here: `driver.py` (the query, in a process that is killed), `rounds.py` and `torture.py` (kills at
random moments, by a seed). Promises: 0 lost, 0 published twice, 0 completed before it was published; a
failing round prints its seed and what replays it. Must not: judge by what the source or the sink says about
itself. Start at `test_windows.py`, then `rounds.py`.
"""
