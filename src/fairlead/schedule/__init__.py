"""Chooses which ready messages of a queue go out next. It plans first and changes its state afterwards.

Contents: deficit round robin between keys and all operations of the engine (`drr.py`), the usual case of a
claim (`rounds.py`), a claim simulated turn by turn on copies (`draft.py`), keys and lanes (`lanes.py`), lanes
that wait for tokens (`parking.py`), token buckets (`throttle.py`), throttle keys that are closed (`closed.py`), what a
claim will change (`plan.py`) and what the scheduler of a queue has (`state.py`), and deques and heaps that can be read
ahead (`views.py`).

Guarantees: `Scheduler.plan` changes nothing, whether it returns or raises; `Scheduler.apply` carries a plan
out and does not fail. The cost of a claim depends on its own messages, not on the number of keys or on the
backlog; only when every key in the ring owes for a run is each of them looked at.

The folder is stateful, but reads no clock, starts no thread and does no I/O: time and messages are arguments.
It imports nothing of the engine or the store. Start at `drr.py`.
"""
