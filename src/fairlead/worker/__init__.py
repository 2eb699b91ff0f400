"""Workers: claim messages, run the steps of a pipeline on them, settle.

Guarantees: a step whose progress was confirmed does not run again; the step in doubt may. A step that dies,
hangs or exhausts memory ends only its own process. A message that was fetched ahead and not begun loses no
attempt when the worker is killed. In a stream, no step of a later message begins before the earlier message
is settled. Of the rows in one call of a batch step, only a row that fails when called alone has failed.

Must not: know the rules of a queue (the broker decides what a failure means); import a server or the command
line.

Where to start: `workers.py` runs several workers in one process; `loop.py` is one of them. `plan.py`,
`items.py` and `reasons.py` are rules. `dispatch.py` and `fetching.py` decide what runs next, on the state in
`in_flight.py`. `broker_threads.py` calls the broker. `pool.py`, `slots.py` and `process_slot.py` are where
calls run; `child.py`, `step_runner.py`, `batch_calls.py`, `command.py` and `step_output.py` are what happens
in a step process. `external.py` makes an external queue look like a broker.
"""
