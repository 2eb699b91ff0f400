"""The new engine: decide, apply, write. It stands beside `fairlead.broker` until it can do everything.

`engine.py` has the lock, the transactions and `do(request)`; `transaction.py` is what a verb works with;
`memory.py` has the one reducer; `moves.py` is how one message moves on; `work/` has the work of each verb that
this engine can do, and `missing.py` lists the others. `laws.py` states what must hold of an engine at rest.

Guarantees: a transaction is one atomic write; memory changes only by `Memory.apply(fact)`, live and at open;
if a write fails, or anything but a refusal is raised, nothing of the transaction is written, every request
that joined it gets `Unavailable`, and the touched queues are loaded anew. On a stale epoch the engine steps
down: it answers nothing more. Must not: know a protocol, or a row. Start at `engine.py`.
"""
