"""The engine as a whole, in process: seeded runs, laws after every step, faults, and cases that runs seldom draw.

`running.py` makes a run from a seed and carries it out step by step. Answers are compared with those of the same run
with another amount of messages in memory (`test_memory_sizes.py`), after reopenings (`test_reopening.py`) and with
recorded runs (`golden/`). A failing run prints its seed and the command that replays it.
"""
