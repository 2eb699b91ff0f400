"""Recorded runs: the answers of the engine and its order of delivery in 200 seeded runs.

`runs-*.txt` has one line per step: the verb, the messages that were delivered, in their order, and a digest of the
whole answer. `in-full-*.txt` has the answers themselves for a few runs. `recording.py` makes both; a test
compares them with new runs.

A recorded run changes when the behaviour of the engine changes or when the runs draw other steps
(`tests/conformance/engines/running.py`). Then record anew, and argue the difference in the commit:

    python -m tests.conformance.engines --record
"""
