"""The Python clients: the verbs of `fairlead.surface` over the network.

Promises that no thread of a client keeps a process from ending, that a held lease is kept alive while its work goes
on, and that every call ends within its time. Imports no engine. `finding.py` says what to install where the client cannot be imported.

`resp/` speaks the Redis protocol: one blocking client without threads of its own, and one on asyncio alone.
Everything else is the client of Arrow Flight, which needs pyarrow: one blocking core with its own threads, the blocking
client and, in `async_client.py`, its asyncio form. Start with `requests.py` (how each request travels), then `core.py`
(one request, and what is done about trouble), `gather.py` (many calls in one request), `consume.py`; `bulk.py` has what
Spark uses. Both use `options.py`, `heartbeat.py`, `settling.py`, `patience.py`, `outage.py`, `tls.py`, `diagnosis.py`,
`traces.py` and `lifetimes.py`, which work without pyarrow.
"""
