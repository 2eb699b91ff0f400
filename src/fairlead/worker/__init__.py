"""Workers: claim, run the steps of a pipeline, settle.

Promises: a step whose progress was confirmed is not run again; the one in doubt may be. A step that dies,
hangs or eats all memory takes only its own process with it. A message that was only fetched ahead is not
punished when the worker is killed. In a stream no step of a later message begins before the earlier one is
settled. Of rows that share a call of a batch step, one that takes the call with it fails alone. Must not:
know rules of the queue (the broker decides what a failure means), or import a server or the command line.
Start at `workers.py`: several workers in one process; then `crew.py`: one of them; `plan.py`, `batches.py`
and `reasons.py` are the rules; `calling.py`, `batch_calls.py`, `command.py`, `child.py` and
`step_output.py` are what happens inside a step process.
"""
