"""The same seeded run on both engines: the same answers, and the same order of delivery.

`running.py` makes a run from a seed and carries it out step by step on both sides. Wanted differences are
listed by name in `DIFFERENCES`. A failing run prints its seed and the command that replays it.
"""
