"""Do the tests notice a defect? `python -m tests.mutants` puts one small bug at a time into a private copy of the
sources, runs a named suite on it, and expects a failure.

`bugs.py` lists the bugs: add one for each promise that the engine makes. Nothing here changes a file of the
project.
"""
