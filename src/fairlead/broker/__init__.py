"""The only stateful part: load -> decide -> commit -> announce.

What lives here: `Broker` (the verbs users call) and one module per group of verbs.
Promises: one atomic commit per transition; enqueue and settle return when durable; one lock, never held while syncing
or reading bodies.
Must not: contain a rule (that is `decide/`) or know how things are stored (that is `store/`).
Start at `broker.py`.
"""
