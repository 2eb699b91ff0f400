"""The Python clients: the verbs of `fairlead.surface` over the Redis protocol, with only hiredis and msgspec.

Guarantees:

* No engine is imported, and pyarrow only for bulk verbs.
* Without bulk verbs, the heartbeat has the only lasting thread. No thread keeps the process from ending.
* Threads or tasks that call at the same time share a connection, and their commands are sent together. A call
  that may wait or takes long uses a connection of its own.
* A held lease is extended while its work continues.
* Every call ends within `timeout` + `retry_for` (+ `wait`).
* After a lost answer a request is sent again if repeating it is safe, or if it has a number in a session,
  under which it takes effect once.

Without I/O, for both clients: `commands.py` encodes commands and decodes replies. `calls.py` prepares some
kinds of requests. `attempts.py`, `patience.py` and `outage.py` decide what happens after a failure.
`session.py` numbers requests, `core_state.py` has the state of both cores, `prefetch.py` the deliveries that
a loop received ahead, and `settling.py` the effects of a settle on leases.

With I/O: `connection.py` is one socket, `shared.py` lets threads share one, `connections.py` has all
connections of a client, and `heartbeat.py` extends leases. `core.py` carries out one request with all its
attempts. `client.py` and `consume.py` are the objects that users see. The asyncio forms are `async_*.py`.

`addresses.py`, `identity.py`, `tls.py` and `diagnosis.py` are about the server that a client connects to,
`options.py` about its options, `lifetimes.py` about the end of the process and forks, `traces.py` about
spans. `finding.py` imports a client on demand. `bulk.py` and `flight/` transfer rows over Arrow Flight. Start
with `client.py`.
"""
