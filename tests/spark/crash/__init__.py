"""A streaming query from one queue to another is killed with SIGKILL, in every window and at random. The
ledger of `tests/crash/pipeline`, outside of the query, checks its promises.

What lives here: `driver.py` (the query, in a process that is killed), `rounds.py` and `torture.py` (kills at
random moments, by a seed). Promises: 0 lost, 0 published twice, 0 completed before it was published; a
failing round prints its seed and the command that replays it. Must not: judge by what the source or the sink
reports. Start at `test_windows.py`, then `rounds.py`.
"""
