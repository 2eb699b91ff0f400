"""Child processes: how hooks and workers start, feed, bound and kill them.

`run.py` runs a command to its end; `lifetime.py` ties a child to its parent, kills a process group and
describes an exit; `pipes.py` frames what a parent and a long-lived child send each other. Guarantees: a
command that exceeds its time limit is killed with its whole process group. Must not: know hooks, steps or
queues. A child imports `lifetime` and `pipes`, so they import little.
"""
