"""Compares today's engine with the first one: the same seeded runs, the same answers, the same order of delivery.

    git worktree add --detach /tmp/first 271042b
    python -m tests.differential --first /tmp/first --runs 10000

The same code plays a run on both engines (`player.py`), each in a process of its own (`play.py`) that imports the
`fairlead` of its checkout. The generator of `tests/conformance/engines` draws the steps from the seed; `lend.py` gives the
first engine's package the names that the generator imports and that are newer. `__main__.py` starts the processes and
compares the transcripts step by step (`alike.py`). Most runs give today's engine little memory, tiny steps and eager
evacuation; some run on RocksDB.

After a reopening each engine builds the ring in another order. So the ready messages are delivered and completed there:
the order within each key and stream must be the same, and the shares of the keys must agree within one turn. `wanted.py`
lists the wanted differences. Every other difference prints the command that replays its run.
"""
