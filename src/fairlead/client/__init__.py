"""The Python clients: the verbs of `fairlead.surface` over the network.

Promises that no thread of a client keeps a process from ending, that a held lease is kept alive while its work goes
on, and that every call ends within its time. Imports no engine, and pyarrow only for bulk verbs.

`resp/` speaks the Redis protocol: a blocking client without threads of its own, and one on asyncio alone. `flight/` is
how both carry rows in bulk, by Arrow Flight. What they share is here: `options.py`, `tls.py`, `diagnosis.py`,
`patience.py` and `outage.py` (what follows a failure), `heartbeat.py`, `async_heartbeat.py` and `settling.py` (leases),
`traces.py`, `lifetimes.py`. `finding.py` imports a client when it is asked for. Start with `resp/client.py`.
"""
