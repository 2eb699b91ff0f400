"""A program that moves messages from one queue to another through numbered claims and staged writes is killed
at every window there is, and held to its promise by a ledger outside of it. Also what the tests on Spark are
judged by: see `tests/spark/crash`.

What lives here: `switch.py` (the driver is killed at the n-th call of a verb, before or after its effect),
`server.py` (a broker in a process of its own with the switch built in, which keeps the ledger), `ledger.py`
and `audit.py` (the lines, and the rules they must keep), `driver.py` (Spark's order of calls without Spark),
`lives.py` (the parent: feeds, starts lives, settles the account), `kinds.py` and `strikes.py` (which of a
driver's processes is what, and kills of them at random moments). Promises: 0 lost, 0 published twice, 0
completed before it was published, or a failure that says which window it was. Must not: judge by what the
driver says about itself; only what the broker was asked and what is in the queues counts. Start at
`test_windows.py`, then `audit.py`.
"""
