"""The only stateful part: load -> decide -> commit -> announce.

What lives here: `Broker` (`broker.py`, which runs requests; the verbs themselves are in `fairlead.verbs`), what
a request runs in (`transaction.py`), and one module per group of verbs that does their work: `enqueue.py`,
`claim.py`, `settle.py`, `exchange.py`, `queues.py`, `operators.py`, `dead_letters.py`, `looking.py`,
`explain.py`, `failure_metrics.py`, `runtime_config.py`, `consumers.py`, `staging.py`. Below them what they share: state (`core.py`,
`engine_lock.py`, `queue_state.py`, `leases.py`, `bodies.py`), one commit in the making (`moves.py`, `streams.py`, `runs.py`),
checks of what callers send (`requests.py`), reading (`locate.py`, `states.py`, `blocked_streams.py`), hooks (`hooking.py`), what
goes on by itself (`timers.py`, `intents.py`), and forked children (`forks.py`). Promises: one atomic commit
per transition; enqueue and settle return when durable; one lock, never held while syncing, asking a hook, or
reading the bodies of a claim. Must not: contain a rule (that is `decide/`) or know how things are stored
(that is `store/`). Start at `broker.py`, then `moves.py`: how one message moves on.
"""
