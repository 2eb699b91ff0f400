"""The Python clients: the verbs of `fairlead.surface` over the network, by the Redis protocol, on hiredis and msgspec alone.

Promises: no engine is imported, and pyarrow only for bulk verbs; no thread but the heartbeat's, and none keeps the
process from ending; threads, or tasks, that call at the same time share a connection and their commands go out
together; a call that may wait, or takes long, uses a connection of its own; a held lease is kept alive while its work
goes on; every call ends within `timeout` + `retry_for` (+ `wait`); after a lost answer a request is sent again if that
is safe, or has a number in a session, under which it takes effect once.

Without I/O, for both clients: `commands.py` makes commands and reads answers, `calls.py` has what requests of some kinds
need, `attempts.py`, `patience.py` and `outage.py` decide what follows a failure, `session.py` numbers requests,
`core_state.py` is what both cores keep,
`prefetch.py` keeps what a loop was sent ahead, `settling.py` says what a settle does to leases.
With it: `connection.py` has one socket, `shared.py` lets threads share one, `connections.py` has all of a client,
`heartbeat.py` keeps leases alive; `core.py` is one request with all its attempts, `client.py` and `consume.py` are what
users see. The asyncio forms are `async_*.py`. `addresses.py`, `identity.py`, `tls.py` and `diagnosis.py` are about
whom a client connects to, `options.py` about what it was told, `lifetimes.py` about the end of the process and forks,
`traces.py` about spans; `finding.py` imports a client when it is asked for. `bulk.py` and `flight/` carry rows by Arrow
Flight. Start with `client.py`.
"""
