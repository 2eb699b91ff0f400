"""Which tests of today's broker pass on the new engine: `passing.txt`, a list that only grows.

`python -m tests.new_engine` runs the list; `--find tests/integration` also runs the other tests there, and adds
those that pass. The folder goes with the old engine.
"""
