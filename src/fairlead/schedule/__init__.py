"""Chooses the ready messages of a queue that are delivered next. It plans first, and changes its state
afterwards.

`drr.py` has deficit round robin between keys and all operations that the engine calls, `rounds.py` the usual
case of a claim, `draft.py` a claim simulated turn by turn on copies, `lanes.py` keys and lanes, `parking.py`
lanes that wait for tokens, `throttle.py` token buckets, `closed.py` closed throttle keys, `plan.py` the
changes that a claim will make, `state.py` the state of a queue's scheduler, and `views.py` deques and heaps
that can be read ahead.

Guarantees: `Scheduler.plan` changes nothing, whether it returns or raises; `Scheduler.apply` carries out a
plan and does not fail. The cost of a claim depends on its own messages, not on the number of keys or the
backlog; only if every key in the ring owes for a run, each of them is visited.

The folder is stateful, but reads no clock, starts no thread and does no I/O: time and messages are arguments.
It imports nothing of the engine or the store. Start at `drr.py`.
"""
