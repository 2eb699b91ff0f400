"""Damaged files of a data directory: each damage gives exact data, or a refusal that names the file; never
fewer messages, never a hang.

In this folder: `victim.py` (a broker that dies and leaves several live logs, or many tables),
`cases.py` (the damages), `judge.py` (one damage, one forked process with a time limit), `power.py` (the same after a simulated power
cut), `boots.py` (marks of another start of the machine), `__main__.py` (the sweep with a progress bar, and
the replay of one case). Guarantees: a failed case prints the command that replays it, and its directory is
kept. Must not: judge by the inside of the broker; only `fairlead.open` and `fairlead.verify` count. Start at
`judge.py`.
"""
