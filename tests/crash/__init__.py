"""A broker under load is killed with SIGKILL, reopened, and held to its promises by a ledger outside of it.

What lives here: `workload.py`, `logs.py` and `bulk.py` (what the victim does), `journal.py` (how it says so
before and after each operation), `ledger.py` (the rules a history must keep), `rounds.py` (kill, verify,
reopen, settle the account). Promises: a failure prints its seed and the command that replays the round, and
keeps the directory and the journals. Must not: look inside the broker to judge it; only what went in, what
came out, and what `verify` and `stats` say counts. Start at `rounds.py`, then `ledger.py`.
"""
